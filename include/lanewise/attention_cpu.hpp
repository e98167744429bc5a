// Defines the CPU side of attention.hpp. Include it in the one file of a program that instantiates:
//
//   #include <lanewise/attention_cpu.hpp>
//   template lanewise::status lanewise::forward<my_config>(on_cpu, forward_args<my_config> const&, my_variant const&,
//   workspace) noexcept;
//
// and the like for backward, forward_workspace and backward_workspace, as far as they are called. Or include it in
// every file that calls, when there are few.
#pragma once

#include "attention.hpp"
#include "cpu/backward.hpp"
#include "cpu/forward.hpp"
#include "cpu/parameter_gradient.hpp"
#include "cpu/thread_pool.hpp"
#include "parameters.hpp"

namespace lanewise {

/// Emitted wherever this header is seen: files that include attention.hpp alone link against it.
[[gnu::used]] inline cpu_target target_of(on_cpu on) noexcept { return cpu_target(cpu::threads_of(on)); }

namespace cpu {

inline status no_kernel(cpu_isa isa) {
  return fail(status_code::unsupported, "this processor lacks the instruction set that on_cpu asks for: ",
              isa == cpu_isa::avx512 ? "avx512 (f, vl, dq, bw)"
              : isa == cpu_isa::avx2 ? "avx2 with fma"
                                     : "unknown");
}

constexpr std::size_t larger(std::size_t a, std::size_t b) { return a > b ? a : b; }

/// The kernel classes for one kind of operands.
template <config C, tuning T, class F, template <config, int, int> class Forward,
          template <config, int, int> class Backward>
struct kernels {
  using forward = forward_kernel<C, T, F, Forward>;
  using backward = backward_kernel<C, T, F, Backward>;
  template <int I>
  using parameter = parameter_gradient_kernel<C, T, F, Backward, I>;

  /// Scratch of the parameter gradients, which use the same room one after the other.
  static std::size_t parameter_bytes(F const& f, int threads) {
    std::size_t most = 0;
    for_each_parameter<F>([&]<int I> {
      if (parameter_gradient<I>(f)) most = larger(most, parameter<I>::room_bytes());
    });
    return most * threads;
  }

  static std::size_t backward_bytes(F const& f, extents q, bool want_q, int threads) {
    return backward::bytes(q, want_q, threads) + parameter_bytes(f, threads);
  }

  static void run_backward(micro_kernels const& run, on_cpu on, backward_args<C> const& a, F const& f, void* scratch) {
    int const threads = threads_of(on);
    backward const kernel(run, a, f, threads, scratch);
    kernel(on.pool);
    void* const rest = static_cast<std::byte*>(scratch) + backward::bytes(a.q.size, bool(a.d_q), threads);
    for_each_parameter<F>([&]<int I> { parameter<I>(a, f, kernel)(on.pool, rest); });
  }
};

template <config C, tuning T, class F>
using f32_kernels = kernels<C, T, F, f32_forward_operands, f32_backward_operands>;
template <config C, tuning T, class F>
using bf16_kernels = kernels<C, T, F, bf16_forward_operands, bf16_backward_operands>;

/// bf16 products are for precision::bf16 alone: bf16_split and the f32 classes are computed in f32.
template <config C>
inline constexpr bool may_use_bf16 = C.precision == precision::bf16;

}  // namespace cpu

template <config C, tuning T, class F>
std::size_t forward_workspace(cpu_target where, extents, extents, F const&) noexcept {
  static_assert(check_variant<F, false>());
  std::size_t bytes = cpu::f32_kernels<C, T, bound<F>>::forward::bytes(where.threads);
  if constexpr (cpu::may_use_bf16<C>)
    bytes = cpu::larger(bytes, cpu::bf16_kernels<C, T, bound<F>>::forward::bytes(where.threads));
  return bytes;
}

template <config C, tuning T, class F>
std::size_t backward_workspace(cpu_target where, extents q, extents k, F const& given, wanted grads) noexcept {
  static_assert(check_variant<F, true>());
  auto const f = bind(given, shape_of(q, k));
  std::size_t bytes = cpu::f32_kernels<C, T, bound<F>>::backward_bytes(f, q, grads.d_q, where.threads);
  if constexpr (cpu::may_use_bf16<C>)
    bytes = cpu::larger(bytes, cpu::bf16_kernels<C, T, bound<F>>::backward_bytes(f, q, grads.d_q, where.threads));
  return bytes;
}

template <config C, tuning T, class F>
status forward(on_cpu on, forward_args<C> const& a, F const& given, workspace scratch) noexcept {
  static_assert(check_variant<F, false>());
  if (status s = check(a); !s) return s;
  if (status s = validate(given, shape_of(a.q.size, a.k.size)); !s) return s;
  cpu::micro_kernels const* run = cpu::kernels_for(on.isa);
  if (!run) return cpu::no_kernel(on.isa);
  if (status s = detail::check_workspace(scratch, forward_workspace<C, T>(target_of(on), a.q.size, a.k.size, given));
      !s)
    return s;
  auto const f = bind(given, shape_of(a.q.size, a.k.size));
  status done;
  if constexpr (cpu::may_use_bf16<C>)
    if (cpu::micro_kernels const* const bf16 = cpu::bf16_kernels_for(on.isa)) {
      typename cpu::bf16_kernels<C, T, bound<F>>::forward(*bf16, a, f)(on.pool, scratch.data);
      done.kernel = bf16->forward_name;
      return done;
    }
  typename cpu::f32_kernels<C, T, bound<F>>::forward(*run, a, f)(on.pool, scratch.data);
  done.kernel = run->forward_name;
  return done;
}

template <config C, tuning T, class F>
status backward(on_cpu on, backward_args<C> const& a, F const& given, workspace scratch) noexcept {
  static_assert(check_variant<F, true>());
  if (status s = check(a); !s) return s;
  if (status s = validate(given, shape_of(a.q.size, a.k.size)); !s) return s;
  cpu::micro_kernels const* const run = cpu::kernels_for(on.isa);
  if (!run) return cpu::no_kernel(on.isa);
  wanted const grads{bool(a.d_q), bool(a.d_k), bool(a.d_v)};
  if (status s =
          detail::check_workspace(scratch, backward_workspace<C, T>(target_of(on), a.q.size, a.k.size, given, grads));
      !s)
    return s;
  auto const f = bind(given, shape_of(a.q.size, a.k.size));
  if (status s = check_parameters(a, f); !s) return s;
  status done;
  if constexpr (cpu::may_use_bf16<C>)
    if (cpu::micro_kernels const* const bf16 = cpu::bf16_kernels_for(on.isa)) {
      cpu::bf16_kernels<C, T, bound<F>>::run_backward(*bf16, on, a, f, scratch.data);
      done.kernel = bf16->backward_name;
      return done;
    }
  cpu::f32_kernels<C, T, bound<F>>::run_backward(*run, on, a, f, scratch.data);
  done.kernel = run->backward_name;
  return done;
}

}  // namespace lanewise
