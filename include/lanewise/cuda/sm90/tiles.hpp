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
  int rows, columns, stages;
  int query_buffers;       ///< 2: the next tile's Q arrives while this one's is in use
  int producer_registers;  ///< of the copying warpgroup
  LANEWISE_HD constexpr int consumers() const { return rows / 64; }
  constexpr int threads() const { return 128 * (1 + consumers()); }
  /// The launch gives 168 a thread to three warpgroups, 128 to four; what the copying one gives away the others share.
  LANEWISE_HD constexpr int consumer_registers() const {
    return ((consumers() == 2 ? 168 : 128) * (1 + consumers()) - producer_registers) / consumers() / 8 * 8;
  }
};

/// Registers a consumer: S columns / 2, P columns / 4, O width / 2. KiB: Q rows slabs / 8 a buffer, K and V columns
/// slabs / 8 each a stage, where a slab is 64 columns of the head dim.
template <config C, tuning T, class F>
constexpr forward_shape forward_tile() {
  constexpr int slabs = (C.head_dim + 63) / 64;
  // A variant that holds pointers reads memory for every pair, which takes registers.
  constexpr bool reads = alignof(F) >= alignof(void*);
  constexpr int producer = reads ? 56 : 40;
  forward_shape t{};
  if (slabs == 1 && !reads && !has_score<F>)
    t = {192, 128, 2, 2, 32};                           // 64 + 32 + 32 of 160; 2 x 24 + 2 x 32 = 112 KiB
  else if (slabs == 1) t = {128, 128, 2, 2, producer};  // 64 + 32 + 32 of 224; 2 x 16 + 2 x 32 = 96 KiB
  else if (slabs == 2) t = {128, 128, 2, 2, producer};  // 64 + 32 + 64; 2 x 32 + 2 x 64 = 192 KiB
  else if (slabs == 3 && (reads || has_score<F>)) t = {128, 80, 2, 1, producer};  // 40 + 20 + 96; 48 + 2 x 60 = 168 KiB
  else if (slabs == 3) t = {128, 112, 2, 1, producer};                            // 56 + 28 + 96; 48 + 2 x 84 = 216 KiB
  else if (reads || has_score<F>) t = {128, 48, 2, 1, producer};  // 24 + 12 + 128; 64 + 2 x 48 = 160 KiB
  else t = {128, 80, 2, 1, producer};                             // 40 + 20 + 128; 64 + 2 x 80 = 224 KiB
  tile const asked = T.sm90_forward;
  if (asked.block_q) t.rows = asked.block_q, t.producer_registers = t.consumers() == 2 ? producer : 32;
  if (asked.block_k) t.columns = asked.block_k;
  if (asked.stages) t.stages = asked.stages;
  int const slab_bytes = 128 * slabs, keys = 2 * t.stages * t.columns * slab_bytes;
  if (asked.block_q || asked.block_k || asked.stages)
    t.query_buffers = 2 * t.rows * slab_bytes + keys <= shared_memory_limit ? 2 : 1;
  return t;
}

/// Bytes of shared memory, or a sentence at compile time.
template <int bytes>
constexpr int fits() {
  static_assert(bytes <= shared_memory_limit,
                "tuning: this sm90 tile needs more shared memory than the 231424 bytes of a block");
  return bytes;
}

}  // namespace lanewise::sm90
