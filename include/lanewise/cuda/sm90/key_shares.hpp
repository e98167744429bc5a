// Shares of a key tile's walk. A block walks for one key tile; where these are few, or do not fill the last round of
// multiprocessors, as in cross-attention to a short prompt, a few of them would walk while the others are idle. There
// the pairs of query tile and head of a walk are dealt out to several blocks, which leave their f32 sums of dK and dV
// in the workspace, to be added in ascending order (backward_sums.cuh). Who shares depends on shape, variant and chip
// alone, so that every sum has one order. dQ needs nothing: shares of a key tile never meet at a query tile.
#pragma once

#include "../../schedule.hpp"

namespace lanewise::sm90 {

/// Blocks for the key tiles of a call, in a line (key_order): one for each before `from`, `count` for each of the rest.
/// A block has a higher number than those of the key tiles before its own, as the turns at the sums of dQ need it.
struct key_shares {
  std::int64_t tiles = 0, from = 0;
  std::int32_t count = 1;

  struct place {
    std::int32_t tile, share;  ///< in the line; below shares_of(tile)
  };
  LANEWISE_HD constexpr std::int64_t shared() const { return tiles - from; }
  LANEWISE_HD constexpr std::int64_t blocks() const { return from + shared() * count; }
  LANEWISE_HD constexpr std::int32_t shares_of(std::int32_t tile) const { return tile < from ? 1 : count; }
  LANEWISE_HD constexpr place operator[](std::int32_t block) const {
    if (block < from) return {block, 0};
    std::int32_t const x = block - std::int32_t(from);
    return {std::int32_t(from) + x / count, x % count};
  }
};

/// The pairs of query tile and head of a walk are dealt out in turn, so that all shares have as much to do, whatever
/// run of tiles a mask leaves.
LANEWISE_HD constexpr bool owns(std::int32_t query_tile, std::int32_t ratio, std::int32_t head, std::int32_t share,
                                std::int32_t shares) {
  // 32 bits that may wrap: all shares count alike, and a 64-bit remainder would be a call.
  std::uint32_t const pair = std::uint32_t(query_tile) * std::uint32_t(ratio) + std::uint32_t(head);
  return pair % std::uint32_t(shares) == std::uint32_t(share);
}

/// Steps of the walks for the key tiles of one key/value head, all query heads of its group together.
struct walk_lengths {
  std::int64_t longest = 0, total = 0;
};
/// As the hulls of the mask say; a variant that reads memory cannot be asked on the host, and counts as none.
template <class F>
constexpr walk_lengths walks_of(F const& f, tiling const& t, std::int32_t ratio) {
  walk_lengths w;
  for (std::int32_t j = 0; j < t.k_tiles(); ++j) {
    block column = t.tile(0, 0, 0, j);
    column.q_end = t.q;
    if constexpr (alignof(F) < alignof(void*)) column = hull_of(f, column);
    if (is_empty(column)) continue;
    std::int64_t const steps = ((column.q_end - 1) / t.block_q - column.q_begin / t.block_q + 1) * ratio;
    w.total += steps;
    if (w.longest < steps) w.longest = steps;
  }
  return w;
}

/// The shares that end first by this account, in quarters of a step: a block costs 4 beside its steps, one that shares
/// 12 more for 128 KiB of sums, `floats` of each gradient, which it leaves and another kernel reads. Where walks are
/// about equally long the blocks run in rounds, and either all key tiles are shared or those of the last round; where
/// they shorten, as under causal masks, the blocks fill all multiprocessors to the end, if the longest walk does not
/// take longer. `heads` are key/value heads of all batch elements. Three rounds of shares leave sums that L2 holds;
/// eight rounds without are even enough; and what gains less than a twentieth may lose as much.
constexpr key_shares fastest_shares(std::int64_t heads, std::int64_t key_tiles, walk_lengths w, std::int64_t processors,
                                    std::int64_t floats) {
  constexpr std::int64_t step = 4, of_block = 4, most = 16, least_steps = 3;
  std::int64_t const of_share = of_block + 12 * floats / (128 * 128), tiles = heads * key_tiles;
  key_shares best{tiles, tiles, 1};
  if (tiles == 0 || w.longest == 0 || tiles >= 8 * processors) return best;
  auto const up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  auto const larger = [](std::int64_t a, std::int64_t b) { return a > b ? a : b; };
  bool const even = 4 * w.total >= 3 * w.longest * key_tiles;
  std::int64_t const whole = step * w.longest + of_block, all = step * w.total * heads;
  std::int64_t const alone =
      even ? up(tiles, processors) * whole : larger(whole, up(all + of_block * tiles, processors));
  std::int64_t least = alone * 19 / 20;
  auto const consider = [&](std::int64_t whole_rounds, std::int64_t count) {
    std::int64_t const from = whole_rounds * processors, blocks = (tiles - from) * count;
    std::int64_t const share = step * up(w.longest, count) + of_share;
    std::int64_t const end = even ? whole_rounds * whole + up(blocks, processors) * share
                                  : larger(share, up(all + of_share * blocks, processors));
    if (blocks <= 3 * processors && end < least) least = end, best = {tiles, from, std::int32_t(count)};
  };
  for (std::int64_t count = 2; count <= most && count * least_steps <= w.longest; ++count) {
    consider(0, count);
    if (even && tiles > processors) consider(tiles / processors, count);
  }
  return best;
}

/// Of a call whose walks are tiled as `t`.
template <class F>
constexpr key_shares shares_of(tiling const& t, extents q, extents k, F const& f, int processors, int floats) {
  walk_lengths const none, w = q.count() == 0 ? none : walks_of(f, t, head_ratio(q, k));
  return fastest_shares(k.batch * k.heads, t.k_tiles(), w, processors, floats);
}

}  // namespace lanewise::sm90
