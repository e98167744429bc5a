// The engine's instances: every head dim of one precision and direction, in a file of its own so that builds stay
// short.
#pragma once

#include <lanewise/attention_cpu.hpp>
#include <lanewise/config.hpp>
#include <new>
#include <type_traits>

#include "problem.hpp"

namespace parity {

/// Head dims that parity is compiled for: powers of two, three quarters of them, and some that fill no vector evenly.
template <int... D>
struct int_list {};
using head_dims = int_list<8, 16, 32, 40, 64, 72, 80, 96, 120, 128, 192, 256>;
/// For bf16_split, and for gradients in f32 from 16-bit storage: the kernels are the same but for the last store.
using few_head_dims = int_list<40, 64, 72, 128>;

template <lanewise::precision P, lanewise::gradient_type G = lanewise::gradient_type::storage>
using head_dims_of = std::conditional_t<P == lanewise::precision::bf16_split || G == lanewise::gradient_type::f32,
                                        few_head_dims, head_dims>;

/// One call per precision that the CPU tells apart (f32, f16, bf16, bf16_split), gradient type, direction and variant.
/// Defined by the engine_*.cpp files.
template <lanewise::precision P, class F>
lanewise::status forward_of(problem const& p, outputs& out, lanewise::on_cpu on, F const& f);
template <lanewise::precision P, lanewise::gradient_type G, class F>
lanewise::status backward_of(problem const& p, outputs& out, lanewise::on_cpu on, F const& f);

/// 128-byte aligned scratch.
class scratch {
 public:
  explicit scratch(std::size_t bytes)
      : bytes_(bytes), data_(bytes ? ::operator new(bytes, std::align_val_t(lanewise::workspace_alignment)) : nullptr) {
  }
  ~scratch() { ::operator delete(data_, std::align_val_t(lanewise::workspace_alignment)); }
  scratch(scratch const&) = delete;
  scratch& operator=(scratch const&) = delete;
  lanewise::workspace get() const { return {data_, bytes_}; }

 private:
  std::size_t bytes_;
  void* data_;
};

template <lanewise::config C, class F>
lanewise::status call_forward(problem const& p, outputs& out, lanewise::on_cpu on, F const& f) {
  using E = lanewise::element<C>;
  scratch const room(lanewise::forward_workspace<C>(target_of(on), p.q.size, p.k.size, f));
  lanewise::forward_args<C> const args{.q = p.q.as<E>(),
                                       .k = p.k.as<E>(),
                                       .v = p.v.as<E>(),
                                       .o = out.o.as<E>(),
                                       .lse = out.lse.as<float>(),
                                       .scale = p.scale};
  return lanewise::forward<C>(on, args, f, room.get());
}

template <lanewise::config C, class F>
lanewise::status call_backward(problem const& p, outputs& out, lanewise::on_cpu on, F const& f) {
  using E = lanewise::element<C>;
  using G = lanewise::gradient<C>;
  scratch const room(lanewise::backward_workspace<C>(target_of(on), p.q.size, p.k.size, f));
  lanewise::backward_args<C> const args{.q = p.q.as<E>(),
                                        .k = p.k.as<E>(),
                                        .v = p.v.as<E>(),
                                        .o = out.o.as<E>(),
                                        .lse = out.lse.as<float>(),
                                        .d_o = p.d_o.as<E>(),
                                        .d_lse = p.d_lse.as<float>(),
                                        .d_q = out.d_q.as<G>(),
                                        .d_k = out.d_k.as<G>(),
                                        .d_v = out.d_v.as<G>(),
                                        .accumulate = p.accumulate,
                                        .scale = p.scale};
  return lanewise::backward<C>(on, args, f, room.get());
}

template <int... D, class Call>
lanewise::status dispatch_head_dim(int_list<D...>, std::int64_t d, Call const& call) {
  return lanewise::dispatch<D...>(d, call);
}

}  // namespace parity
