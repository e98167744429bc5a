// One instance (config, variant) against the f64 reference over shapes that leave ragged tiles, Sq != Sk, groups of query
// heads, rows without keys and, with every output NaN beforehand, unwritten elements nowhere to hide.
#pragma once

#include "variant_values.hpp"

namespace testing {

/// The shapes of a parity run: ragged and whole tiles, one query, more queries than keys and the reverse, grouped heads.
inline std::vector<sizes> parity_shapes() {
  return {{1, 128, 128, 2, 2}, {2, 200, 173, 4, 2}, {1, 70, 300, 3, 1}, {1, 260, 65, 2, 2}, {2, 1, 77, 2, 1}};
}

/// The tolerance of one tensor, relative Frobenius error against f64. Beside the same-precision reference's own error:
/// f32 5e-6; tf32 1e-3, twice what operands of 11 bits give normal data; a split config 1e-5 in f32 outputs, which for
/// d_q and d_k comes on top of what the stored o, read back in 16 bits, costs.
template <config C, class T>
double device_tolerance(std::vector<double> const& rounded, std::vector<double> const& exact) {
  switch (C.precision) {
    case precision::f32: return 5e-6;
    case precision::tf32: return 1e-3;
    case precision::bf16_split: return (std::is_same_v<T, float> ? 0. : epsilon_of<T>) + 1e-5;
    default: return 2 * relative_error(rounded, exact) + 2 * epsilon_of<T>;
  }
}

/// A parameter's gradient sums terms of both signs over everything it shares, so that its relative error is larger; tf32
/// may then reach the 5e-3 that is promised for it.
template <config C>
double parameter_tolerance(std::vector<double> const& rounded, std::vector<double> const& exact) {
  return C.precision == precision::tf32 ? 5e-3 : device_tolerance<C, float>(rounded, exact) + 5e-6;
}

template <config C, class F>
void parity(sizes s) {
  CAPTURE(s.batch);
  CAPTURE(s.q);
  CAPTURE(s.k);
  CAPTURE(s.q_heads);
  CAPTURE(s.kv_heads);
  attention_case<C> c(s, 11);
  variant_room room;
  auto const f = values<F>::of(s, room);
  device_case<C> device(c);
  auto const [forward_kernel, backward_kernel] = device.run(f.device);
  CHECK(std::string(forward_kernel) == std::string(backward_kernel));
  CHECK(std::string(forward_kernel).find("cuda sm80") == 0);
  auto const exact = c.expected(f.host);
  bool const wide = sizeof(element<C>) == 4 || C.precision == precision::bf16_split;
  // A split config keeps f32-class products, but its backward reads the o that was stored in 16 bits.
  constexpr reference::arithmetic stored_o{reference::number::f64, reference::number::f64, reference::number_of<element<C>>, reference::number::f64};
  bool const split = C.precision == precision::bf16_split;
  auto const rounded = wide && !split ? exact : c.expected(f.host, split ? stored_o : reference::same_precision<C>);
  CHECK(relative_error(c.o, exact.o) <= device_tolerance<C, element<C>>(rounded.o, exact.o));
  CHECK(relative_error(c.lse, exact.lse) <= (C.precision == precision::tf32 ? 1e-3 : 2 * relative_error(rounded.lse, exact.lse) + 5e-6));
  double const of_o = split ? 2 : 0;
  CHECK(relative_error(c.d_q, exact.d_q) <= device_tolerance<C, gradient<C>>(rounded.d_q, exact.d_q) + of_o * relative_error(rounded.d_q, exact.d_q));
  CHECK(relative_error(c.d_k, exact.d_k) <= device_tolerance<C, gradient<C>>(rounded.d_k, exact.d_k) + of_o * relative_error(rounded.d_k, exact.d_k));
  CHECK(relative_error(c.d_v, exact.d_v) <= device_tolerance<C, gradient<C>>(rounded.d_v, exact.d_v));
  if constexpr (parameter_count<bound<F>> > 0)
    CHECK(relative_error(room.fetched(0), exact.parameters[0]) <= parameter_tolerance<C>(rounded.parameters[0], exact.parameters[0]));
  if (C.precision == precision::tf32 && s.q > 100) CHECK(relative_error(c.o, exact.o) >= 1e-5);  // it is tf32 that ran
}

template <config C, class F>
void parity() {
  for (sizes const& s : parity_shapes()) parity<C, F>(s);
}

}  // namespace testing
