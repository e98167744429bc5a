// Several documents packed into one sequence: a query sees keys of its own document only.
//
// Document i holds queries cu_q[i] <= q < cu_q[i + 1] and keys cu_k[i] <= k < cu_k[i + 1]. The inner variant is asked
// at positions counted from the document's start and is bound to the document's own lengths, so that
// documents<causal_bottom_right> aligns each document by itself.
#pragma once

#include <cstdint>

#include "../math.hpp"
#include "../status.hpp"
#include "../variant.hpp"

namespace lanewise {

/// Keeps pairs of one document (starts inclusive, ends exclusive) that `inner` keeps. Both tables ascend, repeated
/// entries being documents without queries or without keys; positions before the first and from the last entry on see
/// nothing and are seen by nothing. The inner variant's mask, score and sink all run at document-local positions.
template <class Inner = full>
struct documents {
  std::int32_t const* cu_q = nullptr;  ///< [count + 1] query positions, where the call runs
  std::int32_t const* cu_k = nullptr;  ///< [count + 1] key positions; may be cu_q
  std::int32_t count = 0;              ///< documents in a table
  Inner inner{};
  std::int64_t batch_stride = 0;  ///< from one batch element's tables to the next's; 0: all share the first
  shape whole{};                  ///< filled in by bind: batch elements and heads for the inner variant

  using inner_type = bound<Inner>;

  LANEWISE_HD constexpr documents bind(shape s) const {
    documents f = *this;
    f.whole = s;
    return f;
  }

  LANEWISE_HD constexpr bool operator()(position at) const {
    document const d = document_of(at.batch, at.q);
    if (at.k < d.k_begin || at.k >= d.k_end) return false;
    if constexpr (has_mask<inner_type>) return inside(d)(local(d, at));
    else return true;
  }
  LANEWISE_HD constexpr float operator()(float s, position at) const requires has_score<inner_type> {
    document const d = document_of(at.batch, at.q);
    return at.k < d.k_begin || at.k >= d.k_end ? s : inside(d)(s, local(d, at));
  }
  LANEWISE_HD constexpr float grad(float s, position at) const requires(has_score<inner_type>&& has_grad<inner_type>) {
    document const d = document_of(at.batch, at.q);
    return at.k < d.k_begin || at.k >= d.k_end ? 1.f : inside(d).grad(s, local(d, at));
  }
  /// A row outside every document has no sink either: it stays empty.
  LANEWISE_HD constexpr float operator()(row at) const requires has_sink<inner_type> {
    document const d = document_of(at.batch, at.q);
    return d.q_begin == d.q_end ? -infinity : inside(d)(row{at.batch, at.head, at.q - d.q_begin});
  }

  /// Exact for a block inside one document where the inner variant is; else empty only where no key of the block
  /// belongs to a document between those of the first and the last query.
  LANEWISE_HD constexpr cover cover_of(block b) const {
    std::int32_t const* const starts = cu_q + b.batch * batch_stride;
    std::int32_t const q_begin = b.q_begin > starts[0] ? b.q_begin : starts[0];
    std::int32_t const q_end = b.q_end < starts[count] ? b.q_end : starts[count];
    if (q_begin >= q_end) return cover::empty;
    document const first = document_of(b.batch, q_begin), last = document_of(b.batch, q_end - 1);
    if (b.k_end <= first.k_begin || b.k_begin >= last.k_end) return cover::empty;
    if (first.q_begin != last.q_begin) return cover::partial;
    std::int32_t const k_begin = b.k_begin > first.k_begin ? b.k_begin : first.k_begin;
    std::int32_t const k_end = b.k_end < first.k_end ? b.k_end : first.k_end;
    if (k_begin >= k_end) return cover::empty;
    cover const within =
        lanewise::cover_of(inside(first), {b.batch, b.head, q_begin - first.q_begin, q_end - first.q_begin,
                                           k_begin - first.k_begin, k_end - first.k_begin});
    bool const clipped = q_begin != b.q_begin || q_end != b.q_end || k_begin != b.k_begin || k_end != b.k_end;
    return clipped && within == cover::full ? cover::partial : within;
  }

  static constexpr int parameters = parameter_count<inner_type>;
  template <int I>
  requires(I < parameters) static constexpr bool sink_parameter = parameter_is_sink<I, inner_type>;
  template <int I>
  requires(I < parameters) LANEWISE_HD constexpr parameter_view<float> parameter_gradient_of() const {
    return parameter_gradient<I>(lanewise::bind(inner, whole));
  }
  template <int I>
  requires(I < parameters) LANEWISE_HD constexpr float parameter_factor_of(float s, position at) const {
    document const d = document_of(at.batch, at.q);
    return at.k < d.k_begin || at.k >= d.k_end ? 0.f : parameter_factor<I>(inside(d), s, local(d, at));
  }

  /// Looks at pointers and counts only: the tables may lie on a device. check_cumulative looks into one on the host.
  constexpr status validate(shape s) const {
    if (count < 0) return fail(status_code::bad_argument, "documents: count is ", count);
    if (!cu_q || !cu_k)
      return fail(status_code::null_view, "documents: ", cu_q ? "cu_k" : "cu_q", " is null, ", count,
                  " documents need ", count + 1, " entries");
    if (batch_stride != 0 && batch_stride <= count)
      return fail(status_code::bad_argument, "documents: batch_stride is ", batch_stride, ", a table of ", count,
                  " documents has ", count + 1, " entries");
    status const bad = validate_gradients(lanewise::bind(inner, s));
    return bad ? lanewise::validate(inner, s) : bad;
  }

 private:
  struct document {
    std::int32_t q_begin, q_end, k_begin, k_end;
  };

  /// The document that query q lies in; all zeros where there is none. Of several that start at the same place it is
  /// the last, the earlier ones having no queries.
  LANEWISE_HD constexpr document document_of(std::int32_t batch, std::int32_t q) const {
    std::int32_t const* const starts = cu_q + batch * batch_stride;
    std::int32_t low = 0, high = count + 1;  // starts[low - 1] <= q < starts[high]
    while (low < high) {
      std::int32_t const middle = low + (high - low) / 2;
      if (starts[middle] <= q) low = middle + 1;
      else high = middle;
    }
    if (low == 0 || low == count + 1) return {};
    std::int32_t const* const keys = cu_k + batch * batch_stride;
    return {starts[low - 1], starts[low], keys[low - 1], keys[low]};
  }
  LANEWISE_HD constexpr inner_type inside(document d) const {
    return lanewise::bind(inner, {whole.batch, whole.heads, d.q_end - d.q_begin, d.k_end - d.k_begin});
  }
  LANEWISE_HD static constexpr position local(document d, position at) {
    return {at.batch, at.head, at.q - d.q_begin, at.k - d.k_begin};
  }

  /// A gradient over q or k would be summed at whole-sequence positions, while the inner variant reads local ones.
  template <int I = 0, class F>
  static constexpr status validate_gradients(F const& f) {
    if constexpr (I < parameters) {
      parameter_view<float> const d = parameter_gradient<I>(f);
      if (d && (d.size[2] != 1 || d.size[3] != 1))
        return fail(status_code::unsupported, "documents: a parameter gradient of an inner variant over [q ", d.size[2],
                    ", k ", d.size[3], "]; put that variant beside documents in combine");
      return validate_gradients<I + 1>(f);
    } else {
      return {};
    }
  }
};
documents(std::int32_t const*, std::int32_t const*, std::int32_t)->documents<full>;
template <class Inner>
documents(std::int32_t const*, std::int32_t const*, std::int32_t, Inner) -> documents<Inner>;
template <class Inner>
documents(std::int32_t const*, std::int32_t const*, std::int32_t, Inner, std::int64_t) -> documents<Inner>;

/// Host only: that a table of count + 1 entries begins at or above 0, never descends and ends within `length`.
constexpr status check_cumulative(char const* name, std::int32_t const* cumulative, std::int32_t count,
                                  std::int64_t length) {
  if (cumulative[0] < 0) return fail(status_code::bad_argument, name, "[0] is ", cumulative[0]);
  for (std::int32_t i = 0; i < count; ++i)
    if (cumulative[i + 1] < cumulative[i])
      return fail(status_code::bad_argument, name, "[", i + 1, "] is ", cumulative[i + 1], ", below ", name, "[", i,
                  "], ", cumulative[i]);
  if (cumulative[count] > length)
    return fail(status_code::bad_argument, name, "[", count, "] is ", cumulative[count], ", the sequence has ", length);
  return {};
}

}  // namespace lanewise
