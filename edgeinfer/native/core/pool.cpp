#include "pool.h"

#include <algorithm>
#include <chrono>

namespace edgeinfer {

namespace {

constexpr auto awake = std::chrono::microseconds(100);  // between jobs, before a worker sleeps
constexpr uint64_t piece_mask = (1 << 20) - 1;

int next_of(uint64_t ticket) { return int(ticket & piece_mask); }
int count_of(uint64_t ticket) { return int(ticket >> 20 & piece_mask); }

}  // namespace

Pool& Pool::shared() {
  static Pool* pool = new Pool;  // never destroyed: its threads may outlive static objects
  return *pool;
}

void Pool::resize(int threads) {
  const std::lock_guard lock(busy_);
  stop();
  for (int i = 1; i < threads; i++) workers_.emplace_back([this] { worker(); });
  threads_.store(std::max(threads, 1), std::memory_order_relaxed);
}

void Pool::stop() {
  stopping_.store(true);
  wakes_.fetch_add(1);
  wakes_.notify_all();
  for (std::thread& each : workers_) each.join();
  workers_.clear();
  stopping_.store(false);
}

void Pool::run_pieces(int count, Piece piece, const void* job) {
  const std::unique_lock lock(busy_, std::try_to_lock);
  if (!lock || count <= 1 || count > max_pieces || workers_.empty()) {
    for (int i = 0; i < count; i++) piece(job, i);
    return;
  }
  piece_ = piece;
  job_ = job;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t number = (ticket_.load(std::memory_order_relaxed) >> 40) + 1;
  ticket_.store(number << 40 | uint64_t(count) << 20, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst) > 0) {
    wakes_.fetch_add(1);
    wakes_.notify_all();
  }
  while (work_on_ticket()) {}
  while (done_.load(std::memory_order_acquire) < count) std::this_thread::yield();
}

// Claims and does one piece of the present job. Its fields are read after the claim: until the piece is done, the
// caller cannot start another job.
bool Pool::work_on_ticket() {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  do {
    if (next_of(ticket) >= count_of(ticket)) return false;
  } while (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire));
  piece_(job_, next_of(ticket));
  done_.fetch_add(1, std::memory_order_release);
  return true;
}

void Pool::worker() {
  auto last = std::chrono::steady_clock::now();
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (work_on_ticket()) {
      last = std::chrono::steady_clock::now();
      continue;
    }
    std::this_thread::yield();
    if (std::chrono::steady_clock::now() - last < awake) continue;
    const uint32_t seen = wakes_.load();
    asleep_.fetch_add(1);
    const uint64_t ticket = ticket_.load(std::memory_order_seq_cst);
    if (next_of(ticket) >= count_of(ticket) && !stopping_.load()) wakes_.wait(seen);
    asleep_.fetch_sub(1);
    last = std::chrono::steady_clock::now();
  }
}

}  // namespace edgeinfer
