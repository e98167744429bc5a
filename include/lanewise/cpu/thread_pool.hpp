// A fixed set of threads that run one function together. The caller owns it and takes part as thread 0.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace lanewise {

class thread_pool {
 public:
  /// `threads` counts the caller; values below 1 are taken as 1. Throws std::system_error if a thread cannot start.
  explicit thread_pool(int threads = int(std::thread::hardware_concurrency())) : thread_pool(no_workers{}, threads) {
    for (int i = 1; i < size_; ++i) workers_.emplace_back([this, i] { serve(i); });
  }
  ~thread_pool() {
    stop_ = true;
    wake();
    for (auto& w : workers_) w.join();
  }
  thread_pool(thread_pool const&) = delete;
  thread_pool& operator=(thread_pool const&) = delete;

  int size() const { return size_; }

  /// Calls f(i) once for each i in 0 ... size()-1, each on its own thread, and returns when all are done. One run at a
  /// time, from one thread; f must not throw. Allocates nothing.
  template <class F>
  void run(F&& f) {
    if (size_ > 1) {
      context_ = const_cast<void*>(static_cast<void const*>(std::addressof(f)));
      call_ = [](void* context, int i) { (*static_cast<std::remove_reference_t<F>*>(context))(i); };
      pending_.store(size_ - 1, std::memory_order_relaxed);
      wake();
    }
    f(0);
    for (int left; (left = pending_.load(std::memory_order_acquire)) != 0;)
      pending_.wait(left, std::memory_order_acquire);
  }

 private:
  /// Completes the object before any thread starts: where one cannot, the destructor ends those that did.
  struct no_workers {};
  thread_pool(no_workers, int threads) : size_(threads < 1 ? 1 : threads) {}

  void wake() {
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
  }
  void serve(int i) {
    for (std::uint32_t seen = 0;;) {
      generation_.wait(seen, std::memory_order_acquire);
      seen = generation_.load(std::memory_order_acquire);
      if (stop_) return;
      call_(context_, i);
      if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
    }
  }

  int size_;
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<int> pending_{0};
  std::atomic<bool> stop_{false};
  void (*call_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace lanewise
