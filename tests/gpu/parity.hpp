// One instance (config, variant) against the f64 reference over shapes that leave ragged tiles, Sq != Sk, groups of
// query heads, rows without keys and, with every output NaN beforehand, unwritten elements nowhere to hide.
#pragma once

#include "variant_values.hpp"

namespace testing {

/// The shapes of a parity run: ragged and whole tiles, one query, more queries than keys and the reverse, grouped
/// heads, a walk over queries that is shared by tens of blocks, more keys than sm90::few_keys.
inline std::vector<sizes> parity_shapes() {
  return {{1, 128, 128, 2, 2}, {2, 200, 173, 4, 2}, {1, 70, 300, 3, 1},  {1, 260, 65, 2, 2},
          {2, 1, 77, 2, 1},    {1, 900, 33, 4, 1},  {1, 150, 1100, 2, 1}};
}

/// The case as the products see it: tf32 rounds every operand to nearest, 11 bits.
template <config C>
attention_case<C> operands_of(attention_case<C> c) {
  if constexpr (C.precision == precision::tf32)
    for (std::vector<float>* x : {&c.q, &c.k, &c.v, &c.d_o})
      for (float& e : *x) e = bit_cast<float>((bit_cast<std::uint32_t>(e) + 0x1000u) & 0xffffe000u);
  return c;
}

template <config C>
inline constexpr bool f32_class =
    C.precision == precision::f32 || C.precision == precision::bf16_split || C.precision == precision::f32_split;

/// What a correct kernel of this precision may compute: the same-precision reference for 16-bit products; f64 from
/// operands, P and dS of 11 bits for tf32, f16 having the mantissa of tf32; f64 itself for the f32 class.
template <config C, class F>
reference::result yardstick(attention_case<C> const& c, F const& f) {
  constexpr reference::arithmetic eleven_bits{.operand = reference::number::f16};
  if (f32_class<C>) return c.expected(f);
  return operands_of(c).expected(f, C.precision == precision::tf32 ? eleven_bits : reference::same_precision<C>);
}

/// The tolerance of one tensor of type T, relative Frobenius error against f64, from the yardstick's own error. f32:
/// 5e-6, f32_split: 2e-6. bf16_split: 1e-5, P and dS having 16 bits. tf32: twice the yardstick and 1e-5, the tensor
/// core's adder truncating. 16 bits: twice the yardstick and two spacings of the output.
template <config C, class T>
double device_tolerance(double yardstick) {
  switch (C.precision) {
    case precision::f32: return 5e-6;
    case precision::f32_split: return 2e-6;
    case precision::tf32: return 2 * yardstick + 1e-5;
    case precision::bf16_split: return (std::is_same_v<T, float> ? 0. : epsilon_of<T>)+1e-5;
    default: return 2 * yardstick + 2 * epsilon_of<T>;
  }
}

/// Relative errors over several problems, root mean square. A parameter's gradient may be two or three numbers, sums
/// with terms of both signs: in one problem its error is a draw, over many it is comparable with the yardstick's.
struct pooled_error {
  double device = 0, yardstick = 0;
  int count = 0;
  void add(double d, double y) { device += d * d, yardstick += y * y, ++count; }
  double of_device() const { return std::sqrt(device / count); }
  double of_yardstick() const { return std::sqrt(yardstick / count); }
};

/// What the label of a kernel of this precision holds.
template <config C>
inline constexpr char const* precision_in_labels = C.precision == precision::f32          ? "ffma f32"
                                                   : C.precision == precision::bf16_split ? "bf16, split"
                                                   : C.precision == precision::f32_split  ? "f32, split"
                                                                                          : name_of(C.precision);

/// Runs a case under the device's variant and holds every tensor to the reference's under the host's. Returns the exact
/// result and the yardstick's, for what else a test compares.
template <config C, class F, class G>
std::pair<reference::result, reference::result> check_on_device(attention_case<C>& c, F const& host, G const& on_gpu) {
  auto const exact = c.expected(host);
  auto const rounded = yardstick(c, host);
  device_case<C> device(c);
  auto const [forward_kernel, backward_kernel] = device.run(on_gpu);
  for (std::string const kernel : {forward_kernel, backward_kernel}) {
    CHECK(kernel.rfind("cuda sm", 0) == 0);
    CHECK(kernel.find(precision_in_labels<C>) != std::string::npos);
  }
  auto const close = [](auto const& x, auto const& yard, auto const& right) {
    using T = typename std::decay_t<decltype(x)>::value_type;
    CHECK(relative_error(x, right) <= device_tolerance<C, T>(relative_error(yard, right)));
  };
  close(c.o, rounded.o, exact.o);
  CHECK(relative_error(c.lse, exact.lse) <= 2 * relative_error(rounded.lse, exact.lse) + 5e-6);
  close(c.d_q, rounded.d_q, exact.d_q);
  close(c.d_k, rounded.d_k, exact.d_k);
  close(c.d_v, rounded.d_v, exact.d_v);
  return {exact, rounded};
}

template <config C, class F>
void parity(sizes s, unsigned seed, pooled_error& parameter) {
  CAPTURE(s.batch);
  CAPTURE(s.q);
  CAPTURE(s.k);
  CAPTURE(s.q_heads);
  CAPTURE(s.kv_heads);
  CAPTURE(seed);
  attention_case<C> c(s, seed);
  variant_room room;
  auto const f = values<F>::of(s, room);
  auto const [exact, rounded] = check_on_device(c, f.host, f.device);
  if constexpr (parameter_count < bound < F >>> 0)
    parameter.add(relative_error(room.fetched(0), exact.parameters[0]),
                  relative_error(rounded.parameters[0], exact.parameters[0]));
  if (C.precision == precision::tf32 && s.q > 100) CHECK(relative_error(c.o, exact.o) >= 1e-5);  // it is tf32 that ran
}

template <config C, class F>
void parity() {
  pooled_error parameter;
  constexpr bool has_parameter = parameter_count < bound < F >>> 0;
  for (unsigned seed = 11; seed <= (has_parameter ? 71u : 11u); seed += 20)
    for (sizes const& s : parity_shapes()) parity<C, F>(s, seed, parameter);
  if (has_parameter) {
    // A parameter's gradient is f32 whatever the storage, so that nothing is added for its type in 16 bits.
    constexpr bool in_16_bits = sizeof(element<C>) == 2 && !f32_class<C>;
    CHECK(parameter.of_device() <=
          (in_16_bits ? 2 * parameter.of_yardstick() : device_tolerance<C, float>(parameter.of_yardstick())));
  }
}

}  // namespace testing
