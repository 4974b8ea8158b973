// Memory as a kernel sees it: every buffer in a slot of its own, and the check of every access. Also what a lane is,
// since the order of two accesses depends on who made them.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

typedef unsigned int uint;
typedef uint uint3 __attribute__((ext_vector_type(3)));

extern "C" {
struct EiSite {
  const char* file;
  int line;
};
struct EiIds {
  uint3 thread_position_in_grid, thread_position_in_threadgroup, threadgroup_position_in_grid, threads_per_threadgroup,
      threadgroups_per_grid, threads_per_grid;
  uint thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup,
      simdgroups_per_threadgroup, threads_per_simdgroup;
};
struct EiBuffer {
  const char* name;
  void* data;            // copied in, and out again where it is an output
  uint64_t size, lead;   // lead: bytes in front of it that belong to another array
  uint64_t hole;         // bytes at its start that are zero and take no memory
  int output;
  uint64_t read, written;
};
struct EiLaunch {
  void (*entry)(void* const*, const EiIds*);
  EiBuffer* buffers;
  int count;
  uint grid[3], group[3];
  int order;  // 0 forward, 1 reverse, 2 random
  uint seed;
  uint64_t threadgroup_bytes, threadgroup_read, products;  // filled in
  char kind[32], text[256], file[128];       // the fault
  int line;
  uint64_t pc, other_pc;
};
}

namespace {

constexpr uint64_t kSlot = 1ull << 32, kLead = 1 << 20, kStack = 1 << 16;
constexpr int kSlots = 64, kMostThreads = 1024;
constexpr uint64_t kMostThreadgroupMemory = 32768;

struct Access {
  uint32_t who = 0;  // 1 + thread of the grid; 0: nobody
  uint16_t barrier = 0, simd = 0;
  uint64_t pc = 0;
};
struct Shadow {  // of one byte of writable memory
  Access writer, last, other_group, other_lane;
  uint32_t serial = 0;  // threadgroup memory: the threadgroup that this is about
};

struct Slot {
  const char* name = nullptr;
  uint64_t size = 0, lead = 0, read = 0, written = 0, mapped = 0, shadowed = 0;
  bool writable = false, threadgroup = false;
  Shadow* shadow = nullptr;
};

enum class State { ready, simd, simd_barrier, barrier, done };

struct Lane {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  EiIds ids;
  State state = State::done;
  EiSite site;
  const char* operation = "";
  int flags = 0;
};

char* arena = nullptr;
Slot slots[kSlots];
std::vector<Lane> lanes(kMostThreads);
char exchange[kMostThreads / 32][2][32 * 16];
uint8_t parity[kMostThreads / 32];
uint16_t simd_barriers[2][kMostThreads / 32];  // of threadgroup memory, of device memory
uint16_t device_barriers, threadgroup_barriers;
void* scheduler_stack;
int current = -1, threads_of_group, variables;
uint32_t serial, first_thread;
void* pointers[kSlots];
EiLaunch* launch;
bool faulted;
std::mt19937 random_engine;

// Saves the callee-saved registers on this stack and goes on on another one.
extern "C" void ei_switch(void** from, void* to);
asm(R"(
.text
.globl ei_switch
ei_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");

void to_scheduler() { ei_switch(&lanes[current].stack_pointer, scheduler_stack); }

void record(const char* kind, const char* text, EiSite site, uint64_t pc, uint64_t other) {
  if (faulted) return;
  faulted = true;
  snprintf(launch->kind, sizeof launch->kind, "%s", kind);
  snprintf(launch->text, sizeof launch->text, "%s", text);
  snprintf(launch->file, sizeof launch->file, "%s", site.file ? site.file : "");
  launch->line = site.line;
  launch->pc = pc;
  launch->other_pc = other;
}

[[noreturn]] void stop(const char* kind, const char* text, EiSite site, uint64_t pc = 0, uint64_t other = 0) {
  record(kind, text, site, pc, other);
  to_scheduler();
  abort();  // a lane that faulted never runs again
}

bool ordered(const Access& before, bool threadgroup) {
  const uint32_t who = first_thread + current + 1;
  if (!before.who || before.who == who) return true;
  if (before.who <= first_thread || before.who > first_thread + threads_of_group) return false;  // another threadgroup
  if (before.barrier < (threadgroup ? threadgroup_barriers : device_barriers)) return true;
  const int group = (before.who - 1 - first_thread) / 32;
  return group == current / 32 && before.simd < simd_barriers[!threadgroup][group];
}

void access(uint64_t address, uint64_t size, bool write, bool aligned, uint64_t pc) {
  const uint64_t offset = address - (uint64_t)arena;
  if (offset >= kSlots * kSlot || current < 0) return;  // a thread's own memory
  Slot& slot = slots[offset / kSlot];
  const int64_t at = int64_t(offset % kSlot) - int64_t(kLead + slot.lead);
  char text[200];
  if (!slot.name || at < 0 || at + size > slot.size) {
    snprintf(text, sizeof text, "%s of %lu bytes at byte %ld of %s, which has %lu", write ? "write" : "read", size, at,
             slot.name ? slot.name : "nothing", slot.size);
    stop("bounds", text, {}, pc);
  }
  if (aligned && address % size) {
    snprintf(text, sizeof text, "%lu bytes at byte %ld of %s", size, at, slot.name);
    stop("misaligned", text, {}, pc);
  }
  (write ? slot.written : slot.read) += size;
  if (slot.threadgroup && !write) launch->threadgroup_read += size;
  if (!slot.writable) {
    if (write) stop("read-only", slot.name, {}, pc);
    return;
  }
  const Access now = {first_thread + current + 1, slot.threadgroup ? threadgroup_barriers : device_barriers,
                      simd_barriers[!slot.threadgroup][current / 32], pc};
  for (uint64_t i = 0; i < size; i++) {
    Shadow& byte = slot.shadow[at + i];
    if (slot.threadgroup && byte.serial != serial) byte = Shadow{{}, {}, {}, {}, serial};
    if (!write && !byte.writer.who) stop("uninitialised", slot.name, {}, pc);
    if (!ordered(byte.writer, slot.threadgroup)) stop("race", slot.name, {}, pc, byte.writer.pc);
    if (write) {
      for (const Access* reader : {&byte.last, &byte.other_group, &byte.other_lane})
        if (!ordered(*reader, slot.threadgroup)) stop("race", slot.name, {}, pc, reader->pc);
      byte.writer = now;
    } else {
      if (byte.last.who != now.who) {
        const bool same = byte.last.who && (byte.last.who - 1) / 32 == (now.who - 1) / 32;
        (same ? byte.other_lane : byte.other_group) = byte.last;
      }
      byte.last = now;
    }
  }
}

// A slot of the arena that nothing else can be reached from by running over an end.
char* claim(int index, const char* name, uint64_t size, uint64_t lead, bool writable, bool threadgroup) {
  Slot& slot = slots[index];
  char* start = arena + index * kSlot + kLead;
  const uint64_t wanted = (lead + size + 4095) / 4096 * 4096;
  if (wanted > slot.mapped) {
    mprotect(start, wanted, PROT_READ | PROT_WRITE);
    slot.mapped = wanted;
  }
  Shadow* shadow = slot.shadow;
  if (writable && !(threadgroup && slot.shadowed == size)) {
    delete[] shadow;
    shadow = new Shadow[size];
    slot.shadowed = size;
  }
  slot = Slot{name, size, lead, 0, 0, slot.mapped, slot.shadowed, writable, threadgroup, shadow};
  return start + lead;
}

}  // namespace
