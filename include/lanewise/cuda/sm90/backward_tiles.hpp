// Tiles of the Hopper backward, and the arithmetic behind them; the workspace in which it sums dQ.
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

#include "../../attention.hpp"
#include "../../schedule.hpp"
#include "key_shares.hpp"
#include "tiles.hpp"

namespace lanewise::sm90 {

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

/// dQ of a query tile while blocks add to it: f32, [batch][query head][query tile][part][block of 8
/// columns][thread][4], where a part is what one warpgroup holds, 64 rows x 64 columns in the order of its
/// accumulators.
struct query_sums {
  static constexpr int part = 64 * 64;
  static constexpr int parts = 2;
  static constexpr int bytes = parts * part * int(sizeof(float));  ///< of a query tile
  /// Pieces that are added, and take turns, by themselves: a turn lasts until a piece is written and seen, and the last
  /// of n key tiles ends n - 1 turns after the first. With few steps four pieces save 1 to 2 us of 40, eight no more.
  static constexpr int pieces = 4, piece_bytes = bytes / pieces;
  /// Of a call: a word for each piece, and the count of blocks.
  static std::int64_t words(std::int64_t query_tiles) { return query_tiles * pieces + 1; }
  static constexpr int thread_stride = 4, block_stride = 128 * thread_stride;
};

/// dK or dV of a key tile while several blocks share its walk (key_shares.hpp): f32, [shared key tile][share][64
/// keys][block of 8 columns][thread][4], one array for each gradient.
template <config C>
struct key_sums {
  static constexpr int keys = C.head_dim <= 128 ? backward_tile<C>.columns : 64, halves = keys / 64;
  static constexpr int half = 64 * width_of<C>, part = halves * half;
  static constexpr int thread_stride = 4, block_stride = 128 * thread_stride;
  float *d_k = nullptr, *d_v = nullptr;  ///< null: not wanted

  static std::int64_t count(key_shares const& x) { return x.count > 1 ? x.shared() * x.count * part : 0; }
  static std::size_t bytes(key_shares const& x, wanted grads) {
    return sizeof(float) * std::size_t(count(x)) * std::size_t(grads.d_k + grads.d_v);
  }
  static key_sums in(float* room, key_shares const& x, wanted grads) {
    return {grads.d_k ? room : nullptr, grads.d_v ? room + (grads.d_k ? count(x) : 0) : nullptr};
  }
  LANEWISE_HD static constexpr std::int64_t offset(key_shares const& x, key_shares::place at) {
    return ((at.tile - x.from) * x.count + at.share) * part;
  }
};

/// The key tiles of a call in one line, in which blocks draw their numbers. Heads come in sections; a section is walked
/// level by level from the first key tile to the last, a level being the key tile of one index of all its heads: under
/// causal masks the longest walks come first and the shortest last. A block adds to a query tile after the blocks of
/// earlier key tiles, which all have lower numbers and so run or have run: nobody waits for a block that has not
/// started. It walks its query tiles downwards, those of one index of all query heads of a group one after the other:
/// under causal masks all blocks of a head begin with its last query tile, one turn apart, and none waits for the
/// length of another's walk; and blocks that run together read the same Q and dO and add to the same sums, which L2
/// holds however long the sequence is.
struct key_order {
  std::int32_t tiles, heads, section;  ///< key tiles a head; key/value heads of all batch elements; those of a section

  struct place {
    std::int32_t head, tile;  ///< head = batch element x key/value heads + key/value head
  };
  LANEWISE_HD constexpr std::int64_t count() const { return std::int64_t(tiles) * heads; }
  LANEWISE_HD constexpr place operator[](std::int32_t x) const {
    std::int32_t const whole = section * tiles, s = x / whole, y = x - s * whole;
    std::int32_t const left = heads - s * section, own = left < section ? left : section, level = y / own;
    return {s * section + y - level * own, level};
  }
};

/// Sections of at most `most` heads, as equal as they can be.
constexpr key_order key_order_of(tiling const& t, extents k, std::int64_t most) {
  std::int64_t const heads = k.batch * k.heads, sections = (heads + most - 1) / most,
                     each = sections ? (heads + sections - 1) / sections : 1;
  return {t.k_tiles(), std::int32_t(heads), std::int32_t(each)};
}
/// The blocks of a call in one line: of a section (key_order) first those that walk for its key tiles; behind those of
/// the section after it, when its sums of dQ are complete or nearly so and still in L2, those that write its dQ. None
/// waits for a block behind it.
struct block_line {
  std::int64_t keys, last_keys;  ///< key tiles of a section, of the last one
  std::int64_t writers;          ///< blocks that write dQ of a section
  std::int32_t sections;

  struct place {
    std::int32_t section, index;  ///< index: of the key tile in its section, or of the writer
    bool writes;
  };
  LANEWISE_HD constexpr std::int64_t count() const {
    return sections == 0 ? 0 : (sections - 1) * keys + last_keys + sections * writers;
  }
  LANEWISE_HD constexpr place operator[](std::int64_t x) const {
    std::int64_t const first = sections == 1 ? last_keys : keys, both = keys + writers;
    if (x < first) return {0, std::int32_t(x), false};
    x -= first;
    if (sections == 1) return {0, std::int32_t(x), true};
    std::int32_t s = std::int32_t(1 + x / both);
    if (s > sections - 1) s = sections - 1;
    std::int64_t const y = x - (s - 1) * both, own = s == sections - 1 ? last_keys : keys;
    if (y < own) return {s, std::int32_t(y), false};
    if (y < own + writers) return {s - 1, std::int32_t(y - own), true};
    return {s, std::int32_t(y - own - writers), true};
  }
};
/// A writer does 8 query tiles, 256 KiB of sums, so that its start is little beside them. `ratio` query heads a key
/// head.
inline constexpr std::int32_t tiles_of_writer = 8;
constexpr block_line block_line_of(key_order const& order, std::int64_t query_tiles, std::int64_t ratio, bool writes) {
  if (order.heads == 0) return {0, 0, 0, 0};
  std::int64_t const section = order.section, sections = (order.heads + section - 1) / section,
                     last = order.heads - (sections - 1) * section;
  std::int64_t const writers = (section * ratio * query_tiles + tiles_of_writer - 1) / tiles_of_writer;
  return {section * order.tiles, last * order.tiles, writes ? writers : 0, std::int32_t(sections)};
}

/// Where blocks walk a head each at its own pace: what fits 32 MiB of L2.
constexpr std::int64_t heads_in_l2(std::int64_t bytes_of_head) {
  return (std::int64_t(32) << 20) / (bytes_of_head + 1) + 1;
}
/// Where the turns keep the blocks of a head in step: a quarter or an eighth of the 132 multiprocessors, so that four
/// or eight levels run together and Q, dO and the sums of dQ are fetched once for all of them. Of 4, 8, 16, 33 and 66
/// heads these are the fastest in geometric mean over S 512, 2048, 8192 (docs/performance.md).
template <config C>
inline constexpr std::int64_t heads_in_step = C.head_dim <= 64 ? 33 : 16;

}  // namespace lanewise::sm90
