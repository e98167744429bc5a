// Rows of a tile in shared memory whose weights are all 0 because the mask hides them: 0 times NaN is not 0, so that
// they become zeros before a product reads them.
#pragma once

#include "../../schedule.hpp"
#include "../instruction/warpgroup.cuh"

namespace lanewise::sm90 {

/// Query q sees no key of the tile.
template <class F>
__device__ bool sees_no_key(F const& f, block const& t, std::int32_t q) {
  if (keep(f, {t.batch, t.head, q, t.k_begin}) || keep(f, {t.batch, t.head, q, t.k_end - 1})) return false;
  block const row = hull_of(f, {t.batch, t.head, q, q + 1, t.k_begin, t.k_end});
  for (std::int32_t k = row.k_begin; k < row.k_end; ++k)
    if (keep(f, {t.batch, t.head, q, k})) return false;
  return true;
}

/// Zeroes the rows r < `rows` of the tiles where hidden(r), by all threads of one warpgroup, which alone uses
/// `barrier`. Several warpgroups may do it for the same rows: all write the same.
template <int rows, class Hidden, class... Tile>
__device__ __forceinline__ void zero_hidden_rows(int barrier, Hidden const& hidden, Tile... tile) {
  static_assert(rows <= 128, "a thread for each row");
  int const r = int(threadIdx.x % 128);
  bool const zero = r < rows && hidden(r);
  if (!gpu::warpgroup_any(barrier, zero)) return;
  if (zero) (tile.zero_row(r), ...);
  gpu::async_proxy_fence();
  gpu::warpgroup_barrier(barrier);
}

}  // namespace lanewise::sm90
