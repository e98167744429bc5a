// What the tests of the GPU's ops share: a body of calls runs on the CPU in f64 and f32 and on the GPU, and the results
// are compared. The GPU's error is at most twice that of the CPU's f32 plus a floor, by default 2e-7, three roundings
// of f32; two runs on the GPU give the same bits.
#pragma once

#include <memory>

#include "device.hpp"
#include "support.hpp"

namespace test {

/// Arrays where an ops implementation works. Numbers go in and come out as doubles; room begins as NaN.
template <class T>
class ops_bench {
 public:
  ops_bench(trainer::ops<T> const& op, trainer::dit_ops<T> const& dit, trainer::plan_memory const& where)
      : op(op), dit(dit), where_(where) {}
  ~ops_bench() {
    for (std::byte* p : taken_) where_.release(p);
  }
  ops_bench(ops_bench const&) = delete;

  template <class U>
  U* take(std::int64_t count) {
    std::size_t const bytes = (std::size_t(count) * sizeof(U) + 127) / 128 * 128;
    taken_.push_back(where_.allocate(std::max<std::size_t>(bytes, 128), 128));
    where_.fill(taken_.back(), 0xff, bytes);
    return reinterpret_cast<U*>(taken_.back());
  }
  T* room(std::int64_t count) { return take<T>(count); }
  std::byte* scratch(std::size_t bytes) { return take<std::byte>(std::int64_t(bytes)); }
  template <class U>
  U* put_as(std::vector<U> const& x) {
    U* const p = take<U>(std::int64_t(x.size()));
    op.upload(std::int64_t(x.size()), x.data(), p);
    return p;
  }
  T* put(std::vector<double> const& x) { return put_as(std::vector<T>(x.begin(), x.end())); }
  /// Appends x[count] to the results.
  template <class U>
  void keep(U const* x, std::int64_t count) {
    std::vector<U> host(static_cast<std::size_t>(count));
    op.download(count, x, host.data());
    results.emplace_back(host.begin(), host.end());
  }

  trainer::ops<T> const& op;
  trainer::dit_ops<T> const& dit;
  std::vector<std::vector<double>> results;

 private:
  trainer::plan_memory const& where_;
  std::vector<std::byte*> taken_;
};

/// Numbers that f32 holds exactly, so that every implementation reads the same.
inline std::vector<double> numbers(std::int64_t count, unsigned seed, double deviation = 1) {
  std::vector<float> const x = normal<float>(std::size_t(count), seed, deviation);
  return {x.begin(), x.end()};
}

struct ops_fixture {
  lanewise::thread_pool pool{2};
  std::unique_ptr<trainer::device> gpu = trainer::make_cuda_device(trainer::arithmetic::f32);

  template <class T, class Body>
  std::vector<std::vector<double>> on_cpu(Body const& body) {
    trainer::cpu_ops<T> const op{trainer::workers(pool)};
    trainer::cpu_dit_ops<T> const dit{trainer::workers(pool)};
    ops_bench<T> b(op, dit, trainer::host_memory());
    body(b);
    return b.results;
  }
  template <class Body>
  static std::vector<std::vector<double>> on_gpu(trainer::device const& gpu, Body const& body) {
    ops_bench<float> b(gpu.op(), gpu.dit(), gpu.memory());
    body(b);
    return b.results;
  }
  template <class Body>
  void compare(Body const& body, double floor = 2e-7) {
    auto const right = on_cpu<double>(body), same = on_cpu<float>(body);
    auto const first = on_gpu(*gpu, body), again = on_gpu(*gpu, body);
    REQUIRE(right.size() == first.size());
    REQUIRE(first.size() > 0);
    for (std::size_t i = 0; i < right.size(); ++i) {
      INFO("result ", i);
      CHECK(relative_error(first[i], right[i]) <= 2 * relative_error(same[i], right[i]) + floor);
      CHECK(first[i] == again[i]);
    }
  }
};

}  // namespace test
