// What a block leaves in the workspace where several share the walk for a key tile.
#pragma once

#include "../tile/gemm.cuh"
#include "backward_tiles.hpp"

namespace lanewise::sm90 {

/// dK or dV of 64 keys, part `half` of the tile, from one warpgroup.
template <config C>
__device__ __forceinline__ void leave_share(float* room, key_shares const& shares, key_shares::place at, int half,
                                            gpu::accumulators<1, width_of<C> / 8> const& from) {
  using sums = key_sums<C>;
  float* const to =
      room + sums::offset(shares, at) + half * sums::half + gpu::thread_index_anew() % 128 * sums::thread_stride;
#pragma unroll
  for (int j = 0; j < width_of<C> / 8; ++j) {
    float const(&x)[4] = from[0][j].x;
    *reinterpret_cast<float4*>(to + j * sums::block_stride) = {x[0], x[1], x[2], x[3]};
  }
}

}  // namespace lanewise::sm90
