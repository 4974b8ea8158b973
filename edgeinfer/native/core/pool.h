// A pool of threads that stays awake between the many short jobs of a token.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace edgeinfer {

// One job at a time: `count` pieces, each claimed by whichever thread is free. The caller works too, and waits for
// pieces that others have claimed, never for a thread that sleeps. A caller that finds the pool taken by another runs
// its job alone.
class Pool {
 public:
  static Pool& shared();

  // Calls job(i) for i in [0, count); job must not throw.
  template <typename Job>
  void run(int count, const Job& job) {
    run_pieces(count, [](const void* job, int i) { (*static_cast<const Job*>(job))(i); }, &job);
  }

  int threads() const { return threads_.load(std::memory_order_relaxed); }
  void resize(int threads);  // the caller's included; at least one

 private:
  using Piece = void (*)(const void* job, int i);

  void run_pieces(int count, Piece piece, const void* job);
  bool work_on_ticket();
  void worker();
  void stop();

  static constexpr int max_pieces = (1 << 20) - 1;

  std::mutex busy_;
  std::vector<std::thread> workers_;
  std::atomic<int> threads_{1};
  std::atomic<bool> stopping_{false};

  Piece piece_ = nullptr;
  const void* job_ = nullptr;
  alignas(64) std::atomic<uint64_t> ticket_{0};  // number of the job << 40 | pieces << 20 | next piece
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<uint32_t> wakes_{0};
  std::atomic<int> asleep_{0};
};

}  // namespace edgeinfer
