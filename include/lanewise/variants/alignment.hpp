// How positions of queries and keys are aligned when their sequences differ in length.
//
// Every stock variant that compares q with k has an `offset`: query q stands at key position q + offset. Offset 0
// aligns the first query with the first key (top-left); the *_bottom_right variants align the last with the last, which
// is offset = Sk - Sq and is known only when a call gives its shape.
#pragma once

#include <cstdint>

#include "../status.hpp"
#include "../variant.hpp"

namespace lanewise {

/// Aligns the last query with the last key.
LANEWISE_HD constexpr std::int32_t bottom_right_offset(shape s) { return s.k - s.q; }

namespace detail {

/// q + offset - k is computed in 32 bits: ok where that cannot overflow for any pair of the shape.
constexpr status check_offset(char const* variant, std::int32_t offset, shape s) {
  constexpr std::int64_t limit = std::int64_t(1) << 31;
  std::int64_t const wide = offset, last_q = wide + s.q, last_k = wide - s.k;
  if (last_q < limit && last_k > -limit) return {};
  return fail(status_code::bad_argument, variant, ": offset ", offset, " leaves 32 bits with ", s.q, " queries and ",
              s.k, " keys");
}

/// The part of b where low <= k - q <= high can hold.
LANEWISE_HD constexpr block band_hull(block b, std::int64_t low, std::int64_t high) {
  auto const larger = [](std::int32_t x, std::int64_t y) { return y > x ? std::int32_t(y) : x; };
  auto const smaller = [](std::int32_t x, std::int64_t y) { return y < x ? std::int32_t(y) : x; };
  return {b.batch,
          b.head,
          larger(b.q_begin, b.k_begin - high),
          smaller(b.q_end, b.k_end - low),
          larger(b.k_begin, b.q_begin + low),
          smaller(b.k_end, b.q_end + high)};
}

}  // namespace detail
}  // namespace lanewise
