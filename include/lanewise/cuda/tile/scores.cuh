// The variant on a tile of scores held in accumulators: score, then mask. The lane map gives each element its (row,
// column), the tile its (query, key); which of them is a row is the kernel's choice, S (queries) or S^T (keys).
//
// A masked pair becomes -infinity, decided on the mask alone. A row of the streamed operand (a column here) that no row
// of the tile may see is reported dead, so that what it holds, NaN included, can be zeroed before it meets a product.
#pragma once

#include "../../variant.hpp"
#include "gemm.cuh"

namespace lanewise::gpu {

enum class rows_are { queries, keys };

template <rows_are R>
__device__ __forceinline__ position position_in(block const& tile, int row, int column) {
  if constexpr (R == rows_are::queries) return {tile.batch, tile.head, tile.q_begin + row, tile.k_begin + column};
  else return {tile.batch, tile.head, tile.q_begin + column, tile.k_begin + row};
}

/// Calls visit(element of c, row, column, i, j, e) for each element that this lane holds of a tile whose rows start at
/// `row`. `in_parts`: 16 elements at a time, for visits that read memory, which would else ask for all of it at once
/// and spill.
template <int m, int n, bool in_parts = false, class Visit>
__device__ __forceinline__ void for_each_element(int row, Visit const& visit) {
  int const lane = lane_index_anew();
#pragma unroll
  for (int i = 0; i < m; ++i)
#pragma unroll
    for (int j = 0; j < n; ++j) {
      if (in_parts && j % 4 == 3 && never(j)) return;
#pragma unroll
      for (int e = 0; e < 4; ++e)
        visit(row + 16 * i + c_map::c(lane, e).row, 8 * j + c_map::c(lane, e).column, i, j, e);
    }
}

/// How q.k becomes the exponent of a power of two: x = `before` q.k, through the variant's score, times `factor`.
/// `factor` is positive, so that a row's maximum can be taken first and the product folded into the exponent.
struct score_scale {
  float before, factor;
};
template <class F>
constexpr score_scale score_scale_of(float scale) {
  if (has_score<F>) return {scale, 1.f};
  float const c = scale * log2_e;
  return c > 0.f ? score_scale{1.f, c} : score_scale{c, 1.f};
}

/// A tile with pairs to be masked: past the ends of the sequences where `ragged`, else by the variant alone.
template <rows_are R, bool ragged, int m, int n, class F>
__device__ __forceinline__ void mask_pairs(accumulators<m, n>& s, accumulators<m, n>* raw, F const& f,
                                           block const& tile, int row, cover c, score_scale scale) {
  for_each_element<m, n, has_score<F>>(row, [&](int r, int column, int i, int j, int e) {
    position const at = position_in<R>(tile, r, column);
    constexpr bool asks = has_mask<F> || has_score<F>;  // about pairs that exist; a padding query's results are dropped
    bool const inside = !ragged || ((!asks || at.q < tile.q_end) && at.k < tile.k_end);
    bool const kept = inside && ((ragged && c == cover::full) || keep(f, at));
    float& x = s[i][j].x[e];
    if constexpr (has_score<F>) {
      float const before = x * scale.before;
      if (raw) (*raw)[i][j].x[e] = before;
      if (kept) x = score(f, before, at) * log2_e;
    }
    if (!kept) x = -infinity;
  });
}

/// mask_pairs for a mask of any form, without a score: asked in a loop that is not unrolled, since a mask that reads
/// memory would ask for all of it at once, which spills.
template <rows_are R, bool ragged, int m, int n, class F>
__device__ __forceinline__ void mask_by_bits(accumulators<m, n>& s, F const& f, block const& tile, int row, cover c) {
  static_assert(4 * n <= 64);
  int const lane = lane_index_anew();
#pragma unroll
  for (int i = 0; i < m; ++i) {
    std::uint64_t kept = 0;
#pragma unroll 1
    for (int j = 0; j < n; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        lane_maps::element const x = c_map::c(lane, e);
        position const at = position_in<R>(tile, row + 16 * i + x.row, 8 * j + x.column);
        bool const inside = !ragged || (at.q < tile.q_end && at.k < tile.k_end);
        if (inside && ((ragged && c == cover::full) || keep(f, at))) kept |= std::uint64_t(1) << (4 * j + e);
      }
#pragma unroll
    for (int j = 0; j < n; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!(kept >> (4 * j + e) & 1)) s[i][j].x[e] = -infinity;
  }
}

/// Bits first ... end - 1 of a word, as far as it has them; none where end <= first.
__device__ __forceinline__ std::uint32_t bits_between(int first, int end) {
  int const from = first > 0 ? first : 0;
  std::uint32_t bits;
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(bits) : "r"(from), "r"(end > from ? end - from : 0));
  return bits;
}

/// mask_pairs where every row sees one run of keys and there is no score: the columns that a lane holds of a row are in
/// the run from one of them to another: a run of bits, in words of 32. The ends of the keys are in it; rows past the
/// end of the queries are dropped later.
template <int m, int n, class F>
__device__ __forceinline__ void mask_runs(accumulators<m, n>& s, F const& f, block const& tile, int row) {
  int const lane = lane_index_anew(), column = c_map::c(lane, 0).column;
  auto const columns_below = [&](std::int32_t key) {  // of this lane: its columns are `column` + 8 j and the next
    std::int32_t const x = key - tile.k_begin - column, most = x < 8 * n ? x : 8 * n, end = most > 0 ? most : 0;
    return end / 8 * 2 + (end % 8 < 2 ? end % 8 : 2);
  };
#pragma unroll
  for (int i = 0; i < m; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::int32_t const q = tile.q_begin + row + 16 * i + c_map::c(lane, 2 * half).row;
      block const run = hull_of(f, {tile.batch, tile.head, q, q + 1, tile.k_begin, tile.k_end});
      int const first = columns_below(run.k_begin), end = columns_below(run.k_end);
#pragma unroll
      for (int word = 0; word < n; word += 16) {
        std::uint32_t const kept = bits_between(first - 2 * word, end - 2 * word);
#pragma unroll
        for (int j = word; j < word + 16 && j < n; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (!(kept >> (2 * (j - word) + e) & 1)) s[i][j].x[2 * half + e] = -infinity;
      }
    }
}

/// Scores of one tile, ready for the exponent. `raw`, where given, receives scale q.k as a score's grad wants it.
template <rows_are R, int m, int n, class F>
__device__ __forceinline__ void apply_variant(accumulators<m, n>& s, accumulators<m, n>* raw, F const& f,
                                              block const& tile, int row, cover c, bool ragged, score_scale scale) {
  if (!has_score<F> && scale.before != 1.f)
    for_each_element<m, n>(0, [&](int, int, int i, int j, int e) { s[i][j].x[e] *= scale.before; });
  if constexpr (R == rows_are::queries && !has_score<F> && sees_one_run<F>) {
    if (ragged || c != cover::full) mask_runs(s, f, tile, row);
  } else if constexpr (has_mask<F> && !has_score<F> && !sees_one_run<F>) {
    if (ragged) mask_by_bits<R, true>(s, f, tile, row, c);
    else if (c != cover::full) mask_by_bits<R, false>(s, f, tile, row, c);
  } else if (ragged) {
    mask_pairs<R, true>(s, raw, f, tile, row, c, scale);
  } else if (has_mask<F> && c != cover::full) {
    mask_pairs<R, false>(s, raw, f, tile, row, c, scale);
  } else if constexpr (has_score<F>) {
    for_each_element<m, n, true>(row, [&](int r, int column, int i, int j, int e) {
      float const x = s[i][j].x[e] * scale.before;
      if (raw) (*raw)[i][j].x[e] = x;
      s[i][j].x[e] = score(f, x, position_in<R>(tile, r, column)) * log2_e;
    });
  }
}

/// Columns of this lane where some row may have weight (bit 2 j + c: column 8 j + 2 t + c): not every score is
/// -infinity. Bits are combined rather than compared one by one, which took as long as the mask itself.
template <int m, int n>
__device__ __forceinline__ std::uint32_t live_columns_of(accumulators<m, n> const& s) {
  static_assert(n <= 16, "a lane's columns fit one word");
  constexpr std::uint32_t masked = 0xff800000u;
  std::uint32_t live = 0;
#pragma unroll
  for (int j = 0; j < n; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      std::uint32_t all = ~0u;
#pragma unroll
      for (int i = 0; i < m; ++i)
        all &= bit_cast<std::uint32_t>(s[i][j].x[c]) & bit_cast<std::uint32_t>(s[i][j].x[c + 2]);
      if (all != masked) live |= 1u << (2 * j + c);
    }
  return live;
}

/// Live columns of every warp of the block, in shared memory: one word per warp and t = lane % 4.
template <int warps>
struct live_columns {
  static constexpr int bytes = warps * 16;
  std::uint32_t base;

  __device__ __forceinline__ void publish(std::uint32_t live) const {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) live |= __shfl_xor_sync(0xffffffffu, live, step);
    int const thread = thread_index_anew(), lane = thread & 31;
    if (lane < 4) store_shared_word(base + (thread / 32 * 4 + lane) * 4, live);
  }
  /// After a barrier: no warp sees this column.
  __device__ __forceinline__ bool dead(int column) const {
    std::uint32_t word = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) word |= load_shared_word(base + (w * 4 + column % 8 / 2) * 4);
    return !(word >> (2 * (column / 8) + column % 2) & 1u);
  }
  /// After a barrier: some column of a tile of n 8-column tiles is dead. The same for every thread.
  template <int n>
  __device__ __forceinline__ bool any_dead() const {
    constexpr std::uint32_t all = n == 16 ? 0xffffffffu : (1u << (2 * n % 32)) - 1;
    bool dead = false;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      std::uint32_t word = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) word |= load_shared_word(base + (w * 4 + t) * 4);
      dead |= (word & all) != all;
    }
    return dead;
  }
};

}  // namespace lanewise::gpu
