// The argument checks of a call, on type-erased tensors: one place for every rule, the offending numbers in the text.
//
// Order: scalars, missing tensors, extents, strides and alignment, overlaps. A tensor without elements has no strides
// and no memory to check; a tensor that is left out is not checked at all.
#pragma once

#include <cstddef>
#include <cstdint>

#include "precision.hpp"
#include "status.hpp"
#include "tensor.hpp"

namespace lanewise::detail {

/// A view without its element type.
struct tensor {
  char const* name;
  std::uintptr_t data;  ///< address of element 0; 0 when not given
  std::size_t element;  ///< bytes of one element
  extents size;
  strides stride;
};

template <class T>
tensor describe(char const* name, view<T> const& v) {
  return {name, reinterpret_cast<std::uintptr_t>(v.data), sizeof(T), v.size, v.stride};
}

/// The scalars of a call.
struct scalars {
  int head_dim, gqa_ratio;
  float scale;
};

/// Bytes that no tensor may span: offsets then fit 64 bits with room to add a few. Beyond any address space.
inline constexpr double largest_span = 0x1p60;
/// Extents are 32-bit positions in a variant.
inline constexpr std::int64_t extent_limit = std::int64_t(1) << 31;

constexpr bool has_elements(extents const& e) {
  return e.batch != 0 && e.sequence != 0 && e.heads != 0 && e.head_dim != 0;
}

// Overlaps. Two runs of bytes meet where an integer combination of strides, each factor within its range, falls into an
// interval. The largest stride is tried first: what the others can still add bounds its factor to few values.

/// One summand factor * stride with least <= factor <= most.
struct axis {
  std::int64_t stride, least, most;
};

/// At most six summands in descending order of stride; equal strides become one summand.
struct axes {
  axis list[6] = {};
  int count = 0;

  constexpr void add(std::int64_t stride, std::int64_t least, std::int64_t most) {
    if (least == most || stride == 0) return;
    int at = 0;
    while (at < count && list[at].stride > stride) ++at;
    if (at < count && list[at].stride == stride) {
      list[at].least += least;
      list[at].most += most;
      return;
    }
    for (int i = count++; i > at; --i) list[i] = list[i - 1];
    list[at] = {stride, least, most};
  }
};

constexpr std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0); }

/// Some choice of the factors of axes i, i + 1, ... puts x + sum into [low, high], at least one factor being non-zero
/// unless `moved`.
constexpr bool reaches(axes const& a, int i, std::int64_t x, bool moved, std::int64_t low, std::int64_t high) {
  if (i == a.count) return moved && low <= x && x <= high;
  std::int64_t down = 0, up = 0;
  for (int j = i + 1; j < a.count; ++j) {
    down += a.list[j].least * a.list[j].stride;
    up += a.list[j].most * a.list[j].stride;
  }
  axis const& own = a.list[i];
  std::int64_t const least = -floor_divide(-(low - up - x), own.stride),
                     most = floor_divide(high - down - x, own.stride);
  for (std::int64_t f = least > own.least ? least : own.least; f <= (most < own.most ? most : own.most); ++f)
    if (reaches(a, i + 1, x + f * own.stride, moved || f != 0, low, high)) return true;
  return false;
}

/// Two different elements of an output share memory. Strides are not negative.
constexpr bool overlaps_itself(tensor const& t) {
  std::int64_t const bytes = std::int64_t(t.element);
  axes a;
  a.add(t.stride.batch * bytes, 1 - t.size.batch, t.size.batch - 1);
  a.add(t.stride.sequence * bytes, 1 - t.size.sequence, t.size.sequence - 1);
  a.add(t.stride.heads * bytes, 1 - t.size.heads, t.size.heads - 1);
  std::int64_t const run = t.size.head_dim * bytes;
  std::int64_t below = run;  // each stride passes everything that the smaller ones reach: the ordinary case
  bool nested = true;
  for (int i = a.count - 1; i >= 0; --i) {
    nested &= a.list[i].stride >= below;
    below += a.list[i].most * a.list[i].stride;
  }
  // Two dimensions of one stride, neither of extent 1, meet; `axes` would have merged them into one factor.
  bool const twins = (t.stride.batch == t.stride.sequence && t.size.batch > 1 && t.size.sequence > 1) ||
                     (t.stride.batch == t.stride.heads && t.size.batch > 1 && t.size.heads > 1) ||
                     (t.stride.sequence == t.stride.heads && t.size.sequence > 1 && t.size.heads > 1);
  return twins || (!nested && reaches(a, 0, 0, false, 1 - run, run - 1));
}

/// Some byte belongs to both tensors. Exact.
constexpr bool share_a_byte(tensor const& x, tensor const& y) {
  std::int64_t const bx = std::int64_t(x.element), by = std::int64_t(y.element);
  axes a;
  a.add(x.stride.batch * bx, 0, x.size.batch - 1);
  a.add(x.stride.sequence * bx, 0, x.size.sequence - 1);
  a.add(x.stride.heads * bx, 0, x.size.heads - 1);
  a.add(y.stride.batch * by, 1 - y.size.batch, 0);
  a.add(y.stride.sequence * by, 1 - y.size.sequence, 0);
  a.add(y.stride.heads * by, 1 - y.size.heads, 0);
  return reaches(a, 0, std::int64_t(x.data - y.data), true, 1 - x.size.head_dim * bx, y.size.head_dim * by - 1);
}

/// One past the last byte that a tensor with elements and without negative strides occupies.
constexpr std::uintptr_t end_of(tensor const& t) {
  extents const& n = t.size;
  std::int64_t const last = (n.batch - 1) * t.stride.batch + (n.sequence - 1) * t.stride.sequence +
                            (n.heads - 1) * t.stride.heads + n.head_dim;
  return t.data + std::uintptr_t(last) * t.element;
}

/// A tensor and the bytes [begin, end) from its first to its last element; begin == end where it has no memory.
struct placed {
  tensor const* t = nullptr;
  std::uintptr_t begin = 0, end = 0;
};

// Each check returns true when all is well and otherwise writes the status: a status is 240 bytes, too much to hand
// around in a call that must stay under a microsecond.

class checker {
 public:
  explicit checker(status& result) : result_(result) {}

  bool scalar(scalars const& c) {
    if ((bit_cast<std::uint32_t>(c.scale) & 0x7f800000u) != 0x7f800000u) return true;
    return wrong(status_code::bad_argument, "scale is ", c.scale, ", it must be finite");
  }

  /// Null and yet in use. All extents 0 is a view that was never set.
  bool given(tensor const& t) {
    if (t.data != 0 || (t.size.head_dim != 0 && !has_elements(t.size))) return true;
    return wrong(status_code::null_view, t.name, " is null");
  }

  /// Extents in range and equal to the expected ones, which `like` has.
  bool size(tensor const& t, extents const& expected, char const* like) {
    if (!in_range(t)) return false;
    if (t.size == expected) return true;
    extents const &a = t.size, &b = expected;
    return wrong(status_code::bad_extent, t.name, " is [", a.batch, ", ", a.sequence, ", ", a.heads, ", ", a.head_dim,
                 "], but ", like, " asks for [", b.batch, ", ", b.sequence, ", ", b.heads, ", ", b.head_dim, "]");
  }

  bool queries_and_keys(scalars const& c, tensor const& q, tensor const& k, tensor const& v) {
    if (!in_range(q) || !in_range(k)) return false;
    if (q.size.head_dim != c.head_dim) return wrong_head_dim(q, c);
    if (k.size.head_dim != c.head_dim) return wrong_head_dim(k, c);
    if (q.size.batch != k.size.batch)
      return wrong(status_code::bad_extent, "q has batch ", q.size.batch, ", k has batch ", k.size.batch);
    std::int64_t const hq = q.size.heads, hk = k.size.heads;
    if (hk == 0 ? hq != 0 : hq % hk != 0)
      return wrong(status_code::bad_extent, "q has ", hq, " heads, not a multiple of k's ", hk);
    if (c.gqa_ratio != 0 && hq != c.gqa_ratio * hk)
      return wrong(status_code::bad_extent, "q has ", hq, " heads and k ", hk, ", but the config's gqa_ratio is ",
                   c.gqa_ratio);
    return size(v, k.size, "k");
  }

  /// Checks a list of tensors' memory and says where each lies.
  template <int N>
  bool place(tensor const* const (&list)[N], bool output, placed (&to)[N]) {
    for (int i = 0; i < N; ++i) {
      tensor const& t = *list[i];
      to[i].t = &t;
      if (t.data == 0 || !has_elements(t.size)) continue;
      if (!memory(t, output)) return false;
      to[i].begin = t.data;
      to[i].end = end_of(t);
    }
    return true;
  }

  /// Every output against every input and every earlier output.
  template <int I, int O>
  bool apart(placed const (&inputs)[I], placed const (&outputs)[O]) {
    for (int i = 0; i < O; ++i) {
      for (placed const& input : inputs)
        if (meet(outputs[i], input) && !apart_from_input(*outputs[i].t, *input.t)) return false;
      for (int j = 0; j < i; ++j)
        if (meet(outputs[i], outputs[j]) && share_a_byte(*outputs[i].t, *outputs[j].t))
          return wrong_overlap(*outputs[i].t, *outputs[j].t);
    }
    return true;
  }

 private:
  /// Strides, alignment and span; an output also has every element to itself.
  bool memory(tensor const& t, bool output) {
    if (t.data % t.element != 0)
      return wrong(status_code::bad_argument, t.name, ": the address is ", t.data % t.element,
                   " bytes past a multiple of its element's ", t.element);
    if (t.size.head_dim > 1 && t.stride.inner != 1)
      return wrong(status_code::bad_stride, t.name, ": stride ", t.stride.inner,
                   " along head_dim, which must be contiguous (stride 1)");
    if (!stride(t, "batch", t.size.batch, t.stride.batch, output) ||
        !stride(t, "sequence", t.size.sequence, t.stride.sequence, output) ||
        !stride(t, "heads", t.size.heads, t.stride.heads, output))
      return false;
    double const span = double(t.size.batch - 1) * double(t.stride.batch) +
                        double(t.size.sequence - 1) * double(t.stride.sequence) +
                        double(t.size.heads - 1) * double(t.stride.heads) + double(t.size.head_dim);
    if (span * double(t.element) >= largest_span)
      return wrong(status_code::bad_stride, t.name, ": strides [", t.stride.batch, ", ", t.stride.sequence, ", ",
                   t.stride.heads, "] span more than 2^60 bytes, past 64-bit offsets");
    if (output && overlaps_itself(t))
      return wrong(status_code::alias, t.name, " overlaps itself: strides [", t.stride.batch, ", ", t.stride.sequence,
                   ", ", t.stride.heads, "] for [", t.size.batch, ", ", t.size.sequence, ", ", t.size.heads, ", ",
                   t.size.head_dim, "]");
    return true;
  }

  /// Byte ranges of an output and an input may meet only where both are slices of one buffer with equal outer strides
  /// and share no byte.
  bool apart_from_input(tensor const& output, tensor const& input) {
    std::int64_t const a = std::int64_t(output.element), b = std::int64_t(input.element);
    bool const same_batch =
        (output.size.batch == 1 && input.size.batch == 1) || output.stride.batch * a == input.stride.batch * b;
    bool const same_sequence = (output.size.sequence == 1 && input.size.sequence == 1) ||
                               output.stride.sequence * a == input.stride.sequence * b;
    return (same_batch && same_sequence && !share_a_byte(output, input)) || wrong_overlap(output, input);
  }

  template <class... Parts>
  bool wrong(status_code code, Parts... parts) {
    result_ = fail(code, parts...);
    return false;
  }
  bool wrong_head_dim(tensor const& t, scalars const& c) {
    return wrong(status_code::bad_extent, t.name, " has head_dim ", t.size.head_dim, ", the config has ", c.head_dim);
  }
  bool wrong_overlap(tensor const& x, tensor const& y) {
    std::uintptr_t const from = x.data < y.data ? x.data : y.data;
    return wrong(status_code::alias, x.name, " overlaps ", y.name, ": bytes [", x.data - from, ", ", end_of(x) - from,
                 ") and [", y.data - from, ", ", end_of(y) - from, ") from the start of ",
                 x.data < y.data ? x.name : y.name);
  }
  bool in_range(tensor const& t) {
    return extent(t, "batch", t.size.batch) && extent(t, "sequence", t.size.sequence) &&
           extent(t, "heads", t.size.heads) && extent(t, "head_dim", t.size.head_dim);
  }
  bool extent(tensor const& t, char const* along, std::int64_t n) {
    if (0 <= n && n < extent_limit) return true;
    return wrong(status_code::bad_extent, t.name, ": extent ", n, " along ", along, " is outside 0 ... 2147483647");
  }
  bool stride(tensor const& t, char const* along, std::int64_t n, std::int64_t stride, bool output) {
    if (n <= 1 || stride > 0 || (stride == 0 && !output)) return true;
    if (stride < 0)
      return wrong(status_code::bad_stride, t.name, ": stride ", stride, " along ", along, " is negative");
    return wrong(status_code::bad_stride, t.name, ": stride 0 along ", along, " of extent ", n,
                 "; only an input can be broadcast");
  }
  static bool meet(placed const& x, placed const& y) { return x.begin < y.end && y.begin < x.end; }

  status& result_;
};

/// Scratch is large enough for `needed` bytes, given and aligned.
inline status check_workspace(workspace scratch, std::size_t needed) noexcept {
  if (scratch.bytes < needed)
    return fail(status_code::bad_workspace, "workspace has ", scratch.bytes, " bytes, the call needs ", needed);
  if (needed > 0 && scratch.data == nullptr)
    return fail(status_code::bad_workspace, "workspace is null, the call needs ", needed, " bytes");
  if (reinterpret_cast<std::uintptr_t>(scratch.data) % workspace_alignment != 0)
    return fail(status_code::bad_workspace, "workspace is not aligned to ", workspace_alignment, " bytes");
  return {};
}

inline extents lse_extents(extents const& q) { return {q.batch, q.sequence, q.heads, 1}; }

/// Every element of a parameter's gradient is its own; stride 0 or an overlap would add one sum to another.
inline status check_own_elements(char const* name, std::int64_t const (&size)[4],
                                 std::int64_t const (&stride)[4]) noexcept {
  axes a;
  for (int i = 0; i < 4; ++i) {
    if (size[i] <= 1) continue;
    if (stride[i] <= 0)
      return fail(status_code::bad_stride, name, ": stride ", stride[i], " along dimension ", i, " of extent ", size[i],
                  " must be positive");
    for (int j = 0; j < i; ++j)
      if (size[j] > 1 && stride[i] == stride[j])
        return fail(status_code::alias, name, " overlaps itself: dimensions ", j, " and ", i, " both have stride ",
                    stride[i]);
    if (double(size[i] - 1) * double(stride[i]) >= largest_span / sizeof(float))
      return fail(status_code::bad_stride, name, ": stride ", stride[i], " along dimension ", i,
                  " spans more than 2^60 bytes");
    a.add(stride[i], 1 - size[i], size[i] - 1);
  }
  if (reaches(a, 0, 0, false, 0, 0))
    return fail(status_code::alias, name, " overlaps itself: strides [", stride[0], ", ", stride[1], ", ", stride[2],
                ", ", stride[3], "] for [", size[0], ", ", size[1], ", ", size[2], ", ", size[3], "]");
  return {};
}

/// Bytes of something, first to last; begin == end where there is nothing.
struct byte_range {
  std::uintptr_t begin = 0, end = 0;
};
inline byte_range range_of(tensor const& t) noexcept {
  return t.data && has_elements(t.size) ? byte_range{t.data, end_of(t)} : byte_range{};
}
/// Strides were found positive before.
inline byte_range range_of(parameter_view<float> const& p) noexcept {
  std::int64_t last = 0;
  for (int i = 0; i < 4; ++i) {
    if (p.size[i] <= 0) return {};
    last += (p.size[i] - 1) * p.stride[i];
  }
  std::uintptr_t const begin = reinterpret_cast<std::uintptr_t>(p.data);
  return p ? byte_range{begin, begin + std::uintptr_t(last + 1) * sizeof(float)} : byte_range{};
}

/// The gradient of a variant's parameter is an output too: it may meet nothing else of the call.
inline status check_apart(byte_range d, byte_range other, char const* name) noexcept {
  if (d.begin >= other.end || other.begin >= d.end) return {};
  std::uintptr_t const from = d.begin < other.begin ? d.begin : other.begin;
  return fail(status_code::alias, "a parameter's gradient overlaps ", name, ": bytes [", d.begin - from, ", ",
              d.end - from, ") and [", other.begin - from, ", ", other.end - from, ")");
}

inline status check_forward(scalars const& c, tensor const& q, tensor const& k, tensor const& v, tensor const& o,
                            tensor const& lse) noexcept {
  status result;
  checker check(result);
  if (!check.scalar(c)) return result;
  tensor const *const inputs[] = {&q, &k, &v}, *const outputs[] = {&o, &lse};
  for (tensor const* t : inputs)
    if (!check.given(*t)) return result;
  if (!check.given(o)) return result;
  if (!check.queries_and_keys(c, q, k, v) || !check.size(o, q.size, "q")) return result;
  if (lse.data && !check.size(lse, lse_extents(q.size), "q")) return result;
  placed in[3], out[2];
  (void)(check.place(inputs, false, in) && check.place(outputs, true, out) && check.apart(in, out));
  return result;
}

inline status check_backward(scalars const& c, tensor const& q, tensor const& k, tensor const& v, tensor const& o,
                             tensor const& lse, tensor const& d_o, tensor const& d_lse, tensor const& d_q,
                             tensor const& d_k, tensor const& d_v) noexcept {
  status result;
  checker check(result);
  if (!check.scalar(c)) return result;
  tensor const* const inputs[] = {&q, &k, &v, &o, &lse, &d_o, &d_lse};
  tensor const* const outputs[] = {&d_q, &d_k, &d_v};
  for (tensor const* t : inputs)
    if (t != &d_lse && !check.given(*t)) return result;
  if (!check.queries_and_keys(c, q, k, v)) return result;
  if (!check.size(o, q.size, "q") || !check.size(d_o, q.size, "q")) return result;
  if (!check.size(lse, lse_extents(q.size), "q")) return result;
  if (d_lse.data && !check.size(d_lse, lse_extents(q.size), "q")) return result;
  if (d_q.data && !check.size(d_q, q.size, "q")) return result;
  if (d_k.data && !check.size(d_k, k.size, "k")) return result;
  if (d_v.data && !check.size(d_v, k.size, "k")) return result;
  placed in[7], out[3];
  (void)(check.place(inputs, false, in) && check.place(outputs, true, out) && check.apart(in, out));
  return result;
}

}  // namespace lanewise::detail
