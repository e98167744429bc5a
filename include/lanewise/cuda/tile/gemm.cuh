// The two products that attention is made of, by one warp. `m` counts 16-row tiles of the warp, `n` 8-column tiles of
// C.
#pragma once

#include "operation.cuh"

namespace lanewise::gpu {

template <int m, int n>
__device__ __forceinline__ void clear(accumulators<m, n>& c) {
#pragma unroll
  for (int i = 0; i < m; ++i)
#pragma unroll
    for (int j = 0; j < n; ++j) c[i][j] = {};
}

/// C = A B^T: rows row ... row + 16 m of tile `a` times every row of tile `b`. `unroll` steps of K are one stretch of
/// code, whose addresses and operands the compiler holds in registers.
template <class Op, int unroll = Op::unroll, int m, int n, class TileA, class TileB>
__device__ __forceinline__ void multiply_rows(accumulators<m, n>& c, TileA a, int row, TileB b) {
  static_assert(n * 8 == TileB::rows && n % 2 == 0 && TileA::width == TileB::width);
  int const lane = lane_index_anew();
  clear<m, n>(c);
#pragma unroll unroll
  for (int k = 0; k < TileA::width; k += Op::k) {
    typename Op::a_fragment fa[m];
#pragma unroll
    for (int i = 0; i < m; ++i) fa[i] = Op::load_a(lane, a, row + 16 * i, k);
#pragma unroll
    for (int j = 0; j < n; j += 2) {
      typename Op::b_fragment const fb = Op::load_b_rows(lane, b, 8 * j, k);
#pragma unroll
      for (int i = 0; i < m; ++i) Op::multiply_add(&c[i][j], fa[i], fb);
    }
  }
  Op::finish_rows(c, lane, a, row, b);
}

/// Never true, which the compiler cannot know: a grid has one dimension (launch.cuh). A branch on it ends a stretch of
/// code; `i` tells branches apart that would else be merged. ptxas schedules a stretch as a whole, and of a long one it
/// begins more than there are registers for: at width 128 in f32_split, dK and dV took 255 and 250 bytes of spills, in
/// stretches of 32 columns 230.
__device__ __forceinline__ bool never(unsigned i) { return gridDim.y == 2 + i; }

/// C += P B: accumulators `p` fed as A, all rows of tile `b` as K. Where the operation promotes its sums, the product
/// over the tile is formed apart and added to C in f32: the tensor core's adder truncates, which over K = 8192 costs
/// 3e-5.
template <class Op, int m, int n, int kn, class Tile>
__device__ __forceinline__ void multiply_columns(accumulators<m, n>& c, accumulators<m, kn> const& p, Tile b) {
  static_assert(kn * 8 == Tile::rows && n * 8 == Tile::width && n % 2 == 0);
  constexpr int steps = kn / Op::c_tiles;
  int const lane = lane_index_anew();
  if constexpr (Op::promotes_sums) {
    fed_row<typename Op::fed, steps> fa[m];
#pragma unroll
    for (int i = 0; i < m; ++i) fa[i] = Op::feed_row(lane, p[i], b);
#pragma unroll
    for (int j = 0; j < n; j += 2) {
      accumulator part[m][2] = {};
#pragma unroll
      for (int s = 0; s < steps; ++s) {
        typename Op::b_fragment const fb = Op::load_b_columns(lane, b, s * Op::k, 8 * j);
#pragma unroll
        for (int i = 0; i < m; ++i) Op::multiply_add(part[i], fa[i].step[s], fb);
      }
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          float& sum = c[i][j + e / 4].x[e % 4];
          sum = fmaf(part[i][e / 4].x[e % 4], fa[i].factor[e % 4 / 2], sum);
        }
      if ((8 * j + 16) % Op::stretch == 0 && never(unsigned(j))) return;
    }
  } else {
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      typename Op::fed fa[m];
#pragma unroll
      for (int i = 0; i < m; ++i) fa[i] = Op::feed(&p[i][s * Op::c_tiles]);
#pragma unroll
      for (int j = 0; j < n; j += 2) {
        typename Op::b_fragment const fb = Op::load_b_columns(lane, b, s * Op::k, 8 * j);
#pragma unroll
        for (int i = 0; i < m; ++i) Op::multiply_add(&c[i][j], fa[i], fb);
        if ((8 * j + 16) % Op::stretch == 0 && never(unsigned(j))) return;
      }
    }
  }
}

/// C += A B over `steps` steps of K: load_a(i, step) gives A, the rows of tile `b` from its first on are K, its columns
/// from `column` on are those of C.
template <class Op, int steps, int m, int n, class LoadA, class Tile>
__device__ __forceinline__ void add_product(accumulators<m, n>& c, LoadA const& load_a, Tile b, int column) {
  static_assert(n % 2 == 0);
  int const lane = lane_index_anew();
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    typename Op::a_fragment fa[m];
#pragma unroll
    for (int i = 0; i < m; ++i) fa[i] = load_a(i, s);
#pragma unroll
    for (int j = 0; j < n; j += 2) {
      typename Op::b_fragment const fb = Op::load_b_columns(lane, b, s * Op::k, column + 8 * j);
#pragma unroll
      for (int i = 0; i < m; ++i) Op::multiply_add(&c[i][j], fa[i], fb);
    }
  }
}

}  // namespace lanewise::gpu
