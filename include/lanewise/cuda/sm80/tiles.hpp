// Tile sizes of the mma.sync kernels, one row per width of a tile. Every row fits the 99 KiB of shared memory that a
// block gets on sm_86, sm_89 and sm_120, so that one table serves sm_80 ... sm_120, and aims at 255 registers without a
// spill (bench/results/resources.csv).
#pragma once

#include "../../attention.hpp"

namespace lanewise::sm80 {

/// Rows are owned by warps, 16 `m` each; columns are streamed in `stages` buffers.
struct shape_of_tile {
  int rows, columns, m, stages;
  constexpr int warps() const { return rows / (16 * m); }
  constexpr int threads() const { return 32 * warps(); }
};

inline constexpr int shared_memory_limit = 101376;

/// Columns of a shared tile: head_dim rounded up so that a row is a multiple of 64 bytes.
template <config C>
constexpr int width_of() {
  constexpr int step = 64 / int(sizeof(element<C>));
  return (C.head_dim + step - 1) / step * step;
}

template <config C>
constexpr bool in_limbs = C.precision == precision::bf16_split || C.precision == precision::f32_split;

/// One 16-row tile per warp where operands take twice the registers: FFMA gathers whole rows, a split has two limbs.
template <config C>
constexpr int widest_m(int m) {
  return C.precision == precision::f32 || in_limbs<C> ? 1 : m;
}

template <config C>
constexpr bool is_16_bit = sizeof(element<C>) == 2;

constexpr shape_of_tile tuned(shape_of_tile table, tile asked, bool rows_are_queries) {
  int const rows = rows_are_queries ? asked.block_q : asked.block_k,
            columns = rows_are_queries ? asked.block_k : asked.block_q;
  if (rows) table.m = rows % (16 * table.m) == 0 ? table.m : 1;
  return {rows ? rows : table.rows, columns ? columns : table.columns, table.m,
          asked.stages ? asked.stages : table.stages};
}

/// Rows: queries with Q and O; columns: keys, K and V. Registers a lane: O 16 m w / 32 + S 16 m columns / 32. In limbs
/// at width 128, 64 x 64 is under a mask 1.03 to 1.27 times as fast as 128 x 32.
template <config C, tuning T, class F>
constexpr shape_of_tile forward_shape() {
  constexpr int w = width_of<C>();
  shape_of_tile t{};
  if (is_16_bit<C>) {
    // 64: O 64 + S 128 registers, 48 KiB; a mask that reads memory needs more of them
    if (w <= 64 && sees_one_run<F> && !has_score<F> && alignof(F) < alignof(void*)) t = {128, 128, widest_m<C>(2), 1};
    else if (w <= 128) t = {128, 64, widest_m<C>(2), 1};  // 128: O 128 + S 64 registers, 64 KiB
    else if (w <= 192) t = {128, 64, 1, 1};               // 192: O 96 + S 32, 96 KiB
    else t = {64, 64, 1, 1};                              // 256: O 128 + S 32, 96 KiB
  } else {
    if (w <= 64) t = {128, 64, widest_m<C>(2), 1};                        // 64: O 64 + S 64, 64 KiB
    else if (w <= 128 && in_limbs<C> && has_mask<F>) t = {64, 64, 1, 1};  // 128: O 64 + S 32, 96 KiB
    else if (w <= 128) t = {128, 32, widest_m<C>(2), 1};                  // 128: O 128 + S 32, 96 KiB
    else if (w <= 192) t = {64, 32, 1, 1};                                // 192: O 96 + S 16, 96 KiB
    else t = {64, 16, 1, 1};                                              // 256: O 128 + S 8, 96 KiB
  }
  return tuned(t, T.sm80_forward, true);
}

/// Rows: keys with K, V, dK, dV; columns: queries, Q and dO. Registers: dK and dV m w, S and dP m columns. Past width
/// 128 dK and dV no longer fit together and are computed one after the other, in f32, whose operands take more
/// registers, past 64: at 128 a second pass over S is 17% faster than 1.6 KB of spills were. In tf32 and f32_split one
/// pass at 128 is 25% faster than two. In limbs, blocks of 64 keys are faster than one of 128 at width 64: in f32_split
/// by 8%, in bf16_split, with 64 queries at a time and the same for dQ, by 20 to 44%.
template <config C, tuning T, class F>
constexpr shape_of_tile key_gradient_shape() {
  constexpr int w = width_of<C>();
  shape_of_tile t{};
  if (is_16_bit<C>) {
    if (w <= 64)
      t = in_limbs<C> ? shape_of_tile{64, 64, 1, 1}
                      : shape_of_tile{128, 32, widest_m<C>(2), 2};             // 64: 128 + 64 registers, 48 KiB
    else if (w <= 128) t = {64, has_score<F> || in_limbs<C> ? 32 : 64, 1, 2};  // 128: 128 + 64, 96 KiB
    else if (w <= 192) t = {64, 32, 1, 2};                                     // 192, one of the two: 96 + 32, 96 KiB
    else t = {64, 32, 1, 1};                                                   // 256: 128 + 32, 96 KiB
  } else {
    if (w <= 64) t = {in_limbs<C> ? 64 : 128, 32, widest_m<C>(2), 1};  // 64: 128 + 64, 80 KiB
    else if (w <= 128) t = {64, 32, 1, 1};                             // 128: 128 + 32, 96 KiB
    else t = {32, 16, 1, 1};                                           // 256: 128 + 16, 96 KiB
  }
  return tuned(t, T.sm80_backward, false);
}
template <config C>
constexpr bool key_gradients_apart = width_of<C>() > (C.precision == precision::f32 ? 64 : 128);

/// Rows: queries with Q, dO, dQ; columns: keys, K and V. Registers: dQ 16 m w / 32 + S and dP 32 m columns / 32.
template <config C, tuning T, class F>
constexpr shape_of_tile query_gradient_shape() {
  constexpr int w = width_of<C>();
  shape_of_tile t{};
  if (is_16_bit<C>) {
    if (w <= 64)
      t = in_limbs<C>
              ? shape_of_tile{64, 64, 1, 1}
              : shape_of_tile{128, has_score<F> ? 32 : 64, widest_m<C>(2), 2};  // 64: 64 + 128 registers, 64 KiB
    else if (w <= 128)
      t = has_score<F> ? shape_of_tile{64, 64, 1, 1}
                       : shape_of_tile{128, 32, widest_m<C>(2), 2};  // 128: 128 + 64, 96 KiB
    else if (w <= 192) t = {64, 32, 1, 2};                           // 192: 96 + 32, 96 KiB
    else t = {64, 32, 1, 1};                                         // 256: 128 + 32, 96 KiB
  } else {
    if (w <= 64)
      t = {in_limbs<C> ? 64 : 128, 32, widest_m<C>(2), C.precision == precision::f32 ? 2 : 1};  // 64 + 64; 96 or 80 KiB
    else if (w <= 128) t = {64, 32, 1, 1};                                                      // 128: 64 + 32, 96 KiB
    else t = {32, 16, 1, 1};                                                                    // 256: 128 + 16, 96 KiB
  }
  return tuned(t, T.sm80_backward, true);
}

/// Where dK, dV and the share of dQ can come from one kernel in five products (one_pass.cuh): 16-bit operands, dK and
/// dV of 32 keys in 128 registers of one or two warps. What asks for tiles of its own gets the two walks that have
/// them.
template <config C, tuning T>
inline constexpr bool has_one_pass =
    (C.precision == precision::bf16 || C.precision == precision::f16) && C.head_dim <= 128 && T.sm80_backward == tile{};

/// A warp of the one-pass backward computes 32 keys x 32 queries of S^T and dP^T at a time. `halves` warps share 32
/// keys: each has half of a step's queries and half of the columns of dK and dV.
///
/// Clocks of a multiprocessor for 64 x 64 pairs at D 128, or 128 x 64 at D 64: 1280 mma.sync at 1.5. ldmatrix reads 512
/// bytes in 4; a product whose warp multiplies 32 rows by n columns, A in shared memory, reads 8 + n / 4 for the n
/// / 2.7 of its mma.sync. dQ leaves at 14.1 bytes a clock, all multiprocessors of an H200 at once:
///           S, dP            dV, dK                 dQ                 dS (P)   memory   mma.sync   dQ to L2
///   D  64   32 x 32, 1.33    A registers, 0.67      32 x 32, 1.33      256       2304      1920       1162
///   D 128   32 x 32, 1.33    half registers, 0.83   32 x 32, 1.33      256       2304      1920       2324
/// Registers: dK and dV 128, S and dP 32 each, dQ 32 in their place. Two blocks of four warps fit the registers of a
/// multiprocessor, and compute while the other waits at a barrier or for its turn.
struct one_pass_shape {
  int rows, columns;  ///< keys of a block; queries of a step
  int halves, stages;
  int heads_in_step;  ///< of key_order: a quarter or an eighth of the blocks that an H200 runs at once
  constexpr int warps() const { return rows / 32 * halves; }
};
template <config C>
inline constexpr one_pass_shape one_pass_tile = width_of<C>() <= 64 ? one_pass_shape{128, 64, 1, 2, 66}  // 64: 97 KiB
                                                                    : one_pass_shape{64, 64, 2, 1, 33};  // 128: 97 KiB

/// Steps of K in one stretch of code, whose addresses and operands are held in registers: 4 where the accumulators that
/// stay take 128 registers and leave no room for more, else all that the operation allows.
template <class Op>
constexpr int steps_at_once(int m, int width) {
  return m * width >= 256 && Op::unroll > 4 ? 4 : Op::unroll;
}

/// Bytes of shared memory, or a sentence with the numbers at compile time.
template <int bytes>
constexpr int fits() {
  static_assert(bytes <= shared_memory_limit,
                "tuning: this sm80 tile needs more shared memory than the 101376 bytes of a block");
  return bytes;
}

}  // namespace lanewise::sm80
