// What the backward leaves in f32 in the workspace (backward_tiles.hpp) to the tensors: added up, scaled, rounded, in
// rows. A block does 64 rows of dQ, or of dK or dV of a key tile whose walk was shared, reading the sums in the order
// in which the accumulators were written.
#pragma once

#include "../../schedule.hpp"
#include "../instruction/dependent_launch.cuh"
#include "../launch.cuh"
#include "../tile/store.cuh"
#include "backward_tiles.hpp"

namespace lanewise::sm90 {

template <config C, tuning T, class F>
class gradient_sums_kernel {
  using G = gradient<C>;
  static constexpr backward_shape size = backward_tile<C>;
  static constexpr int d = C.head_dim, n = width_of<C> / 8, row_parts = size.rows / 64, halves = key_sums<C>::halves;

 public:
  static constexpr char const* name = "sm90 backward, gradients from their sums";
  static constexpr int threads = 128, shared_bytes = 0;
  struct problem {
    view<G> d_q, d_k, d_v;
    F f;
    tiling tiles;
    key_order order;
    key_shares shares;
    key_sums<C> key_room;
    std::int32_t key_heads;
    float const* sums;
    float scale;
    bool aligned, accumulate;

    std::int64_t of_keys = halves * (bool(d_k) + bool(d_v)) * (shares.count > 1 ? shares.shared() : 0);
    std::int64_t of_queries = d_q ? d_q.size.batch * d_q.size.heads * tiles.q_tiles() * row_parts : 0;
  };
  static std::int64_t units(problem const& p) { return p.of_keys + p.of_queries; }

  __device__ gradient_sums_kernel(problem const& p, std::uint32_t) : p_(p) {}

  __device__ void run(std::int64_t unit) const {
    gpu::await_kernel_before();
    if (unit < p_.of_keys) sum_shares(unit);
    else if constexpr (has_backward<C>) convert_queries(unit - p_.of_keys);
  }

 private:
  /// 64 keys of dK or dV: the shares in ascending order.
  __device__ void sum_shares(std::int64_t unit) const {
    using sums = key_sums<C>;
    std::int32_t const x = std::int32_t(unit / halves), half = std::int32_t(unit - x * halves);
    std::int32_t const shared = std::int32_t(p_.shares.shared());
    bool const of_k = p_.d_k && x < shared;
    std::int32_t const tile = std::int32_t(p_.shares.from) + (of_k || !p_.d_k ? x : x - shared);
    key_order::place const at = p_.order[tile];
    std::int32_t const b = at.head / p_.key_heads, h = at.head - b * p_.key_heads;
    block const t = p_.tiles.tile(b, h, 0, at.tile);
    int const row = 64 * half, valid = t.k_end - t.k_begin - row;
    if (valid <= 0) return;

    float const* from = (of_k ? p_.key_room.d_k : p_.key_room.d_v) + sums::offset(p_.shares, {tile, 0}) +
                        half * sums::half + int(threadIdx.x) * sums::thread_stride;
    gpu::accumulators<1, n> sum;
    gpu::clear<1, n>(sum);
    for (std::int32_t share = 0; share < p_.shares.count; ++share, from += sums::part) {
#pragma unroll
      for (int j = 0; j < n; ++j) {
        float4 const four = *reinterpret_cast<float4 const*>(from + j * sums::block_stride);
        float(&to)[4] = sum[0][j].x;
        to[0] += four.x, to[1] += four.y, to[2] += four.z, to[3] += four.w;
      }
    }
    view<G> const& to = of_k ? p_.d_k : p_.d_v;
    put(sum, to.row(b, t.k_begin + row, h), to.stride.sequence, valid, of_k ? p_.scale : 1.f);
  }

  __device__ void convert_queries(std::int64_t unit) const {
    std::int64_t const tile = unit / row_parts, bh = tile / p_.tiles.q_tiles();
    std::int32_t const i = std::int32_t(tile - bh * p_.tiles.q_tiles()), part = std::int32_t(unit - tile * row_parts);
    std::int32_t const b = std::int32_t(bh / p_.d_q.size.heads), h = std::int32_t(bh - b * p_.d_q.size.heads);
    block const t = p_.tiles.tile(b, h, i, 0);
    int const row = 64 * part, valid = t.q_end - t.q_begin - row;
    if (valid <= 0) return;

    gpu::accumulators<1, n> sum;
    gpu::clear<1, n>(sum);
    // A query tile that no key tile visits has no sums.
    if (next_key_tile(p_.f, p_.tiles, b, h, i, -1) < p_.tiles.k_tiles()) {
      float const* const from =
          p_.sums + (tile * query_sums::parts + part) * query_sums::part + int(threadIdx.x) * query_sums::thread_stride;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        float4 const* const four =
            reinterpret_cast<float4 const*>(from + j / 8 * query_sums::part + j % 8 * query_sums::block_stride);
        sum[0][j] = {{four->x, four->y, four->z, four->w}};
      }
    }
    put(sum, p_.d_q.row(b, t.q_begin + row, h), p_.d_q.stride.sequence, valid, p_.scale);
  }

  __device__ void put(gpu::accumulators<1, n> const& sum, G* to, std::int64_t stride, int valid, float scale) const {
    float const factor[1][2] = {{scale, scale}};
    gpu::store_rows<d, G>({to, stride, valid, p_.aligned, p_.accumulate}, int(threadIdx.x / 32) * 16, sum, factor);
  }

  problem const& p_;
};

}  // namespace lanewise::sm90
