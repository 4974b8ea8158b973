#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <new>

namespace edgeinfer {

namespace {

constexpr size_t HUGE = size_t(2) << 20;
constexpr size_t MAPPING = size_t(64) << 20;  // of which only what is written takes memory

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Mapping {
  Mapping(size_t wanted, bool huge) : size(wanted), reserved(wanted + HUGE) {
    start = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    memory = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(start), HUGE));
#ifdef MADV_HUGEPAGE
    if (huge) madvise(memory, size, MADV_HUGEPAGE);  // a wish: without it everything works, more slowly
#endif
  }
  ~Mapping() { munmap(start, reserved); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint8_t* memory;
  size_t size, used = 0;

 private:
  size_t reserved;
  void* start;
};

}  // namespace

std::shared_ptr<uint8_t[]> take_memory(size_t bytes) {
  static std::mutex busy;
  static std::weak_ptr<Mapping> latest;
  bytes = round_up(std::max<size_t>(bytes, 1), 64);
  const std::lock_guard lock(busy);
  std::shared_ptr<Mapping> mapping = latest.lock();
  if (!mapping || mapping->size - mapping->used < bytes) {
    mapping = std::make_shared<Mapping>(round_up(std::max(bytes, MAPPING), HUGE), true);
    latest = mapping;
  }
  uint8_t* memory = mapping->memory + mapping->used;
  mapping->used += bytes;
  return {std::move(mapping), memory};
}

std::shared_ptr<uint8_t[]> map_memory(size_t bytes) {
  constexpr size_t worth = 4 * HUGE;
  auto mapping = std::make_shared<Mapping>(round_up(std::max<size_t>(bytes, 1), HUGE), bytes >= worth);
  uint8_t* memory = mapping->memory;
  return {std::move(mapping), memory};
}

}  // namespace edgeinfer
