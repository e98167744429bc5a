// dQ of the query tiles that no key tile visits: zeros, which no block of the backward would write.
#pragma once

#include "../../schedule.hpp"
#include "../row_values.hpp"

namespace lanewise::sm90 {

template <config C, class F>
struct unvisited_queries {
  view<gradient<C>> d_q;  ///< null where nothing is to be written
  F f;
  tiling tiles;

  /// By all threads of a block, for the row_padding rows of a (batch, query head) that begin at `first`.
  __device__ void operator()(std::int32_t batch, std::int32_t head, std::int32_t first) const {
    if (!d_q) return;
    std::int32_t const i = first / tiles.block_q;
    for (std::int32_t x = i; x < i + gpu::row_padding / tiles.block_q && x < tiles.q_tiles(); ++x) {
      if (next_key_tile(f, tiles, batch, head, x, -1) < tiles.k_tiles()) continue;
      block const t = tiles.tile(batch, head, x, 0);
      for (int e = int(threadIdx.x); e < (t.q_end - t.q_begin) * C.head_dim; e += int(blockDim.x))
        d_q.row(batch, t.q_begin + e / C.head_dim, head)[e % C.head_dim] = from_float<gradient<C>>(0.f);
    }
  }
};

}  // namespace lanewise::sm90
