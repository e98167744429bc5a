// Run-time values of every stock variant for a given problem, as pairs: one whose pointers are the host's, for the
// reference, and one whose pointers are the device's.
#pragma once

#include "../instances/variants.hpp"
#include "device_case.hpp"

namespace testing {

template <class F>
struct pair_of {
  F host, device;
};

/// What the pointers of a variant point to, on both sides, and where its parameter's gradient goes.
struct variant_room {
  std::vector<float> values;
  std::vector<std::int32_t> integers, keys;
  std::vector<std::uint32_t> bits;
  std::vector<float> gradient;
  std::vector<device_memory> device;

  template <class T>
  T* copy(std::vector<T> const& x) {
    return device.emplace_back(on_device(x)).template as<T>();
  }
  /// The last `copy` of `gradient` as it is now on the device.
  std::vector<float> fetched(std::size_t index) const {
    std::vector<float> x(gradient.size());
    device[index].read(x);
    return x;
  }
};

template <class F>
struct values;

template <class F>
struct plain {
  static pair_of<F> of(sizes, variant_room&) { return {F{}, F{}}; }
};
template <>
struct values<full> : plain<full> {};
template <>
struct values<causal_top_left> : plain<causal_top_left> {};
template <>
struct values<causal_bottom_right> : plain<causal_bottom_right> {};
template <>
struct values<capped_window> : plain<capped_window> {};
template <>
struct values<softcap> {
  static pair_of<softcap> of(sizes, variant_room&) { return {{1.5f}, {1.5f}}; }
};
template <>
struct values<window> {
  static pair_of<window> of(sizes, variant_room&) { return {{37, 11}, {37, 11}}; }
};
template <>
struct values<recorded_window> {
  static pair_of<recorded_window> of(sizes, variant_room&) { return {{{37, 11}}, {{37, 11}}}; }
};
template <>
struct values<key_padding> {
  static pair_of<key_padding> of(sizes s, variant_room& r) {
    for (int b = 0; b < s.batch; ++b) r.integers.push_back(std::int32_t(s.k - 5 - s.k / 3 * b));
    return {{r.integers.data()}, {r.copy(r.integers)}};
  }
};
template <>
struct values<key_padding_bits> {
  static pair_of<key_padding_bits> of(sizes s, variant_room& r) {
    std::int64_t const words = (s.k + 31) / 32;
    std::mt19937 engine(5);
    for (std::int64_t i = 0; i < words * s.batch; ++i) r.bits.push_back(std::uint32_t(engine()));
    return {{r.bits.data(), words}, {r.copy(r.bits), words}};
  }
};
template <>
struct values<documents<causal_bottom_right>> {
  using F = documents<causal_bottom_right>;
  /// Three documents, the second with more queries than keys, and a tail that belongs to none.
  static pair_of<F> of(sizes s, variant_room& r) {
    std::int32_t const q = std::int32_t(s.q), k = std::int32_t(s.k);
    if (q < 16) r.integers = {0, 0, 0, q};
    else r.integers = {0, q / 4, q / 2 + 3, q - 2};
    r.keys = {0, k / 3, k / 3 + 9, k - 1};
    return {{r.integers.data(), r.keys.data(), 3}, {r.copy(r.integers), r.copy(r.keys), 3}};
  }
};

/// [batch or 1, heads or 1, q or 1, k or 1]
struct parameter_extents {
  std::int64_t batch, heads, q, k;
  std::int64_t count() const { return batch * heads * q * k; }
};
inline void draw_parameter(parameter_extents e, float deviation, variant_room& r) {
  r.values = normal(e.count(), 77, deviation);
  r.gradient.assign(std::size_t(e.count()), std::nanf(""));
}
inline std::pair<parameter_view<float const>, parameter_view<float>> views(parameter_extents e, float const* x,
                                                                           float* d) {
  return {{x, e.batch, e.heads, e.q, e.k}, {d, e.batch, e.heads, e.q, e.k}};
}
template <class F>
pair_of<F> with_parameter(parameter_extents e, float deviation, variant_room& r) {
  draw_parameter(e, deviation, r);
  auto const h = views(e, r.values.data(), r.gradient.data());
  float* const gradient = r.copy(r.gradient);  // device[0]
  auto const d = views(e, r.copy(r.values), gradient);
  return {{h.first, h.second}, {d.first, d.second}};
}
template <>
struct values<bias> {
  static pair_of<bias> of(sizes s, variant_room& r) { return with_parameter<bias>({1, s.q_heads, s.q, s.k}, 1.f, r); }
};
template <>
struct values<alibi> {
  static pair_of<alibi> of(sizes s, variant_room& r) { return with_parameter<alibi>({1, s.q_heads, 1, 1}, 0.05f, r); }
};
template <>
struct values<sink> {
  static pair_of<sink> of(sizes s, variant_room& r) { return with_parameter<sink>({1, s.q_heads, 1, 1}, 1.f, r); }
};
template <>
struct values<biased_causal> {
  static pair_of<biased_causal> of(sizes s, variant_room& r) {
    auto const b = with_parameter<bias>({s.batch, 1, 1, s.k}, 1.f, r);
    return {{b.host, causal_top_left{}}, {b.device, causal_top_left{}}};
  }
};
template <>
struct values<sink_window> {
  static pair_of<sink_window> of(sizes s, variant_room& r) {
    auto const b = with_parameter<sink>({s.batch, s.q_heads, 1, 1}, 1.f, r);
    return {{window{20, 0}, b.host}, {window{20, 0}, b.device}};
  }
};

}  // namespace testing
