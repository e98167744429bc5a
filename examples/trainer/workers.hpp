// How a step's work is cut and shared out. Pieces are fixed by the problem's size and write disjoint results, so every
// number of threads gives the same bits; which thread takes which piece is open, so a busy core delays no one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <lanewise/cpu/thread_pool.hpp>

#include "blas.hpp"

namespace trainer {

class workers {
 public:
  /// Nothing runs: the step's code is walked through only to plan its memory.
  workers() = default;
  /// From here on OpenBLAS runs every product on the thread that calls it (blas.hpp says why).
  explicit workers(lanewise::thread_pool& pool) : pool_(&pool) { keep_blas_single_threaded(); }

  bool planning() const { return pool_ == nullptr; }
  lanewise::thread_pool& pool() const { return *pool_; }

  /// Threads that the plan is made for; attention's workspace depends on it.
  int threads() const { return planning() ? planned_threads_ : pool_->size(); }
  static workers planning_for(int threads) {
    workers w;
    w.planned_threads_ = threads;
    return w;
  }

  /// f(i) once for each i in 0 ... count-1.
  template <class F>
  void each(std::int64_t count, F const& f) const {
    if (planning()) return;
    std::atomic<std::int64_t> next{0};
    pool_->run([&](int) {
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) f(i);
    });
  }

  /// f(begin, end, piece) for the pieces of `grain` items that make up 0 ... count-1; the last may be shorter.
  template <class F>
  void pieces(std::int64_t count, std::int64_t grain, F const& f) const {
    each(piece_count(count, grain), [&](std::int64_t i) { f(i * grain, std::min(count, (i + 1) * grain), i); });
  }
  static constexpr std::int64_t piece_count(std::int64_t count, std::int64_t grain) {
    return (count + grain - 1) / grain;
  }

 private:
  lanewise::thread_pool* pool_ = nullptr;
  int planned_threads_ = 1;
};

}  // namespace trainer
