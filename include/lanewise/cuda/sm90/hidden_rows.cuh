// Rows of a tile in shared memory whose weights are all 0 because the mask hides them: 0 times NaN is not 0, so that
// they become zeros before a product reads them.
#pragma once

#include "../instruction/warpgroup.cuh"

namespace lanewise::sm90 {

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
