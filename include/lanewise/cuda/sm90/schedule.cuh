// Which query tile a block computes next, and which key tiles that one visits: walked by one warp together.
#pragma once

#include "../../schedule.hpp"

namespace lanewise::sm90 {

/// The query tiles of a call in one line, of which block c of P takes one in every P.
///
/// Heads come in sections whose K and V stay in L2. A section is walked level by level, a level being the query tile of
/// one index of all its heads; the index falls in one section and rises in the next, so that neighbours in the line
/// have nearly the same length under a causal mask. Every second round the blocks take their tiles in reverse, which
/// evens out what is left, and the last section falls: the line ends with the shortest tiles.
struct tile_order {
  std::int32_t tiles, heads, section;  ///< query tiles a head; query heads of all batch elements; those of a section

  struct place {
    std::int32_t head, tile;  ///< head = batch element x query heads + query head
  };
  /// Tiles of the line; the launch refuses 2^31 of them.
  LANEWISE_HD constexpr std::int64_t count() const { return std::int64_t(tiles) * heads; }
  LANEWISE_HD constexpr bool take(std::int32_t round, std::int32_t c, std::int32_t blocks, place& to) const {
    std::int64_t const x = std::int64_t(round) * blocks + (round % 2 ? blocks - 1 - c : c);
    if (x >= count()) return false;
    std::int32_t const whole = section * tiles, s = std::int32_t(x) / whole, y = std::int32_t(x) - s * whole;
    std::int32_t const left = heads - s * section, own = left < section ? left : section;
    std::int32_t const level = y / own, sections = (heads + section - 1) / section;
    to = {s * section + y - level * own, (sections - s) % 2 ? tiles - 1 - level : level};
    return true;
  }
};

/// Bytes of K and V of a section. Under a mask neighbours in the line should be equally long, so that a section is as
/// large as L2 allows; without one, query tiles of a head that run together fetch its keys once, and the smaller the
/// section, the more of them do.
template <class F>
inline constexpr std::int64_t resident = has_mask<F> ? 24 << 20 : 4 << 20;

/// Sections of whole groups of query heads, at most about `resident` bytes, as equal as they can be.
constexpr tile_order tile_order_of(tiling const& t, extents q, std::int32_t ratio, std::int64_t bytes_of_key_head,
                                   std::int64_t resident) {
  std::int64_t const groups = q.batch * q.heads / ratio, fit = resident / (bytes_of_key_head + 1) + 1;
  std::int64_t const sections = (groups + fit - 1) / fit, each = sections ? (groups + sections - 1) / sections : 1;
  return {t.q_tiles(), std::int32_t(q.batch * q.heads), std::int32_t(each * ratio)};
}

/// The key tiles of one query tile from the last to the first. Lane l of the warp asks for the tile l below `above_`,
/// so that 32 covers are known at once; every lane holds the same answers. The rows of a query tile belong to `groups`
/// warpgroups, 64 each.
template <class F, int groups>
class key_walk {
 public:
  __device__ key_walk(F const& f, tiling const& tiles) : f_(f), tiles_(tiles) {}

  __device__ __forceinline__ void start(std::int32_t batch, std::int32_t head, std::int32_t i) {
    batch_ = batch, head_ = head, i_ = i;
    above_ = tiles_.k_tiles() + 32;
    visited_ = 0;
    look();
  }
  __device__ __forceinline__ bool done() const { return visited_ == 0; }

  struct step {
    std::int32_t j;
    std::uint32_t partial, hidden;  ///< bit g: some pair of group g's rows is masked; no row of it sees a key
  };
  /// Only where done() is false.
  __device__ __forceinline__ step next() {
    step const s = step_at(above_ - __ffs(int(visited_)));
    visited_ &= visited_ - 1;
    look();
    return s;
  }

 private:
  /// To the next 32 tiles with one to visit.
  __device__ __forceinline__ void look() {
    while (visited_ == 0 && above_ > 32) {
      above_ -= 32;
      std::int32_t const j = above_ - 1 - std::int32_t(threadIdx.x % 32);
      cover const c = j >= 0 ? cover_of(f_, tiles_.tile(batch_, head_, i_, j)) : cover::empty;
      visited_ = __ballot_sync(0xffffffffu, c != cover::empty);
    }
  }
  /// Lane g answers for group g.
  __device__ __forceinline__ step step_at(std::int32_t j) const {
    block rows = tiles_.tile(batch_, head_, i_, j);
    rows.q_begin += 64 * std::int32_t(threadIdx.x % 32);
    rows.q_end = rows.q_end < rows.q_begin + 64 ? rows.q_end : rows.q_begin + 64;
    bool const rows_exist = rows.q_begin < rows.q_end;
    cover const c = rows_exist ? cover_of(f_, rows) : cover::empty;
    constexpr std::uint32_t lanes = (1u << groups) - 1;
    return {j, __ballot_sync(0xffffffffu, rows_exist && c != cover::full) & lanes,
            __ballot_sync(0xffffffffu, c == cover::empty) & lanes};
  }

  F const& f_;
  tiling const& tiles_;
  std::int32_t batch_, head_, i_, above_;
  std::uint32_t visited_;
};

}  // namespace lanewise::sm90
