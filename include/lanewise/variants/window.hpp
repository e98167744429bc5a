// Sliding windows over the distance d = k - (q + offset), both ends inclusive.
#pragma once

#include <cstdint>

#include "alignment.hpp"

namespace lanewise {

/// The width of a window side that has no end. Neither 0 (the query's own position only) nor -1 (refused).
inline constexpr std::int32_t unbounded = INT32_MAX;

/// Keeps -left <= k - (q + offset) <= right (both inclusive): left + right + 1 keys in the middle of a sequence.
/// window{128, 0} is causal over 129 keys, window{unbounded, 0} is causal_top_left, window{0, 0} the diagonal.
struct window {
  std::int32_t left = unbounded, right = unbounded;
  std::int32_t offset = 0;  ///< key position of query 0: 0 is top-left; window_bottom_right is the other alignment

  LANEWISE_HD constexpr bool operator()(position at) const {
    std::int32_t const d = at.k - (at.q + offset);
    return -left <= d && d <= right;
  }
  LANEWISE_HD constexpr cover cover_of(block b) const {
    std::int32_t const least = b.k_begin - (b.q_end - 1 + offset), most = b.k_end - 1 - (b.q_begin + offset);
    if (least >= -left && most <= right) return cover::full;
    return most < -left || least > right ? cover::empty : cover::partial;
  }
  LANEWISE_HD constexpr block hull_of(block b) const {
    return detail::band_hull(b, std::int64_t(offset) - left, std::int64_t(offset) + right);
  }
  static constexpr bool sees_one_run = true;
  constexpr status validate(shape s) const {
    if (left < 0 || right < 0)
      return fail(status_code::bad_argument, "window: left ", left, " and right ", right,
                  " must not be negative; a side without an end is lanewise::unbounded");
    return detail::check_offset("window", offset, s);
  }
};

/// Keeps -left <= k - (q + Sk - Sq) <= right (both inclusive): the last query stands at the last key.
struct window_bottom_right {
  std::int32_t left = unbounded, right = unbounded;

  LANEWISE_HD constexpr window bind(shape s) const { return {left, right, bottom_right_offset(s)}; }
  constexpr status validate(shape s) const { return bind(s).validate(s); }
};

}  // namespace lanewise
