// dQ from its f32 sums (query_sums.hpp) to the tensor: scaled, rounded, in rows. A block does 64 rows of one
// (batch, query head), reading the sums in the order in which the accumulators were written.
#pragma once

#include "../../schedule.hpp"
#include "../launch.cuh"
#include "../query_sums.hpp"
#include "../tile/store.cuh"

namespace lanewise::sm80 {

/// K is the kernel that wrote the sums.
template <config C, class K, class F>
class query_sums_kernel {
  using G = gradient<C>;
  static constexpr gpu::query_sums size = K::query_sums;
  static constexpr int d = C.head_dim, n = (d + 31) / 32 * 4, row_parts = size.rows / 64;

 public:
  static constexpr char const* name = "backward, dQ from its sums";
  static constexpr int threads = 128, shared_bytes = 0;
  struct problem {
    view<G> d_q;
    F f;
    tiling tiles;
    float const* sums;
    float scale;
    bool aligned, accumulate;
  };
  static std::int64_t units(problem const& p) {
    return p.d_q.size.batch * p.d_q.size.heads * p.tiles.q_tiles() * row_parts;
  }

  __device__ query_sums_kernel(problem const& p, std::uint32_t) : p_(p) {}

  __device__ void run(std::int64_t unit) const {
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
      constexpr gpu::query_sums order = size;
      float const* const from = p_.sums + tile * size.count() + int(threadIdx.x) % 32 * size.lane_stride;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        float4 const* const four =
            reinterpret_cast<float4 const*>(from + order.offset(4 * part + int(threadIdx.x) / 32, j));
        sum[0][j] = {{four->x, four->y, four->z, four->w}};
      }
    }
    float const factor[1][2] = {{p_.scale, p_.scale}};
    gpu::store_rows<d, G>({p_.d_q.row(b, t.q_begin + row, h), p_.d_q.stride.sequence, valid, p_.aligned, p_.accumulate},
                          int(threadIdx.x / 32) * 16, sum, factor);
  }

 private:
  problem const& p_;
};

}  // namespace lanewise::sm80
