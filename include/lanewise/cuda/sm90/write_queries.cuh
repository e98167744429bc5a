// dQ of 64 rows from their sums in the workspace (backward_tiles.hpp), in the order in which the accumulators were
// written: scaled, rounded, in rows.
#pragma once

#include "../tile/store.cuh"
#include "backward_tiles.hpp"

namespace lanewise::sm90 {

/// By the 128 threads of four warps, `warp` the first of them; `sums` are those of the query tile `t`, null where no
/// key tile visits it.
template <config C, class G>
__device__ __forceinline__ void write_queries(view<G> const& d_q, block const& t, int part, float const* sums,
                                              int thread, float scale, bool aligned, bool accumulate) {
  constexpr int n = width_of<C> / 8;
  int const row = 64 * part, valid = t.q_end - t.q_begin - row;
  if (valid <= 0) return;
  gpu::accumulators<1, n> sum;
  gpu::clear<1, n>(sum);
  if (sums) {
    float const* const from = sums + part * query_sums::part + thread * query_sums::thread_stride;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      float4 const four =
          __ldcg(reinterpret_cast<float4 const*>(from + j / 8 * query_sums::part + j % 8 * query_sums::block_stride));
      sum[0][j] = {{four.x, four.y, four.z, four.w}};
    }
  }
  float const factor[1][2] = {{scale, scale}};
  gpu::store_rows<C.head_dim, G>(
      {d_q.row(t.batch, t.q_begin + row, t.head), d_q.stride.sequence, valid, aligned, accumulate}, thread / 32 * 16,
      sum, factor);
}

}  // namespace lanewise::sm90
