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

  /// Exact for a block inside one document where the inner variant is; else empty only where the hull is.
  LANEWISE_HD constexpr cover cover_of(block b) const {
    block const hull = hull_of(b);
    if (is_empty(hull)) return cover::empty;
    document const d = document_of(b.batch, hull.q_begin);
    if (hull.q_end > d.q_end) return cover::partial;
    std::int32_t const k_begin = hull.k_begin > d.k_begin ? hull.k_begin : d.k_begin;
    std::int32_t const k_end = hull.k_end < d.k_end ? hull.k_end : d.k_end;
    if (k_begin >= k_end) return cover::empty;
    cover const within = lanewise::cover_of(
        inside(d),
        {b.batch, b.head, hull.q_begin - d.q_begin, hull.q_end - d.q_begin, k_begin - d.k_begin, k_end - d.k_begin});
    bool const clipped = hull.q_begin != b.q_begin || hull.q_end != b.q_end || k_begin != b.k_begin || k_end != b.k_end;
    return clipped && within == cover::full ? cover::partial : within;
  }

  /// The keys of the documents from the first to the last query's, and the queries of those of the keys; of that, in
  /// one document, the inner variant's hull.
  LANEWISE_HD constexpr block hull_of(block b) const {
    b = clipped(b);
    if (is_empty(b)) return without_keys(b);
    std::int32_t const* const q = cu_q + b.batch * batch_stride;
    std::int32_t const* const k = cu_k + b.batch * batch_stride;
    std::int32_t const q_first = index_of(q, b.q_begin), q_last = index_of(q, b.q_end - 1);
    std::int32_t const k_first = index_of(k, b.k_begin), k_last = index_of(k, b.k_end - 1);
    if (k[q_first] > b.k_begin) b.k_begin = k[q_first];
    if (k[q_last + 1] < b.k_end) b.k_end = k[q_last + 1];
    if (q[k_first] > b.q_begin) b.q_begin = q[k_first];
    if (q[k_last + 1] < b.q_end) b.q_end = q[k_last + 1];
    if (is_empty(b)) return without_keys(b);
    if (q_first != q_last) return b;
    document const d{q[q_first], q[q_first + 1], k[q_first], k[q_first + 1]};
    block const hull = lanewise::hull_of(inside(d), {b.batch, b.head, b.q_begin - d.q_begin, b.q_end - d.q_begin,
                                                     b.k_begin - d.k_begin, b.k_end - d.k_begin});
    return {b.batch,
            b.head,
            hull.q_begin + d.q_begin,
            hull.q_end + d.q_begin,
            hull.k_begin + d.k_begin,
            hull.k_end + d.k_begin};
  }
  static constexpr bool sees_one_run = lanewise::sees_one_run<inner_type>;

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

  /// The last i with starts[i] <= at, of count + 1 entries; -1 where there is none.
  LANEWISE_HD constexpr std::int32_t index_of(std::int32_t const* starts, std::int32_t at) const {
    std::int32_t low = 0, high = count + 1;  // starts[low - 1] <= at < starts[high]
    while (low < high) {
      std::int32_t const middle = low + (high - low) / 2;
      if (starts[middle] <= at) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
  /// The document that query q lies in; all zeros where there is none. Of several that start at the same place it is
  /// the last, the earlier ones having no queries.
  LANEWISE_HD constexpr document document_of(std::int32_t batch, std::int32_t q) const {
    std::int32_t const* const starts = cu_q + batch * batch_stride;
    std::int32_t const* const keys = cu_k + batch * batch_stride;
    std::int32_t const i = index_of(starts, q);
    if (i < 0 || i == count) return {};
    return {starts[i], starts[i + 1], keys[i], keys[i + 1]};
  }
  /// Without what lies before the first document and after the last.
  LANEWISE_HD constexpr block clipped(block b) const {
    std::int32_t const* const q = cu_q + b.batch * batch_stride;
    std::int32_t const* const k = cu_k + b.batch * batch_stride;
    if (q[0] > b.q_begin) b.q_begin = q[0];
    if (q[count] < b.q_end) b.q_end = q[count];
    if (k[0] > b.k_begin) b.k_begin = k[0];
    if (k[count] < b.k_end) b.k_end = k[count];
    return b;
  }
  LANEWISE_HD static constexpr block without_keys(block b) {
    if (b.k_begin < b.k_end) b.k_begin = b.k_end;
    return b;
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
