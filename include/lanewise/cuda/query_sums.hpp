// How blocks that own key tiles sum dQ in f32 in the workspace, each element in one fixed order: the order of the sums
// in memory, and the order in which blocks take key tiles, by which nobody waits for a block that has not started.
#pragma once

#include <cstdint>

#include "../schedule.hpp"

namespace lanewise::gpu {

/// dQ of a query tile while blocks add to it: f32, [batch][query head][query tile][part][block of 8 columns][128
/// lanes][4], where a part is 64 rows x 64 columns in the order of the accumulators of four warps, 16 rows each: what a
/// lane adds at a time is 16 bytes, what a warp adds 512.
struct query_sums {
  int rows, slabs;  ///< queries of a tile, a multiple of 64; parts of 64 columns beside each other
  static constexpr int part = 64 * 64;
  static constexpr int lane_stride = 4, block_stride = 128 * lane_stride;
  LANEWISE_HD constexpr int parts() const { return rows / 64 * slabs; }
  LANEWISE_HD constexpr int count() const { return parts() * part; }
  LANEWISE_HD constexpr int bytes() const { return count() * int(sizeof(float)); }
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
/// Where blocks walk a head each at its own pace: what fits 32 MiB of L2.
constexpr std::int64_t heads_in_l2(std::int64_t bytes_of_head) {
  return (std::int64_t(32) << 20) / (bytes_of_head + 1) + 1;
}

}  // namespace lanewise::gpu
