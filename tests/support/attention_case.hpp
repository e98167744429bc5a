// One random attention problem in memory, run through the engine on the CPU and through the reference.
// Outputs and workspaces are filled with NaN first, so that a value nobody wrote shows.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <lanewise/attention_cpu.hpp>
#include <lanewise/reference.hpp>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

namespace testing {

using namespace lanewise;

inline std::vector<float> normal(std::int64_t count, unsigned seed, float deviation = 1.f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> draw(0.f, deviation);
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& e : x) e = draw(engine);
  return x;
}

template <class T>
std::vector<T> stored(std::vector<float> const& x) {
  std::vector<T> y(x.size());
  std::transform(x.begin(), x.end(), y.begin(), [](float e) { return from_float<T>(e); });
  return y;
}

/// Aligned scratch, every byte 0xff: NaN in all storage types.
class scratch_memory {
 public:
  explicit scratch_memory(std::size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(::operator new(bytes + guard, std::align_val_t(workspace_alignment)))) {
    std::memset(data_, 0xff, bytes + guard);
  }
  ~scratch_memory() {
    for (std::size_t i = 0; i < guard; ++i) CHECK(data_[bytes_ + i] == std::byte{0xff});  // nobody wrote past the end
    ::operator delete(data_, std::align_val_t(workspace_alignment));
  }
  scratch_memory(scratch_memory const&) = delete;
  scratch_memory& operator=(scratch_memory const&) = delete;
  operator workspace() const { return {data_, bytes_}; }

 private:
  static constexpr std::size_t guard = 256;
  std::size_t bytes_;
  std::byte* data_;
};

struct sizes {
  std::int64_t batch = 1, q = 64, k = 64, q_heads = 2, kv_heads = 2;
};

/// Everything one forward and backward reads and writes, dense.
template <config C>
struct attention_case {
  using E = element<C>;
  using G = gradient<C>;
  extents q_size, k_size, lse_size;
  std::vector<E> q, k, v, d_o, o;
  std::vector<float> lse, d_lse;
  std::vector<G> d_q, d_k, d_v;
  float scale = default_scale(C.head_dim);
  bool accumulate = false, with_d_lse = true;

  explicit attention_case(sizes s, unsigned seed = 1, float deviation = 1.f)
      : q_size{s.batch, s.q, s.q_heads, C.head_dim}, k_size{s.batch, s.k, s.kv_heads, C.head_dim}, lse_size{s.batch,
                                                                                                            s.q,
                                                                                                            s.q_heads,
                                                                                                            1},
        q(stored<E>(normal(q_size.count(), seed, deviation))),
        k(stored<E>(normal(k_size.count(), seed + 1, deviation))), v(stored<E>(normal(k_size.count(), seed + 2))),
        d_o(stored<E>(normal(q_size.count(), seed + 3))), d_lse(normal(lse_size.count(), seed + 4)) {
    clear();
  }

  void clear() {
    auto const nan_fill = [](auto& x, std::int64_t n) {
      x.resize(static_cast<std::size_t>(n));
      if (n > 0) std::memset(static_cast<void*>(x.data()), 0xff, x.size() * sizeof(x[0]));
    };
    nan_fill(o, q_size.count()), nan_fill(lse, lse_size.count());
    nan_fill(d_q, q_size.count()), nan_fill(d_k, k_size.count()), nan_fill(d_v, k_size.count());
  }

  forward_args<C> forward_call() {
    return {.q = view<E>(q.data(), q_size),
            .k = view<E>(k.data(), k_size),
            .v = view<E>(v.data(), k_size),
            .o = {o.data(), q_size},
            .lse = {lse.data(), lse_size},
            .scale = scale};
  }
  backward_args<C> backward_call() {
    backward_args<C> a{.q = view<E>(q.data(), q_size),
                       .k = view<E>(k.data(), k_size),
                       .v = view<E>(v.data(), k_size),
                       .o = view<E>(o.data(), q_size),
                       .lse = view<float>(lse.data(), lse_size),
                       .d_o = view<E>(d_o.data(), q_size),
                       .d_q = {d_q.data(), q_size},
                       .d_k = {d_k.data(), k_size},
                       .d_v = {d_v.data(), k_size},
                       .accumulate = accumulate,
                       .scale = scale};
    if (with_d_lse) a.d_lse = view<float>(d_lse.data(), lse_size);
    return a;
  }

  template <tuning T = tuning{}, class F>
  void run(on_cpu on, F const& f, forward_args<C> fwd, backward_args<C> bwd) {
    {
      scratch_memory const scratch(forward_workspace<C, T>(target_of(on), q_size, k_size, f));
      status const s = forward<C, T>(on, fwd, f, scratch);
      REQUIRE_MESSAGE(bool(s), s.message());
    }
    scratch_memory const scratch(
        backward_workspace<C, T>(target_of(on), q_size, k_size, f, {bool(bwd.d_q), bool(bwd.d_k), bool(bwd.d_v)}));
    status const s = backward<C, T>(on, bwd, f, scratch);
    REQUIRE_MESSAGE(bool(s), s.message());
  }
  template <tuning T = tuning{}, class F>
  void run(on_cpu on, F const& f) {
    run<T>(on, f, forward_call(), backward_call());
  }

  template <class F>
  reference::result expected(F const& f, reference::arithmetic how = reference::exact) const {
    reference::problem<E> p{.q = {q.data(), q_size},
                            .k = {k.data(), k_size},
                            .v = {v.data(), k_size},
                            .d_o = {d_o.data(), q_size},
                            .scale = scale,
                            .empty_lse = C.empty_lse};
    if (with_d_lse) p.d_lse = {d_lse.data(), lse_size};
    return reference::attention(p, f, how);
  }
};

/// ||x - r|| / ||r||; with r all zero, the norm of x.
template <class T>
double relative_error(std::vector<T> const& x, std::vector<double> const& r) {
  REQUIRE(x.size() == r.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < r.size(); ++i) {
    double const got = to_float(x[i]);
    difference += (got - r[i]) * (got - r[i]);
    norm += r[i] * r[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

inline double relative_error(std::vector<double> const& x, std::vector<double> const& r) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < r.size(); ++i) difference += (x[i] - r[i]) * (x[i] - r[i]), norm += r[i] * r[i];
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

/// The tolerance of one tensor: 5e-6 in f32; else twice the error of the same-precision reference plus two spacings of
/// the output type.
template <class T>
double tolerance(bool f32, std::vector<double> const& same_precision, std::vector<double> const& exact) {
  return f32 ? 5e-6 : 2 * relative_error(same_precision, exact) + 2 * epsilon_of<T>;
}

/// Runs f and compares o, lse and the gradients with the f64 reference. Every reference gradient must be non-zero, or
/// the comparison would say nothing.
template <config C, tuning T = tuning{}, class F>
void compare_with_reference(on_cpu on, attention_case<C>& c, F const& f) {
  constexpr bool f32 = sizeof(element<C>) == 4;
  c.template run<T>(on, f);
  auto const exact = c.expected(f);
  auto const rounded = f32 ? exact : c.expected(f, reference::same_precision<C>);
  CHECK(relative_error(c.o, exact.o) <= tolerance<element<C>>(f32, rounded.o, exact.o));
  CHECK(relative_error(c.lse, exact.lse) <= (f32 ? 5e-6 : 2 * relative_error(rounded.lse, exact.lse) + 5e-6));
  for (auto const* r : {&exact.d_q, &exact.d_k, &exact.d_v})
    REQUIRE(std::any_of(r->begin(), r->end(), [](double x) { return x != 0; }));
  CHECK(relative_error(c.d_q, exact.d_q) <= tolerance<gradient<C>>(f32, rounded.d_q, exact.d_q));
  CHECK(relative_error(c.d_k, exact.d_k) <= tolerance<gradient<C>>(f32, rounded.d_k, exact.d_k));
  CHECK(relative_error(c.d_v, exact.d_v) <= tolerance<gradient<C>>(f32, rounded.d_v, exact.d_v));
}

template <class T>
bool same_bits(std::vector<T> const& x, std::vector<T> const& y) {
  return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0);
}

template <class T>
bool all_finite(std::vector<T> const& x) {
  return std::all_of(x.begin(), x.end(), [](T e) { return std::isfinite(to_float(e)); });
}

/// The instruction sets that this processor has.
inline std::vector<cpu_isa> instruction_sets() {
  std::vector<cpu_isa> sets;
  for (cpu_isa isa : {cpu_isa::portable, cpu_isa::avx2, cpu_isa::avx512})
    if (cpu::supports(isa)) sets.push_back(isa);
  return sets;
}

}  // namespace testing
