// How blocks that own key tiles sum dQ in f32 in the workspace, each element in one fixed order: the order of the sums
// in memory, and the order in which blocks take key tiles, by which nobody waits for a block that has not started.
#pragma once

#include <cstdint>

#include "../schedule.hpp"

namespace lanewise::gpu {

/// dQ of a query tile while blocks add to it: f32, [batch][query head][query tile][part][group], where a part is 64
/// rows x 64 columns and a group what one of the adding warps or warpgroups has of it, in the order of its
/// accumulators: [block of 8 columns][16 rows][lane][4].
struct query_sums {
  int rows, slabs;               ///< queries of a tile, a multiple of 64; parts beside each other
  int group_rows, group_blocks;  ///< of a group, in 16 rows and in 8 columns
  static constexpr int part = 64 * 64;
  static constexpr int lane_stride = 4, piece = 32 * lane_stride;  ///< floats; a piece is 16 rows x 8 columns
  LANEWISE_HD constexpr int parts() const { return rows / 64 * slabs; }
  LANEWISE_HD constexpr int count() const { return parts() * part; }
  LANEWISE_HD constexpr int bytes() const { return count() * int(sizeof(float)); }
  LANEWISE_HD constexpr int group() const { return group_rows * group_blocks * piece; }
  /// Of the 16 rows r and the 8 columns c of a tile.
  LANEWISE_HD constexpr int offset(int r, int c) const {
    int const across = r % 4 / group_rows * (8 / group_blocks) + c % 8 / group_blocks;
    return (r / 4 * slabs + c / 8) * part + across * group() + (c % group_blocks * group_rows + r % group_rows) * piece;
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
/// Where blocks walk a head each at its own pace: what fits 32 MiB of L2.
constexpr std::int64_t heads_in_l2(std::int64_t bytes_of_head) {
  return (std::int64_t(32) << 20) / (bytes_of_head + 1) + 1;
}

}  // namespace lanewise::gpu
