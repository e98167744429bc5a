// Tile sizes of the Hopper kernels, one row per width of a tile. A block gets 227 KiB of shared memory and 65,536
// registers; one block runs on a multiprocessor.
#pragma once

#include "../../attention.hpp"

namespace lanewise::sm90 {

/// bf16 and f16 have kernels here.
template <config C>
inline constexpr bool has_forward = C.precision == precision::bf16 || C.precision == precision::f16;

/// 227 KiB less 1 KiB for barriers and the alignment of the first tile.
inline constexpr int shared_memory_limit = 232448 - 1024;

/// Columns of O in registers: head_dim rounded up to four blocks of eight, which a lane stores as 16 bytes.
template <config C>
inline constexpr int width_of = (C.head_dim + 31) / 32 * 32;

/// A warpgroup owns 64 query rows.
struct forward_shape {
  int rows, columns;
  int query_buffers;       ///< 2: the next tile's Q arrives while this one's is in use
  int key_buffers;         ///< of K
  int value_buffers;       ///< of V, which is in use one step longer than K
  int producer_registers;  ///< of the copying warpgroup
  LANEWISE_HD constexpr int consumers() const { return rows / 64; }
  constexpr int threads() const { return 128 * (1 + consumers()); }
  /// The launch gives 168 a thread to three warpgroups, 128 to four, 96 to five; what the copying one gives away the
  /// others share.
  LANEWISE_HD constexpr int consumer_registers() const {
    int const launched = consumers() == 2 ? 168 : consumers() == 3 ? 128 : 96;
    return (launched * (1 + consumers()) - producer_registers) / consumers() / 8 * 8;
  }
  constexpr int shared_bytes(int slabs) const {
    return 128 * slabs * (query_buffers * rows + (key_buffers + value_buffers) * columns);
  }
};

/// Registers a consumer: S columns / 2, P columns / 4, O width / 2. KiB: slabs (Q rows / 8 a buffer, K and V columns /
/// 8 a buffer), where a slab is 64 columns of the head dim.
template <config C, tuning T, class F>
constexpr forward_shape forward_tile() {
  constexpr int slabs = (C.head_dim + 63) / 64;
  // A score, or a variant that holds pointers and so reads memory for every pair, takes registers; 160, and the 112 of
  // four warpgroups, hold only a mask of one number.
  constexpr bool reads = alignof(F) >= alignof(void*), heavy = reads || has_score<F>;
  constexpr int producer = reads ? 56 : 40;
  forward_shape t{};
  // clang-format off
  if (slabs == 1 && !heavy && sizeof(F) <= 4) t = {256, 64, 2, 4, 4, 32};  // 32 + 16 + 32 of 112; 2 x 32 + 8 x 8 = 128 KiB
  else if (slabs == 1) t = {128, 128, 2, 4, 4, producer};   // 64 + 32 + 32 of 224; 2 x 16 + 8 x 16 = 160 KiB
  else if (slabs == 2 && !heavy && sizeof(F) <= 4) t = {192, 64, 2, 4, 4, 32};  // 32 + 16 + 64 of 160; 2 x 48 + 8 x 16 = 224 KiB
  else if (slabs == 2 && reads) t = {128, 112, 2, 2, 3, producer};  // 56 + 28 + 64; 2 x 32 + 5 x 28 = 204 KiB
  else if (slabs == 2) t = {128, 128, 2, 2, 3, producer};   // 64 + 32 + 64; 2 x 32 + 5 x 32 = 224 KiB
  else if (slabs == 3 && heavy) t = {128, 80, 1, 2, 3, producer};  // 40 + 20 + 96; 48 + 5 x 30 = 198 KiB
  else if (slabs == 3) t = {128, 112, 1, 2, 2, producer};   // 56 + 28 + 96; 48 + 4 x 42 = 216 KiB
  else if (heavy) t = {128, 32, 1, 2, 4, producer};         // 16 + 8 + 128; 64 + 6 x 16 = 160 KiB
  else t = {128, 80, 1, 2, 2, producer};                    // 40 + 20 + 128; 64 + 4 x 40 = 224 KiB
  // clang-format on
  tile const asked = T.sm90_forward;
  if (asked.block_q) t.rows = asked.block_q, t.producer_registers = t.consumers() == 2 ? producer : 32;
  if (asked.block_k) t.columns = asked.block_k;
  if (asked.stages) t.key_buffers = t.value_buffers = asked.stages;
  if (t.shared_bytes(slabs) > shared_memory_limit) t.query_buffers = 1;
  if (t.shared_bytes(slabs) > shared_memory_limit && !asked.stages) t.key_buffers = t.value_buffers = 2;
  return t;
}

/// The tile of a call with at most `few_keys` keys. A mask then leaves a query tile few steps, most of them on its
/// edge: smaller tiles hold fewer hidden pairs, and more of them even out what the multiprocessors do.
template <config C, tuning T, class F>
constexpr forward_shape forward_tile_of_few_keys() {
  constexpr forward_shape t = forward_tile<C, T, F>();
  constexpr bool tuned = T.sm90_forward != tile{};
  if (!has_mask<F> || tuned) return t;
  if (C.head_dim > 192 && t.columns == 80) return {128, 64, 1, 2, 3, t.producer_registers};  // 224 KiB
  return t;
}
inline constexpr std::int64_t few_keys = 1024;

/// Bytes of shared memory, or a sentence at compile time.
template <int bytes>
constexpr int fits() {
  static_assert(bytes <= shared_memory_limit,
                "tuning: this sm90 tile needs more shared memory than the 231424 bytes of a block");
  return bytes;
}

}  // namespace lanewise::sm90
