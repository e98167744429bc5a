// dQ from its f32 sums (backward_tiles.hpp) to the tensor: scaled, rounded, in rows. A block does 64 rows of one
// (batch, query head), reading the sums in the order in which the accumulators were written.
#pragma once

#include "../../schedule.hpp"
#include "../launch.cuh"
#include "../tile/store.cuh"
#include "backward_tiles.hpp"

namespace lanewise::sm90 {

template <config C, tuning T, class F>
class query_gradient_kernel {
  using G = gradient<C>;
  static constexpr backward_shape size = backward_tile<C>;
  static constexpr int d = C.head_dim, n = width_of<C> / 8, row_parts = size.rows / 64;

 public:
  static constexpr char const* name = "sm90 backward, dQ from its sums";
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

  __device__ query_gradient_kernel(problem const& p, std::uint32_t) : p_(p) {}

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
      float const* const from =
          p_.sums + (tile * query_sums::parts + part) * query_sums::part + int(threadIdx.x) * query_sums::thread_stride;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        float4 const* const four =
            reinterpret_cast<float4 const*>(from + j / 8 * query_sums::part + j % 8 * query_sums::block_stride);
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

}  // namespace lanewise::sm90
