// The steps of a backward between its products, on transposed scores S^T in accumulators of a warpgroup: rows are keys,
// g and g + 8 of a warp's 16, columns queries, on lane_maps::wgmma_m64.
#pragma once

#include "../../variant.hpp"
#include "../instruction/stmatrix.cuh"
#include "scores.cuh"
#include "shared_tile.cuh"
#include "swizzled_tile.cuh"

namespace lanewise::gpu {

/// An accumulator tile of 64 x 8 n rounded to 16 bits, as the A operand of n / 2 steps of K.
template <int n>
using fragments = std::uint32_t[n / 2][4];

/// Which of this lane's pairs of a tile of `rows` x `columns` lie inside it: bit 4 j + e for element e of block j.
/// `row` is this warp's first row of the tile.
__device__ __forceinline__ std::uint32_t pairs_inside(int row, int rows, int columns) {
  auto const blocks_below = [](int end) {  // the bits of blocks whose first column is below `end`
    int const count = end <= 0 ? 0 : (end + 7) / 8;
    return count >= 8 ? 0xffffffffu : (1u << 4 * count) - 1;
  };
  int const lane = lane_index_anew(), column = lane % 4 * 2;
  std::uint32_t const in_columns =
      (blocks_below(columns - column) & 0x55555555u) | (blocks_below(columns - column - 1) & 0xaaaaaaaau);
  row += lane / 4;
  return in_columns & ((row < rows ? 0x33333333u : 0u) | (row + 8 < rows ? 0xccccccccu : 0u));
}

/// Which of this lane's pairs of a tile of S^T (or S: rows are queries) lie inside it and are kept: bit 4 j + e for
/// element e of block j. Asked while the registers of S^T and dP^T are free. `row` is this warp's first row of the
/// tile.
template <int n, rows_are R = rows_are::keys, class F>
__device__ __forceinline__ std::uint32_t kept_pairs(F const& f, block const& tile, int row) {
  static_assert(4 * n <= 32);
  // The last keys of an odd number, at every step of their block: the loop below takes a fifth of a step's time.
  if constexpr (!has_mask<F>) {
    int const queries = tile.q_end - tile.q_begin, keys = tile.k_end - tile.k_begin;
    return R == rows_are::keys ? pairs_inside(row, keys, queries) : pairs_inside(row, queries, keys);
  }
  std::uint32_t kept = 0;
  int const lane = lane_index_anew();
#pragma unroll 1  // unrolled, a mask that reads memory asks for all of it at once: spills
  for (int j = 0; j < n; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      position const at = position_in<R>(tile, row + c_map::c(lane, e).row, 8 * j + c_map::c(lane, e).column);
      if (at.q < tile.q_end && at.k < tile.k_end && keep(f, at)) kept |= 1u << (4 * j + e);
    }
  return kept;
}

/// P^T = 2^(S^T factor - LSE), rounded to E for dV += P^T dO; in place of S^T its weight in dS: P^T times the score's
/// derivative. `row` is this warp's first key of the tile, `base` the shared address of an LSE (log2 units) per column.
/// `masked`: only the pairs in `kept` take part.
template <bool masked, class E, int n, class F>
__device__ __forceinline__ void exponentiate_columns(accumulators<1, n>& s, fragments<n>& p, F const& f,
                                                     block const& tile, int row, std::uint32_t kept, score_scale scale,
                                                     std::uint32_t base) {
  int const lane = lane_index_anew();
  auto const weigh = [&](float& x, float lse, int j, int e) {
    bool const takes_part = !masked || (kept >> (4 * j + e) & 1u);
    float derivative = 1.f;
    if constexpr (has_score<F>)
      if (takes_part) {
        position const at = position_in<rows_are::keys>(tile, row + lane / 4 + e / 2 * 8, 8 * j + lane % 4 * 2 + e % 2);
        float const raw = x * scale.before;
        x = score(f, raw, at) * log2_e;
        derivative = score_grad(f, raw, at);
      }
    float const probability = takes_part ? exp2_approximate(fmaf(x, scale.factor, -lse)) : 0.f;
    x = has_score<F> && probability != 0.f ? probability * derivative : probability;
    return probability;
  };
#pragma unroll
  for (int j = 0; j < n; ++j) {
    float2 const lse = load_shared_2(base + std::uint32_t(lane % 4 * 8 + 32 * j));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float const x = weigh(s[0][j].x[2 * half], lse.x, j, 2 * half);
      float const y = weigh(s[0][j].x[2 * half + 1], lse.y, j, 2 * half + 1);
      p[j / 2][j % 2 * 2 + half] = pack(E{}, x, y);
    }
  }
}

/// dS^T = weight (dP^T - delta), rounded to E. A pair of weight 0, the masked ones among them, takes no part whatever
/// dP holds: what a hidden row of dO or V contains, NaN included, ends here.
template <bool masked, class E, int n>
__device__ __forceinline__ void score_gradients(fragments<n>& ds, accumulators<1, n> const& weight,
                                                accumulators<1, n> const& dp, std::uint32_t delta) {
  std::uint32_t const column = delta + std::uint32_t(lane_index_anew() % 4 * 8);
#pragma unroll
  for (int j = 0; j < n; ++j) {
    float2 const d = load_shared_2(column + std::uint32_t(32 * j));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      auto const times = [](float w, float x) { return masked && w == 0.f ? 0.f : w * x; };
      ds[j / 2][j % 2 * 2 + half] = pack(E{}, times(weight[0][j].x[2 * half], dp[0][j].x[2 * half] - d.x),
                                         times(weight[0][j].x[2 * half + 1], dp[0][j].x[2 * half + 1] - d.y));
    }
  }
}

/// S to its weight in dS where rows are queries: P = 2^(S factor - LSE) times the score's derivative. `base` is the LSE
/// (log2 units) of this lane's rows g and g + 8, `row` this warp's first query of the tile.
template <bool masked, int n, class F>
__device__ __forceinline__ void exponentiate_rows(accumulators<1, n>& s, F const& f, block const& tile, int row,
                                                  std::uint32_t kept, score_scale scale, float const (&base)[2]) {
  int const lane = lane_index_anew();
#pragma unroll
  for (int j = 0; j < n; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& x = s[0][j].x[e];
      bool const takes_part = !masked || (kept >> (4 * j + e) & 1u);
      float derivative = 1.f;
      if constexpr (has_score<F>)
        if (takes_part) {
          position const at =
              position_in<rows_are::queries>(tile, row + lane / 4 + e / 2 * 8, 8 * j + lane % 4 * 2 + e % 2);
          float const raw = x * scale.before;
          x = score(f, raw, at) * log2_e;
          derivative = score_grad(f, raw, at);
        }
      x = takes_part ? exp2_approximate(fmaf(x, scale.factor, -base[e / 2])) : 0.f;
      if (has_score<F> && x != 0.f) x *= derivative;
    }
}

/// dS = weight (dP - delta) where rows are queries, rounded to E as the A operand of dQ += dS K; as score_gradients().
template <bool masked, class E, int n>
__device__ __forceinline__ void score_gradients_of_rows(fragments<n>& ds, accumulators<1, n> const& weight,
                                                        accumulators<1, n> const& dp, float const (&delta)[2]) {
  auto const times = [](float w, float x) { return masked && w == 0.f ? 0.f : w * x; };
#pragma unroll
  for (int j = 0; j < n; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      ds[j / 2][j % 2 * 2 + half] = pack(E{}, times(weight[0][j].x[2 * half], dp[0][j].x[2 * half] - delta[half]),
                                         times(weight[0][j].x[2 * half + 1], dp[0][j].x[2 * half + 1] - delta[half]));
}

/// dS^T to dS in shared memory, rows queries, columns keys: the A operand of dQ = dS K. Query 0 goes to row `row`, a
/// multiple of 8, this warp's first key to column `column`, a multiple of 16.
template <int n, class Tile>
__device__ __forceinline__ void store_transposed(Tile to, int row, int column, fragments<n> const& ds) {
  static_assert(Tile::span == 128);
  int const lane = lane_index_anew(), r = lane % 8, matrix = lane / 8;
  int const chunk = (column % Tile::slab_columns + matrix % 2 * 8) / 8;
  std::uint32_t const address = to.slab(column / Tile::slab_columns) +
                                std::uint32_t((row + matrix / 2 * 8 + r) * Tile::span + ((chunk ^ r) << 4));
#pragma unroll
  for (int i = 0; i < n / 2; ++i) stmatrix_transposed(address + std::uint32_t(16 * i * Tile::span), ds[i]);
}

}  // namespace lanewise::gpu
