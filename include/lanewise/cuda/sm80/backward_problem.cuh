// What the kernels of the backward share: the call, the row sums that preprocess.cuh leaves in the workspace, and the
// step from scores to P and dS.
//
// Two walks, seven products where five are counted: one keeps dK and dV of a key tile and walks queries, the other
// keeps dQ of a query tile and walks keys. No block adds to what another adds to, so every sum has one order by
// construction, and no f32 copy of dQ is needed.
#pragma once

#include "../../schedule.hpp"
#include "../launch.cuh"
#include "../row_values.hpp"
#include "../tile/copy.cuh"
#include "../tile/scores.cuh"
#include "../tile/softmax.cuh"
#include "../tile/store.cuh"
#include "tiles.hpp"

namespace lanewise::sm80 {

using gpu::padded_rows, gpu::row_padding, gpu::row_values;

template <config C, class F>
struct backward_problem {
  backward_args<C> a;
  F f;
  gpu::score_scale scale;
  std::int32_t q_length, k_length, ratio;
  std::int64_t rows;  ///< padded rows of a head
  row_values row;
  bool aligned_inputs, aligned_outputs;

  backward_problem(backward_args<C> const& a, F const& f, row_values row)
      : a(a), f(f), scale(gpu::score_scale_of<F>(a.scale)), q_length(std::int32_t(a.q.size.sequence)),
        k_length(std::int32_t(a.k.size.sequence)), ratio(head_ratio(a.q.size, a.k.size)),
        rows(padded_rows(a.q.size.sequence)), row(row), aligned_inputs(inputs_aligned(a)),
        aligned_outputs(gpu::aligned_to_16(a.d_q) && gpu::aligned_to_16(a.d_k) && gpu::aligned_to_16(a.d_v)) {}

  static bool inputs_aligned(backward_args<C> const& a) {
    return gpu::aligned_to_16(a.q) && gpu::aligned_to_16(a.k) && gpu::aligned_to_16(a.v) && gpu::aligned_to_16(a.o) &&
           gpu::aligned_to_16(a.d_o);
  }
  __device__ std::int64_t row_index(std::int64_t b, std::int64_t h, std::int64_t q) const {
    return (b * a.q.size.heads + h) * rows + q;
  }
  /// In a kernel's own constants: counting tiles is no division.
  __host__ __device__ tiling tiles(std::int32_t block_q, std::int32_t block_k) const {
    return {q_length, k_length, block_q, block_k};
  }
};

/// Pairs of weight 0, the masked ones among them, take no part, whatever dP holds: what a masked row of dO or V
/// contains, NaN included, ends here.
template <int m, int n>
__device__ __forceinline__ void drop_masked(gpu::accumulators<m, n> const& p, gpu::accumulators<m, n>& dp) {
  gpu::for_each_element<m, n>(0, [&](int, int, int i, int j, int e) {
    if (p[i][j].x[e] == 0.f) dp[i][j].x[e] = 0.f;
  });
}

/// dS with respect to the scaled product: the chain rule through the variant's score. dS of a masked pair is 0 and
/// stays.
template <gpu::rows_are R, int m, int n, class F>
__device__ __forceinline__ void through_score(gpu::accumulators<m, n>& ds, gpu::accumulators<m, n> const& raw,
                                              F const& f, block const& tile, int row) {
  gpu::for_each_element<m, n>(row, [&](int r, int column, int i, int j, int e) {
    float& x = ds[i][j].x[e];
    if (x != 0.f) x *= score_grad(f, raw[i][j].x[e], gpu::position_in<R>(tile, r, column));
  });
}

/// P^T = 2^(S^T factor - LSE): an f32 at shared address `base` for each column.
template <int m, int n>
__device__ __forceinline__ void column_probabilities(gpu::accumulators<m, n>& s, float factor, std::uint32_t base) {
  std::uint32_t const column = base + (gpu::lane_index_anew() & 3) * 8;
#pragma unroll
  for (int j = 0; j < n; ++j) {
    float2 const lse = gpu::load_shared_2(column + 32 * j);
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s[i][j].x[e] = gpu::exp2_approximate(fmaf(s[i][j].x[e], factor, e % 2 ? -lse.y : -lse.x));
  }
}
/// dS^T = P^T (dP^T - delta), in place of dP^T: an f32 at shared address `delta` for each column.
template <int m, int n>
__device__ __forceinline__ void column_score_gradients(gpu::accumulators<m, n> const& p, gpu::accumulators<m, n>& dp,
                                                       std::uint32_t delta) {
  std::uint32_t const column = delta + (gpu::lane_index_anew() & 3) * 8;
#pragma unroll
  for (int j = 0; j < n; ++j) {
    float2 const of = gpu::load_shared_2(column + 32 * j);
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[i][j].x[e] = p[i][j].x[e] * (dp[i][j].x[e] - (e % 2 ? of.y : of.x));
  }
}

/// Scores before the variant's, kept only where a score's grad will ask for them.
template <class F, int m, int n>
struct raw_scores {
  gpu::accumulators<m, n> s;
  __device__ __forceinline__ gpu::accumulators<m, n>* address() { return &s; }
};
template <class F, int m, int n>
requires(!has_score<F>) struct raw_scores<F, m, n> {
  __device__ __forceinline__ static constexpr gpu::accumulators<m, n>* address() { return nullptr; }
};

}  // namespace lanewise::sm80
