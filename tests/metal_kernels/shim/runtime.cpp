// Runs a kernel compiled for the CPU: one fiber a thread, simdgroups of 32 that wait for one another, and a check of
// every access to memory. The kernel's calls to __tsan_* (put there by clang, libtsan is never linked) are answered
// here. The first fault ends the run.
#include "checks.h"

namespace {

void wait(State state, const char* operation, int flags, EiSite site) {
  Lane& lane = lanes[current];
  lane.state = state;
  lane.operation = operation;
  lane.flags = flags;
  lane.site = site;
  to_scheduler();
}

void enter() {
  launch->entry(pointers, &lanes[current].ids);
  lanes[current].state = State::done;
  to_scheduler();
}

void prepare_lane(int index) {
  Lane& lane = lanes[index];
  if (!lane.stack) {
    lane.stack = (char*)mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mprotect(lane.stack, 4096, PROT_NONE);
  }
  void** top = (void**)(lane.stack + kStack) - 2;
  *top = (void*)enter;
  lane.stack_pointer = top - 6;
  lane.state = State::ready;
}

std::vector<int> in_order(int from, int to) {
  std::vector<int> all;
  for (int i = from; i < to; i++) all.push_back(i);
  if (launch->order == 1) std::reverse(all.begin(), all.end());
  if (launch->order == 2) std::shuffle(all.begin(), all.end(), random_engine);
  return all;
}

bool same_place(const Lane& a, const Lane& b) {
  return a.state == b.state && a.site.line == b.site.line && a.flags == b.flags && !strcmp(a.site.file, b.site.file) &&
         !strcmp(a.operation, b.operation);
}

// Every lane of [from, to) waits. False, with a finding, unless they do so in one place.
bool together(int from, int to, const char* kind) {
  for (int i = from; i < to; i++)
    if (!same_place(lanes[from], lanes[i])) {
      const Lane& a = lanes[from].state == State::done ? lanes[i] : lanes[from];
      const Lane& b = lanes[from].state == State::done ? lanes[from] : lanes[i];
      char text[200];
      if (b.state == State::done)
        snprintf(text, sizeof text, "%s: thread %d has returned", a.operation, int(&b - &lanes[0]));
      else
        snprintf(text, sizeof text, "%s: thread %d is at %s:%d", a.operation, int(&b - &lanes[0]), b.site.file, b.site.line);
      record(kind, text, a.site, 0, 0);
      return false;
    }
  return true;
}

// Runs a simdgroup until it is done or waits for the others. False after a fault.
bool run_simdgroup(int group) {
  const int from = group * 32, to = std::min(from + 32, threads_of_group);
  while (true) {
    for (int i : in_order(from, to))
      if (lanes[i].state == State::ready) {
        current = i;
        ei_switch(&scheduler_stack, lanes[i].stack_pointer);
        current = -1;
        if (faulted) return false;
      }
    bool waits = false;
    for (int i = from; i < to; i++) waits |= lanes[i].state == State::simd || lanes[i].state == State::simd_barrier;
    if (!waits) return true;
    if (!together(from, to, "divergent-simd")) return false;
    if (lanes[from].state == State::simd_barrier) {
      simd_barriers[0][group] += lanes[from].flags >> 1 & 1;
      simd_barriers[1][group] += lanes[from].flags & 1;
    }
    parity[group] ^= 1;
    for (int i = from; i < to; i++) lanes[i].state = State::ready;
  }
}

void run_threadgroup(uint3 position) {
  const int groups = (threads_of_group + 31) / 32;
  serial++;
  variables = 0;
  device_barriers = threadgroup_barriers = 0;
  for (auto& counts : simd_barriers) std::fill_n(counts, groups, 0);
  std::fill_n(parity, groups, 0);
  for (int i = 0; i < threads_of_group; i++) prepare_lane(i);
  while (true) {
    for (int group : in_order(0, groups))
      if (!run_simdgroup(group)) return;
    bool waits = false;
    for (int i = 0; i < threads_of_group; i++) waits |= lanes[i].state == State::barrier;
    if (!waits) return;
    if (!together(0, threads_of_group, "divergent-barrier")) return;
    if (lanes[0].flags & 1) device_barriers++;
    if (lanes[0].flags & 2) threadgroup_barriers++;
    for (int i = 0; i < threads_of_group; i++) lanes[i].state = State::ready;
  }
}

void set_ids(uint3 position, const uint* size, const uint3& groups) {
  const uint* grid = launch->grid;
  const uint* group = launch->group;
  for (int i = 0; i < threads_of_group; i++) {
    EiIds& ids = lanes[i].ids;
    const uint3 at = {i % size[0], i / size[0] % size[1], i / (size[0] * size[1])};
    ids.thread_position_in_threadgroup = at;
    ids.threadgroup_position_in_grid = position;
    ids.thread_position_in_grid = position * uint3{group[0], group[1], group[2]} + at;
    ids.threads_per_threadgroup = uint3{size[0], size[1], size[2]};
    ids.threadgroups_per_grid = groups;
    ids.threads_per_grid = uint3{grid[0], grid[1], grid[2]};
    ids.thread_index_in_threadgroup = i;
    ids.thread_index_in_simdgroup = i % 32;
    ids.simdgroup_index_in_threadgroup = i / 32;
    ids.simdgroups_per_threadgroup = (threads_of_group + 31) / 32;
    ids.threads_per_simdgroup = 32;
  }
}

void unwritten() {
  for (int i = 0; i < launch->count; i++) {
    if (!launch->buffers[i].output) continue;
    for (uint64_t at = 0; at < slots[i].size; at++)
      if (!slots[i].shadow[at].writer.who) {
        char text[200];
        snprintf(text, sizeof text, "byte %lu of %s, which has %lu", at, slots[i].name, slots[i].size);
        record("unwritten", text, {}, 0, 0);
        return;
      }
  }
}

}  // namespace

extern "C" {

unsigned long ei_products;

void ei_run(EiLaunch* wanted) {
  launch = wanted;
  faulted = false;
  serial++;
  random_engine.seed(launch->seed);
  if (!arena)
    arena = (char*)mmap(nullptr, kSlots * kSlot, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (int i = 0; i < kSlots; i++) slots[i].name = nullptr;
  for (int i = 0; i < launch->count; i++) {
    EiBuffer& buffer = launch->buffers[i];
    char* at = claim(i, buffer.name, buffer.size, buffer.lead, buffer.output, false);
    if (buffer.output) memset(at, 0xff, buffer.size);
    else memcpy(at + buffer.hole, (const char*)buffer.data + buffer.hole, buffer.size - buffer.hole);
    pointers[i] = at;
  }
  uint groups[3];
  for (int i = 0; i < 3; i++) groups[i] = (launch->grid[i] + launch->group[i] - 1) / launch->group[i];
  const uint3 counts = {groups[0], groups[1], groups[2]};
  launch->threadgroup_bytes = launch->threadgroup_read = 0;
  ei_products = 0;
  for (int index : in_order(0, groups[0] * groups[1] * groups[2])) {
    const uint3 position = {index % groups[0], index / groups[0] % groups[1], index / (groups[0] * groups[1])};
    uint size[3];
    for (int i = 0; i < 3; i++) size[i] = std::min(launch->group[i], launch->grid[i] - position[i] * launch->group[i]);
    threads_of_group = size[0] * size[1] * size[2];
    first_thread = index * kMostThreads;
    set_ids(position, size, counts);
    run_threadgroup(position);
    if (faulted) break;
  }
  launch->products = ei_products;
  if (!faulted) unwritten();
  for (int i = 0; i < launch->count; i++) {
    EiBuffer& buffer = launch->buffers[i];
    buffer.read = slots[i].read;
    buffer.written = slots[i].written;
    if (buffer.output) memcpy(buffer.data, pointers[i], buffer.size);
  }
}

const void* ei_exchange(const void* value, unsigned size, const char* operation, EiSite site) {
  const int group = current / 32, half = parity[group];
  memcpy(exchange[group][half] + current % 32 * 16, value, size);
  wait(State::simd, operation, 0, site);
  return exchange[group][half];
}
unsigned ei_lane() { return current % 32; }
unsigned ei_lanes() { return std::min(32, threads_of_group - current / 32 * 32); }
void ei_threadgroup_barrier(int flags, EiSite site) { wait(State::barrier, "threadgroup_barrier", flags, site); }
void ei_simdgroup_barrier(int flags, EiSite site) {
  wait(State::simd_barrier, "simdgroup_barrier", flags, site);
}
void ei_fail(const char* kind, const char* text, EiSite site) { stop(kind, text, site); }

void* ei_threadgroup_memory(int variable, unsigned long bytes, const char* name) {
  const int index = launch->count + variable;
  if (variable >= variables) {
    uint64_t total = bytes;
    for (int i = launch->count; i < index; i++) total += slots[i].size;
    if (total > kMostThreadgroupMemory) stop("threadgroup-memory", "more than 32 KiB", {});
    launch->threadgroup_bytes = std::max(launch->threadgroup_bytes, total);
    memset(claim(index, name, bytes, 0, true, true), 0xff, bytes);
    variables = variable + 1;
  }
  return arena + index * kSlot + kLead;
}

#define PC ((uint64_t)__builtin_return_address(0))
#define HOOKS(n)                                                                  \
  void __tsan_read##n(void* at) { access((uint64_t)at, n, false, true, PC); }     \
  void __tsan_write##n(void* at) { access((uint64_t)at, n, true, true, PC); }     \
  void __tsan_unaligned_read##n(void* at) { access((uint64_t)at, n, false, false, PC); } \
  void __tsan_unaligned_write##n(void* at) { access((uint64_t)at, n, true, false, PC); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_init() {}
void* __tsan_memcpy(void* to, const void* from, uint64_t size) {
  access((uint64_t)from, size, false, false, PC);
  access((uint64_t)to, size, true, false, PC);
  return memcpy(to, from, size);
}
void* __tsan_memset(void* to, int value, uint64_t size) {
  access((uint64_t)to, size, true, false, PC);
  return memset(to, value, size);
}

struct UbsanSite {
  const char* file;
  uint32_t line, column;
};
#define HANDLER(name, kind)                                                                       \
  void __ubsan_handle_##name(UbsanSite* site, ...) { stop(kind, #name, {site->file, int(site->line)}); }
HANDLER(out_of_bounds, "array-index")
HANDLER(shift_out_of_bounds, "arithmetic")
HANDLER(add_overflow, "arithmetic")
HANDLER(sub_overflow, "arithmetic")
HANDLER(mul_overflow, "arithmetic")
HANDLER(negate_overflow, "arithmetic")
HANDLER(divrem_overflow, "arithmetic")
HANDLER(float_cast_overflow, "arithmetic")
}

// float32 to bfloat16, to the nearest, ties to even: clang calls it where the processor has no such instruction.
extern "C" __bf16 __truncsfbf2(float value) {
  uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if (value != value) return __builtin_bit_cast(__bf16, uint16_t(bits >> 16 | 64));
  return __builtin_bit_cast(__bf16, uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
}
