// Flash attention, forward and backward: what every caller includes. Declarations and argument checks only: no CUDA, no
// intrinsics, no threads. One file of the program includes attention_cpu.hpp (or attention.cuh) and instantiates.
//
//   S = scale Q K^T,  P = softmax(mask(score(S))),  O = P V,  LSE = log(sum(exp(S)))            Dao et al. 2022, 2023
//   delta = rowsum(dO * O) - dLSE,  dV = P^T dO,  dS = P * (dO V^T - delta),  dQ = scale dS K,  dK = scale dS^T Q
//
// Layouts: every tensor is a view [batch, sequence, heads, head_dim] with its own strides; LSE is [batch, sequence,
// heads, 1] in natural logarithm. Nothing is allocated, nothing throws, no state is kept between calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "checks.hpp"
#include "config.hpp"
#include "status.hpp"
#include "tensor.hpp"
#include "variant.hpp"

struct CUstream_st;  // cudaStream_t without the toolkit

namespace lanewise {

class thread_pool;

/// Which instructions the CPU kernels use. `automatic` asks the processor once per call.
enum class cpu_isa { automatic, portable, avx2, avx512 };

/// Run on the CPU, on the caller's threads: `on_cpu{}` uses the calling thread alone, `on_cpu{pool}` the pool's.
/// Results are bitwise equal for any number of threads.
struct on_cpu {
  thread_pool* pool = nullptr;
  cpu_isa isa = cpu_isa::automatic;
  constexpr on_cpu() = default;
  constexpr on_cpu(thread_pool& pool, cpu_isa isa = cpu_isa::automatic) : pool(&pool), isa(isa) {}
  constexpr explicit on_cpu(cpu_isa isa) : isa(isa) {}
};

/// Run on the GPU, in this stream, on the device that is current.
struct on_cuda {
  CUstream_st* stream = nullptr;
};

/// What workspace sizes depend on besides the problem. A plan for another machine needs only its target.
struct cpu_target {
  int threads;
  constexpr explicit cpu_target(int threads) : threads(threads) {}
};

/// A GPU of compute capability sm / 10 (90 for an H200) with so many multiprocessors; zeros: no device.
struct cuda_target {
  int sm = 0;
  int multiprocessors = 0;
};

/// The machine that a call will run on.
cpu_target target_of(on_cpu) noexcept;
cuda_target target_of(on_cuda) noexcept;

/// Which gradients a backward will be asked for; only these count in its workspace.
struct wanted {
  bool d_q = true, d_k = true, d_v = true;
};

template <config C>
struct forward_args {
  static_assert(check_config<C>());
  view<element<C> const> q;                 ///< [B, Sq, Hq, D]
  view<element<C> const> k;                 ///< [B, Sk, Hkv, D]
  view<element<C> const> v;                 ///< [B, Sk, Hkv, D]
  view<element<C>> o;                       ///< [B, Sq, Hq, D]
  view<float> lse{};                        ///< [B, Sq, Hq, 1]; may be left out when no backward follows
  float scale = default_scale(C.head_dim);  ///< of q.k, before score and mask
};

template <config C>
struct backward_args {
  static_assert(check_config<C>());
  view<element<C> const> q, k, v;           ///< as in the forward
  view<element<C> const> o;                 ///< what the forward wrote
  view<float const> lse;                    ///< what the forward wrote
  view<element<C> const> d_o;               ///< gradient of o
  view<float const> d_lse{};                ///< gradient of lse; left out: zero
  view<gradient<C>> d_q{}, d_k{}, d_v{};    ///< each may be left out: not wanted
  bool accumulate = false;                  ///< d_q, d_k, d_v and parameter gradients are added to, not overwritten
  float scale = default_scale(C.head_dim);  ///< the forward's
};

/// o and lse of attention under variant f. Defined in attention_cpu.hpp and attention.cuh.
template <config C, tuning T = tuning{}, class F = full>
status forward(on_cpu on, forward_args<C> const& a, F const& f = F{}, workspace scratch = {}) noexcept;
template <config C, tuning T = tuning{}, class F = full>
status forward(on_cuda on, forward_args<C> const& a, F const& f = F{}, workspace scratch = {}) noexcept;

/// d_q, d_k, d_v and the gradients of the variant's parameters. Bitwise reproducible: every sum has a fixed order.
template <config C, tuning T = tuning{}, class F = full>
status backward(on_cpu on, backward_args<C> const& a, F const& f = F{}, workspace scratch = {}) noexcept;
template <config C, tuning T = tuning{}, class F = full>
status backward(on_cuda on, backward_args<C> const& a, F const& f = F{}, workspace scratch = {}) noexcept;

/// Exact bytes of scratch that a call on `where` needs; q and k are the extents of those tensors. Pure host functions.
template <config C, tuning T = tuning{}, class F = full>
std::size_t forward_workspace(cpu_target where, extents q, extents k, F const& f = F{}) noexcept;
template <config C, tuning T = tuning{}, class F = full>
std::size_t forward_workspace(cuda_target where, extents q, extents k, F const& f = F{}) noexcept;
template <config C, tuning T = tuning{}, class F = full>
std::size_t backward_workspace(cpu_target where, extents q, extents k, F const& f = F{}, wanted grads = {}) noexcept;
template <config C, tuning T = tuning{}, class F = full>
std::size_t backward_workspace(cuda_target where, extents q, extents k, F const& f = F{}, wanted grads = {}) noexcept;

/// Turns a run-time head dim into a template argument:
///   dispatch<64, 96, 128>(d, [&]<int D> { return forward<config{.head_dim = D}>(...); })
/// calls the one that equals d; an unlisted value is status_code::unsupported.
template <int... Values, class Call>
status dispatch(std::int64_t value, Call const& call) {
  sentence refusal(status_code::unsupported);
  refusal << "dispatch: " << value << " is not among the values that this program was compiled for:";
  ((refusal << " " << Values), ...);
  status result = refusal;
  static_cast<void>(((value == Values && (result = call.template operator()<Values>(), true)) || ...));
  return result;
}

/// The checks of a forward call: sizes, strides, aliases. Every backend runs them first; call it to validate early.
template <config C>
status check(forward_args<C> const& a) noexcept {
  return detail::check_forward({C.head_dim, C.gqa_ratio, a.scale}, detail::describe("q", a.q),
                               detail::describe("k", a.k), detail::describe("v", a.v), detail::describe("o", a.o),
                               detail::describe("lse", a.lse));
}

/// The checks of a backward call.
template <config C>
status check(backward_args<C> const& a) noexcept {
  return detail::check_backward({C.head_dim, C.gqa_ratio, a.scale}, detail::describe("q", a.q),
                                detail::describe("k", a.k), detail::describe("v", a.v), detail::describe("o", a.o),
                                detail::describe("lse", a.lse), detail::describe("d_o", a.d_o),
                                detail::describe("d_lse", a.d_lse), detail::describe("d_q", a.d_q),
                                detail::describe("d_k", a.d_k), detail::describe("d_v", a.d_v));
}

/// One sentence per mistake, at the door, so that it comes before any template backtrace.
template <class F, bool Backward>
constexpr bool check_variant() {
  static_assert(variant<F>,
                "variant: needs bool operator()(position) const, float operator()(float, position) const or float "
                "operator()(row) const");
  if constexpr (Backward && variant<F>)
    static_assert(differentiable<F>,
                  "variant: a score needs float grad(float, position) const before a backward can use it");
  return true;
}

}  // namespace lanewise
