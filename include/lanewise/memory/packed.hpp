// Packed buffers: o and lse of a forward in one piece of memory, d_q, d_k and d_v of a backward in another. This header
// is the only place that knows their offsets.
//
//   forward    | o: storage type, [B, Sq, Hq, D] | gap | lse: f32, [B, Sq, Hq, 1] |
//   backward   | d_q: [B, Sq, Hq, D] | gap | d_k: [B, Sk, Hkv, D] | gap | d_v: [B, Sk, Hkv, D] |
//
// Every part is dense and begins at the next multiple of `align` bytes, so a gap is shorter than `align`. Whoever
// treats the buffer as one tensor (0 * packed + x, a norm, a checksum) reads the gaps too: they are exact zeros after a
// call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "../attention.hpp"
#include "../parameters.hpp"

namespace lanewise {

/// Alignment of the parts unless the layout says otherwise.
inline constexpr std::size_t packed_alignment = 128;
inline constexpr std::size_t largest_packed_alignment = std::size_t(1) << 30;

/// Bytes [begin, end) from the start of a packed buffer.
struct packed_range {
  std::size_t begin = 0, end = 0;
  LANEWISE_HD constexpr std::size_t size() const { return end - begin; }
  constexpr bool operator==(packed_range const&) const = default;
};

namespace detail {

/// Elements of a dense tensor; device code may ask too.
LANEWISE_HD constexpr std::size_t elements(extents const& e) {
  return std::size_t(e.batch) * std::size_t(e.sequence) * std::size_t(e.heads) * std::size_t(e.head_dim);
}

LANEWISE_HD constexpr std::size_t next_multiple(std::size_t n, std::size_t align) {
  return (n + align - 1) / align * align;
}

template <class T>
T* at_byte(void* base, std::size_t offset) {
  return reinterpret_cast<T*>(static_cast<unsigned char*>(base) + offset);
}
template <class T>
T const* at_byte(void const* base, std::size_t offset) {
  return reinterpret_cast<T const*>(static_cast<unsigned char const*>(base) + offset);
}

inline void zero(void* base, packed_range range) {
  for (std::size_t i = range.begin; i < range.end; ++i) static_cast<unsigned char*>(base)[i] = 0;
}

}  // namespace detail

/// Layout of O|LSE: packed_forward<C>{q.size}. align: a power of two in 4 ... 2^30.
template <config C>
struct packed_forward {
  extents q{};  ///< [B, Sq, Hq, D], also o's
  std::size_t align = packed_alignment;

  LANEWISE_HD constexpr std::size_t o_bytes() const { return detail::elements(q) * sizeof(element<C>); }
  LANEWISE_HD constexpr std::size_t lse_offset() const { return detail::next_multiple(o_bytes(), align); }
  LANEWISE_HD constexpr std::size_t lse_bytes() const {
    return std::size_t(q.batch * q.sequence * q.heads) * sizeof(float);
  }
  /// What the buffer needs.
  LANEWISE_HD constexpr std::size_t bytes() const { return lse_offset() + lse_bytes(); }

  static constexpr int gap_count = 1;
  LANEWISE_HD constexpr packed_range gap(int = 0) const { return {o_bytes(), lse_offset()}; }

  /// The parts of a buffer at `base`, which is aligned to `align`.
  view<element<C>> o(void* base) const { return {detail::at_byte<element<C>>(base, 0), q}; }
  view<element<C> const> o(void const* base) const { return {detail::at_byte<element<C>>(base, 0), q}; }
  view<float> lse(void* base) const { return {detail::at_byte<float>(base, lse_offset()), lse_extents()}; }
  view<float const> lse(void const* base) const { return {detail::at_byte<float>(base, lse_offset()), lse_extents()}; }

 private:
  constexpr extents lse_extents() const { return {q.batch, q.sequence, q.heads, 1}; }
};

/// Layout of dQ|dK|dV: packed_backward<C>{q.size, k.size}. The parts have the config's gradient type.
template <config C>
struct packed_backward {
  extents q{};  ///< [B, Sq, Hq, D], also d_q's
  extents k{};  ///< [B, Sk, Hkv, D], also d_k's and d_v's
  std::size_t align = packed_alignment;

  LANEWISE_HD constexpr std::size_t d_q_bytes() const { return detail::elements(q) * sizeof(gradient<C>); }
  LANEWISE_HD constexpr std::size_t d_k_offset() const { return detail::next_multiple(d_q_bytes(), align); }
  LANEWISE_HD constexpr std::size_t d_k_bytes() const { return detail::elements(k) * sizeof(gradient<C>); }
  LANEWISE_HD constexpr std::size_t d_v_offset() const {
    return detail::next_multiple(d_k_offset() + d_k_bytes(), align);
  }
  /// What the buffer needs.
  LANEWISE_HD constexpr std::size_t bytes() const { return d_v_offset() + d_k_bytes(); }

  static constexpr int gap_count = 2;
  LANEWISE_HD constexpr packed_range gap(int i) const {
    return i == 0 ? packed_range{d_q_bytes(), d_k_offset()} : packed_range{d_k_offset() + d_k_bytes(), d_v_offset()};
  }

  /// The parts of a buffer at `base`, which is aligned to `align`.
  view<gradient<C>> d_q(void* base) const { return {detail::at_byte<gradient<C>>(base, 0), q}; }
  view<gradient<C>> d_k(void* base) const { return {detail::at_byte<gradient<C>>(base, d_k_offset()), k}; }
  view<gradient<C>> d_v(void* base) const { return {detail::at_byte<gradient<C>>(base, d_v_offset()), k}; }
};

/// Writes zeros into the gaps of a packed buffer in host memory. Layout: packed_forward or packed_backward.
template <class Layout>
void zero_gaps(Layout const& layout, void* base) {
  for (int i = 0; i < Layout::gap_count; ++i) detail::zero(base, layout.gap(i));
}

/// A packed buffer to write: at least the layout's bytes, aligned to `align`, which is the layout's policy.
struct packed_buffer {
  void* data = nullptr;
  std::size_t bytes = 0;
  std::size_t align = packed_alignment;
};

/// A packed buffer to read.
struct packed_source {
  void const* data = nullptr;
  std::size_t bytes = 0;
  std::size_t align = packed_alignment;
  constexpr packed_source() = default;
  constexpr packed_source(void const* data, std::size_t bytes, std::size_t align = packed_alignment)
      : data(data), bytes(bytes), align(align) {}
  constexpr packed_source(packed_buffer b) : data(b.data), bytes(b.bytes), align(b.align) {}
};

/// As forward_args, with O|LSE in place of o and lse.
template <config C>
struct packed_forward_args {
  static_assert(check_config<C>());
  view<element<C> const> q, k, v;
  packed_buffer o_lse;
  float scale = default_scale(C.head_dim);
};

/// As backward_args, with O|LSE in place of o and lse, and dQ|dK|dV in place of d_q, d_k and d_v.
template <config C>
struct packed_backward_args {
  static_assert(check_config<C>());
  view<element<C> const> q, k, v;
  packed_source o_lse;  ///< what forward_packed wrote
  view<element<C> const> d_o;
  view<float const> d_lse{};
  packed_buffer d_qkv;
  bool accumulate = false;  ///< adds to the three parts; the gaps become zero all the same
  float scale = default_scale(C.head_dim);
};

namespace detail {

/// Extents and alignment for which the layouts can be worked out in 64 bits.
inline status check_packed_layout(char const* name, extents e, char const* buffer, std::size_t align) noexcept {
  if (align < sizeof(float) || align > largest_packed_alignment || (align & (align - 1)) != 0)
    return fail(status_code::bad_argument, buffer, ": align is ", align,
                ", it must be a power of two in 4 ... 1073741824");
  for (std::int64_t n : {e.batch, e.sequence, e.heads, e.head_dim})
    if (n < 0 || n >= extent_limit)
      return fail(status_code::bad_extent, name, " has an extent of ", n, ", outside 0 ... 2147483647");
  double const bytes = double(e.batch) * double(e.sequence) * double(e.heads) * double(e.head_dim) * sizeof(float);
  if (bytes < largest_span) return {};
  return fail(status_code::bad_extent, name, " is [", e.batch, ", ", e.sequence, ", ", e.heads, ", ", e.head_dim,
              "]: too large for a packed buffer");
}

inline status check_packed_memory(char const* name, packed_source b, std::size_t needed) noexcept {
  if (needed == 0) return {};
  if (!b.data) return fail(status_code::null_view, name, " is null and needs ", needed, " bytes");
  if (b.bytes < needed)
    return fail(status_code::bad_extent, name, " has ", b.bytes, " bytes, its layout needs ", needed);
  if (std::size_t const off = reinterpret_cast<std::uintptr_t>(b.data) % b.align; off != 0)
    return fail(status_code::bad_argument, name, " lies ", off, " bytes past a multiple of its alignment ", b.align);
  return {};
}

/// A gap is written, so it may be part of no input. Run after the checks of the call, so that spans are known to fit.
template <class Layout, int N>
status check_gaps(char const* name, Layout const& layout, void* base, tensor const (&inputs)[N]) noexcept {
  status result;
  checker check(result);
  tensor const* input[N];
  for (int i = 0; i < N; ++i) input[i] = &inputs[i];
  tensor gaps[Layout::gap_count];
  tensor const* gap[Layout::gap_count];
  for (int i = 0; i < Layout::gap_count; ++i) {
    std::int64_t const n = std::int64_t(layout.gap(i).size());
    gaps[i] = {name, reinterpret_cast<std::uintptr_t>(base) + layout.gap(i).begin, 1, {1, 1, 1, n}, {n, n, n, 1}};
    gap[i] = &gaps[i];
  }
  placed in[N], out[Layout::gap_count];
  (void)(check.place(input, false, in) && check.place(gap, true, out) && check.apart(in, out));
  return result;
}

/// The gradients of the variant's parameters lie in no gap either.
template <class Layout, class F>
status check_parameters_and_gaps(char const* name, Layout const& layout, void* base, F const& given,
                                 extents k) noexcept {
  shape const lengths = shape_of(layout.q, k);
  status result = validate(given, lengths);
  if (!result) return result;
  auto const f = bind(given, lengths);
  for_each_parameter<bound<F>>([&]<int I> {
    byte_range const gradient = range_of(parameter_gradient<I>(f));
    for (int i = 0; i < Layout::gap_count && result; ++i) {
      packed_range const gap = layout.gap(i);
      std::uintptr_t const start = reinterpret_cast<std::uintptr_t>(base);
      result = check_apart(gradient, {start + gap.begin, start + gap.end}, name);
    }
  });
  return result;
}

}  // namespace detail

/// forward() into a packed buffer. Errors: forward's, and bad_extent, null_view, bad_argument, alias of the buffer.
template <config C, tuning T = tuning{}, class F = full>
status forward_packed(on_cpu on, packed_forward_args<C> const& a, F const& f = F{}, workspace scratch = {}) noexcept {
  static_assert(check_variant<F, false>());
  if (status s = detail::check_packed_layout("q", a.q.size, "o_lse", a.o_lse.align); !s) return s;
  packed_forward<C> const layout{a.q.size, a.o_lse.align};
  if (status s = detail::check_packed_memory("o_lse", a.o_lse, layout.bytes()); !s) return s;
  void* const base = a.o_lse.data;
  forward_args<C> const args{
      .q = a.q, .k = a.k, .v = a.v, .o = layout.o(base), .lse = layout.lse(base), .scale = a.scale};
  if (status s = check(args); !s) return s;
  detail::tensor const inputs[] = {detail::describe("q", a.q), detail::describe("k", a.k), detail::describe("v", a.v)};
  if (status s = detail::check_gaps("the gap in o_lse", layout, base, inputs); !s) return s;
  status const done = forward<C, T>(on, args, f, scratch);
  if (done) zero_gaps(layout, base);
  return done;
}

/// backward() from and into packed buffers. Errors: backward's, and bad_extent, null_view, bad_argument, alias of the
/// buffers.
template <config C, tuning T = tuning{}, class F = full>
status backward_packed(on_cpu on, packed_backward_args<C> const& a, F const& f = F{}, workspace scratch = {}) noexcept {
  static_assert(check_variant<F, true>());
  if (status s = detail::check_packed_layout("q", a.q.size, "o_lse", a.o_lse.align); !s) return s;
  if (status s = detail::check_packed_layout("k", a.k.size, "d_qkv", a.d_qkv.align); !s) return s;
  packed_forward<C> const source{a.q.size, a.o_lse.align};
  packed_backward<C> const layout{a.q.size, a.k.size, a.d_qkv.align};
  if (status s = detail::check_packed_memory("o_lse", a.o_lse, source.bytes()); !s) return s;
  if (status s = detail::check_packed_memory("d_qkv", a.d_qkv, layout.bytes()); !s) return s;
  void* const base = a.d_qkv.data;
  backward_args<C> const args{.q = a.q,
                              .k = a.k,
                              .v = a.v,
                              .o = source.o(a.o_lse.data),
                              .lse = source.lse(a.o_lse.data),
                              .d_o = a.d_o,
                              .d_lse = a.d_lse,
                              .d_q = layout.d_q(base),
                              .d_k = layout.d_k(base),
                              .d_v = layout.d_v(base),
                              .accumulate = a.accumulate,
                              .scale = a.scale};
  if (status s = check(args); !s) return s;
  detail::tensor const inputs[] = {detail::describe("q", args.q),        detail::describe("k", args.k),
                                   detail::describe("v", args.v),        detail::describe("o", args.o),
                                   detail::describe("lse", args.lse),    detail::describe("d_o", args.d_o),
                                   detail::describe("d_lse", args.d_lse)};
  if (status s = detail::check_gaps("a gap in d_qkv", layout, base, inputs); !s) return s;
  if (status s = detail::check_parameters_and_gaps("a gap in d_qkv", layout, base, f, a.k.size); !s) return s;
  status const done = backward<C, T>(on, args, f, scratch);
  if (done) zero_gaps(layout, base);
  return done;
}

}  // namespace lanewise
