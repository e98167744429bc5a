// Which key tiles a query tile visits, and the reverse. A tile is empty (never touched), partial (masked pair by pair)
// or full (the mask is not looked at); the answer comes from the variant's cover_of. From an empty tile the walk skips
// to where the variant's hull_of says that the rest begins, so a window or a document costs its own tiles, not the
// sequence's.
#pragma once

#include <cstdint>

#include "variant.hpp"

namespace lanewise {

/// The tiling of one (batch, head): query tiles of block_q rows, key tiles of block_k rows, the last ones ragged.
struct tiling {
  std::int32_t q, k;              ///< sequence lengths
  std::int32_t block_q, block_k;  ///< rows of a tile

  LANEWISE_HD constexpr std::int32_t q_tiles() const { return (q + block_q - 1) / block_q; }
  LANEWISE_HD constexpr std::int32_t k_tiles() const { return (k + block_k - 1) / block_k; }
  LANEWISE_HD constexpr block tile(std::int32_t batch, std::int32_t head, std::int32_t i, std::int32_t j) const {
    std::int32_t const q0 = i * block_q, k0 = j * block_k;
    return {batch, head, q0, q - q0 < block_q ? q : q0 + block_q, k0, k - k0 < block_k ? k : k0 + block_k};
  }
};

/// The last key tile before j that query tile i visits; -1 when there is none.
template <class F>
LANEWISE_HD constexpr std::int32_t previous_key_tile(F const& f, tiling const& t, std::int32_t batch, std::int32_t head,
                                                     std::int32_t i, std::int32_t j) {
  for (--j; j >= 0;) {
    block tile = t.tile(batch, head, i, j);
    if (cover_of(f, tile) != cover::empty) break;
    tile.k_end = tile.k_begin, tile.k_begin = 0;
    block const rest = hull_of(f, tile);
    j = is_empty(rest) ? -1 : (rest.k_end - 1) / t.block_k;
  }
  return j;
}

/// The first key tile after j that query tile i visits; k_tiles() when there is none.
template <class F>
LANEWISE_HD constexpr std::int32_t next_key_tile(F const& f, tiling const& t, std::int32_t batch, std::int32_t head,
                                                 std::int32_t i, std::int32_t j) {
  for (++j; j < t.k_tiles();) {
    block tile = t.tile(batch, head, i, j);
    if (cover_of(f, tile) != cover::empty) break;
    tile.k_begin = tile.k_end, tile.k_end = t.k;
    block const rest = hull_of(f, tile);
    j = is_empty(rest) ? t.k_tiles() : rest.k_begin / t.block_k;
  }
  return j;
}

/// The first query tile after i that visits key tile j; q_tiles() when there is none.
template <class F>
LANEWISE_HD constexpr std::int32_t next_query_tile(F const& f, tiling const& t, std::int32_t batch, std::int32_t head,
                                                   std::int32_t i, std::int32_t j) {
  for (++i; i < t.q_tiles();) {
    block tile = t.tile(batch, head, i, j);
    if (cover_of(f, tile) != cover::empty) break;
    tile.q_begin = tile.q_end, tile.q_end = t.q;
    block const rest = hull_of(f, tile);
    i = is_empty(rest) ? t.q_tiles() : rest.q_begin / t.block_q;
  }
  return i;
}

/// The last query tile before i that visits key tile j; -1 when there is none.
template <class F>
LANEWISE_HD constexpr std::int32_t previous_query_tile(F const& f, tiling const& t, std::int32_t batch,
                                                       std::int32_t head, std::int32_t i, std::int32_t j) {
  for (--i; i >= 0;) {
    block tile = t.tile(batch, head, i, j);
    if (cover_of(f, tile) != cover::empty) break;
    tile.q_end = tile.q_begin, tile.q_begin = 0;
    block const rest = hull_of(f, tile);
    i = is_empty(rest) ? -1 : (rest.q_end - 1) / t.block_q;
  }
  return i;
}

/// A query tile of one of the heads that share keys.
struct head_tile {
  std::int32_t head, i;
};

/// The walk of key tile j: its query tiles downwards, each for all heads that visit it, from first_head on. It begins
/// after {end_head - 1, q_tiles()}; i is -1 behind its end. Under causal masks the walks of later key tiles are prefixes
/// of those of earlier ones, so that key tiles which start together stay together; head after head they would not.
template <class F>
LANEWISE_HD constexpr head_tile next_head_tile(F const& f, tiling const& t, std::int32_t batch, std::int32_t first_head,
                                               std::int32_t end_head, std::int32_t j, head_tile at) {
  for (;;) {
    while (++at.head < end_head)
      if (cover_of(f, t.tile(batch, at.head, at.i, j)) != cover::empty) return at;
    std::int32_t below = -1;
    for (std::int32_t h = first_head; h < end_head; ++h) {
      std::int32_t const i = previous_query_tile(f, t, batch, h, at.i, j);
      below = i > below ? i : below;
    }
    at = {first_head - 1, below};
    if (below < 0) return at;
  }
}

/// No query of the tile sees key k. The last and the first one see most keys that any sees.
template <class F>
LANEWISE_HD constexpr bool no_query_sees(F const& f, block const& t, std::int32_t k) {
  if (keep(f, {t.batch, t.head, t.q_end - 1, k}) || keep(f, {t.batch, t.head, t.q_begin, k})) return false;
  if (cover_of(f, {t.batch, t.head, t.q_begin, t.q_end, k, k + 1}) == cover::empty) return true;
  for (std::int32_t q = t.q_begin + 1; q < t.q_end - 1; ++q)
    if (keep(f, {t.batch, t.head, q, k})) return false;
  return true;
}

/// Query q sees no key of the tile.
template <class F>
LANEWISE_HD constexpr bool sees_no_key(F const& f, block const& t, std::int32_t q) {
  if (keep(f, {t.batch, t.head, q, t.k_begin}) || keep(f, {t.batch, t.head, q, t.k_end - 1})) return false;
  block const row = hull_of(f, {t.batch, t.head, q, q + 1, t.k_begin, t.k_end});
  for (std::int32_t k = row.k_begin; k < row.k_end; ++k)
    if (keep(f, {t.batch, t.head, q, k})) return false;
  return true;
}

/// No query of these heads sees key k, which exists.
template <class F>
LANEWISE_HD constexpr bool no_head_sees(F const& f, tiling const& t, std::int32_t batch, std::int32_t first_head,
                                        std::int32_t end_head, std::int32_t k) {
  if (k >= t.k) return false;
  for (std::int32_t h = first_head; h < end_head; ++h) {
    block const column = hull_of(f, {batch, h, 0, t.q, k, k + 1});
    if (is_empty(column) || cover_of(f, column) == cover::empty) continue;
    for (std::int32_t q = column.q_begin; q < column.q_end; ++q)
      if (keep(f, {batch, h, q, k})) return false;
  }
  return true;
}

/// What a call will visit, for benchmarks and tests.
struct tile_counts {
  std::int64_t visited = 0, partial = 0, total = 0;
};

template <class F>
constexpr tile_counts count_tiles(F const& given, shape s, std::int32_t block_q, std::int32_t block_k) {
  auto const f = bind(given, s);
  tiling const t{s.q, s.k, block_q, block_k};
  tile_counts n;
  for (std::int32_t b = 0; b < s.batch; ++b)
    for (std::int32_t h = 0; h < s.heads; ++h)
      for (std::int32_t i = 0; i < t.q_tiles(); ++i)
        for (std::int32_t j = 0; j < t.k_tiles(); ++j) {
          cover const c = cover_of(f, t.tile(b, h, i, j));
          n.visited += c != cover::empty;
          n.partial += c == cover::partial;
          ++n.total;
        }
  return n;
}

}  // namespace lanewise
