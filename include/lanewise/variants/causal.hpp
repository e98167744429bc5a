// Causal masks. When Sq != Sk there are two of them and a call has to say which, so none is called just `causal`.
#pragma once

#include <cstdint>

#include "alignment.hpp"

namespace lanewise {

/// Keeps k <= q + offset (inclusive). What causal_bottom_right becomes in a call; also for one piece of a longer
/// sequence whose first query stands at key position `offset`. Rows with q < -offset see no key.
struct causal_offset {
  std::int32_t offset = 0;

  LANEWISE_HD constexpr bool operator()(position at) const { return at.k <= at.q + offset; }
  LANEWISE_HD constexpr cover cover_of(block b) const {
    if (b.k_end - 1 <= b.q_begin + offset) return cover::full;
    return b.k_begin > b.q_end - 1 + offset ? cover::empty : cover::partial;
  }
  LANEWISE_HD constexpr block hull_of(block b) const { return detail::band_hull(b, INT32_MIN, offset); }
  static constexpr bool sees_one_run = true;
  constexpr status validate(shape s) const { return detail::check_offset("causal_offset", offset, s); }
};

/// Keeps k <= q (inclusive): the first query sees the first key, whatever the lengths (PyTorch's is_causal).
struct causal_top_left {
  LANEWISE_HD constexpr bool operator()(position at) const { return at.k <= at.q; }
  LANEWISE_HD constexpr cover cover_of(block b) const { return causal_offset{}.cover_of(b); }
  LANEWISE_HD constexpr block hull_of(block b) const { return causal_offset{}.hull_of(b); }
  static constexpr bool sees_one_run = true;
};

/// Keeps k <= q + Sk - Sq (inclusive): the last query sees every key (flash-attn's causal). With Sq > Sk the first
/// Sq - Sk rows are empty.
struct causal_bottom_right {
  LANEWISE_HD constexpr causal_offset bind(shape s) const { return {bottom_right_offset(s)}; }
};

}  // namespace lanewise
