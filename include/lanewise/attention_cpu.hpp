// Defines the CPU side of attention.hpp. Include it in the one file of a program that instantiates:
//
//   #include <lanewise/attention_cpu.hpp>
//   template lanewise::status lanewise::forward<my_config>(on_cpu, forward_args<my_config> const&, my_variant const&, workspace) noexcept;
//
// or simply in every file that calls, when there are few.
#pragma once

#include "attention.hpp"
#include "cpu/backward.hpp"
#include "cpu/forward.hpp"
#include "cpu/parameter_gradient.hpp"
#include "cpu/thread_pool.hpp"

namespace lanewise {

inline cpu_target target_of(on_cpu on) noexcept { return cpu_target(cpu::threads_of(on)); }

namespace cpu {

/// Scratch of the parameter gradients: one after the other they use the same room.
template <config C, tuning T, class F>
std::size_t parameter_bytes(F const& f, int threads) {
  std::size_t most = 0;
  [&]<int... I>(std::integer_sequence<int, I...>) {
    ((most = parameter_gradient<I>(f) && parameter_gradient_kernel<C, T, F, I>::room_bytes() > most
                 ? parameter_gradient_kernel<C, T, F, I>::room_bytes()
                 : most), ...);
  }(std::make_integer_sequence<int, parameter_count<F>>{});
  return most * threads;
}

inline status no_kernel(cpu_isa isa) {
  return fail(status_code::unsupported, "this processor lacks the instruction set that on_cpu asks for: ",
              isa == cpu_isa::avx512 ? "avx512 (f, vl, dq, bw)" : isa == cpu_isa::avx2 ? "avx2 with fma" : "unknown");
}

}  // namespace cpu

template <config C, tuning T, class F>
std::size_t forward_workspace(cpu_target where, extents, extents, F const&) noexcept {
  static_assert(check_variant<F, false>());
  return cpu::forward_kernel<C, T, bound<F>>::bytes(where.threads);
}

template <config C, tuning T, class F>
std::size_t backward_workspace(cpu_target where, extents q, extents k, F const& given, wanted grads) noexcept {
  static_assert(check_variant<F, true>());
  auto const f = bind(given, cpu::shape_of(q, k));
  return cpu::backward_kernel<C, T, bound<F>>::bytes(q, grads.d_q, where.threads) +
         cpu::parameter_bytes<C, T>(f, where.threads);
}

template <config C, tuning T, class F>
status forward(on_cpu on, forward_args<C> const& a, F const& given, workspace scratch) noexcept {
  static_assert(check_variant<F, false>());
  if (status s = check(a); !s) return s;
  if (status s = validate(given, cpu::shape_of(a.q.size, a.k.size)); !s) return s;
  cpu::micro_kernels const* const run = cpu::kernels_for(on.isa);
  if (!run) return cpu::no_kernel(on.isa);
  if (status s = cpu::check_workspace(scratch, forward_workspace<C, T>(target_of(on), a.q.size, a.k.size, given)); !s) return s;
  auto const f = bind(given, cpu::shape_of(a.q.size, a.k.size));
  cpu::forward_kernel<C, T, bound<F>>(*run, a, f)(on.pool, scratch.data);
  status done;
  done.kernel = run->forward_name;
  return done;
}

template <config C, tuning T, class F>
status backward(on_cpu on, backward_args<C> const& a, F const& given, workspace scratch) noexcept {
  static_assert(check_variant<F, true>());
  if (status s = check(a); !s) return s;
  if (status s = validate(given, cpu::shape_of(a.q.size, a.k.size)); !s) return s;
  cpu::micro_kernels const* const run = cpu::kernels_for(on.isa);
  if (!run) return cpu::no_kernel(on.isa);
  wanted const grads{bool(a.d_q), bool(a.d_k), bool(a.d_v)};
  if (status s = cpu::check_workspace(scratch, backward_workspace<C, T>(target_of(on), a.q.size, a.k.size, given, grads)); !s) return s;
  auto const f = bind(given, cpu::shape_of(a.q.size, a.k.size));
  using kernel = cpu::backward_kernel<C, T, bound<F>>;
  int const threads = cpu::threads_of(on);
  kernel const run_backward(*run, a, f, threads, scratch.data);
  run_backward(on.pool);
  void* const rest = static_cast<std::byte*>(scratch.data) + kernel::bytes(a.q.size, grads.d_q, threads);
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (cpu::parameter_gradient_kernel<C, T, bound<F>, I>(a, f, run_backward)(on.pool, rest), ...);
  }(std::make_integer_sequence<int, parameter_count<bound<F>>>{});
  status done;
  done.kernel = run->backward_name;
  return done;
}

}  // namespace lanewise
