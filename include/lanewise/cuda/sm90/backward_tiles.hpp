// Tiles of the Hopper backward, and the arithmetic behind them.
//
// Five products of rows x columns x D a step: the matrix units of a multiprocessor take rows columns D 10 / 4096
// clocks. Shared memory gives 128 bytes a clock to the operands and to dS and dQ on their way. KiB of a step, and
// clocks:
//          rows columns  products  S, dP   dV, dK  dQ  dS  dQ out  memory  dQ to L2, bytes a clock
//   D  64   128   128      2560    2 x 64  2 x 32  64  32    64     2816   32 KiB / 2560 = 12.8
//   D 128    64   128      2560    2 x 64  2 x 32  64  16    64     2688   12.8
// All 132 multiprocessors together add 14.1 bytes a clock each to f32 in L2. That traffic depends on the keys of a
// block alone, so that 128 are the fewest that it can own. Registers of a computing warpgroup, of 240: dK and dV width
// / 2 each, S 32 a chunk of 64 rows, dP 32, P 16, dS 16 a chunk; dQ takes those of dP.
#pragma once

#include "../../schedule.hpp"
#include "../query_sums.hpp"
#include "tiles.hpp"

namespace lanewise::sm90 {

using gpu::heads_in_l2, gpu::key_order, gpu::key_order_of;

/// Head dims up to 128 have the backward of five products here.
template <config C>
inline constexpr bool has_backward = has_forward<C>&& C.head_dim <= 128;

/// Those above have dK and dV from one kernel and dQ from another: 128 registers a thread hold 64 rows of one of them.
template <config C>
inline constexpr bool has_wide_backward = has_forward<C>&& C.head_dim > 128;

/// A step that asks for every pair: the mask hides some, keys are missing, or a score would see queries that are.
template <int rows, int columns, class F>
LANEWISE_HD constexpr bool asks_for_pairs(F const& f, block const& t) {
  bool const ragged_keys = t.k_end - t.k_begin < columns, ragged_rows = t.q_end - t.q_begin < rows;
  bool const partial = has_mask<F> && cover_of(f, t) == cover::partial;
  return partial || ragged_keys || (has_score<F> && ragged_rows);
}

struct backward_shape {
  int rows, columns;  ///< queries of a tile; keys of a block, 64 a warpgroup
  int slabs;          ///< of 64 columns of the head dim
  constexpr gpu::query_sums sums() const { return {rows, slabs, 4, 8}; }
};
template <config C>
inline constexpr backward_shape backward_tile =
    C.head_dim <= 64 ? backward_shape{128, 128, 1} : backward_shape{64, 128, 2};

/// Two warpgroups compute, one copies and walks; a variant that reads memory needs registers for the walk.
struct wide_shape {
  int rows, columns;  ///< queries and keys of a step
  int producer_registers;
  LANEWISE_HD constexpr int consumer_registers() const { return (504 - producer_registers) / 2; }
};
template <class F>
inline constexpr int wide_producer_registers = alignof(F) >= alignof(void*) ? 56 : 40;
template <config C, class F>
inline constexpr wide_shape wide_key_tile = {64, 64, wide_producer_registers<F>};
template <config C, class F>
inline constexpr wide_shape wide_query_tile = {128, 64, wide_producer_registers<F>};

/// Where the turns keep the blocks of a head in step: a quarter or an eighth of the 132 multiprocessors, so that four
/// or eight levels run together and Q, dO and the sums of dQ are fetched once for all of them. Of 4, 8, 16, 33 and 66
/// heads these are the fastest in geometric mean over S 512, 2048, 8192 (docs/performance.md).
template <config C>
inline constexpr std::int64_t heads_in_step = C.head_dim <= 64 ? 33 : 16;

}  // namespace lanewise::sm90
