// The f32 sums of dQ of the one-pass backward in the workspace, and their way to the tensor: scaled, rounded, in rows.
#pragma once

#include "../../schedule.hpp"
#include "../launch.cuh"
#include "../tile/store.cuh"

namespace lanewise::sm80 {

/// dQ of a query tile of 64 rows while blocks add to it: f32, [batch][query head][query tile][part][share], where a
/// part is 64 columns and a share what one of four warps adds to it, 32 rows x 32 columns in the order of its
/// accumulators: [block of 8 columns][16 rows][lane][4].
struct query_sums {
  static constexpr int rows = 64, part = 64 * 64, share = 32 * 32;  ///< in elements from part on
  static constexpr int lane = 4, piece = 32 * lane;                 ///< 16 rows x 8 columns
  LANEWISE_HD static constexpr int slabs(int head_dim) { return (head_dim + 63) / 64; }
  /// Of the 16 rows r and the 8 columns c of a query tile.
  LANEWISE_HD static constexpr int offset(int r, int c) {
    return c / 8 * part + (r / 2 * 2 + c % 8 / 4) * share + (c % 4 * 2 + r % 2) * piece;
  }
};

/// A block does one query tile of one (batch, query head).
template <config C, class F>
class query_sums_kernel {
  using G = gradient<C>;
  static constexpr int d = C.head_dim, n = (d + 31) / 32 * 4;

 public:
  static constexpr char const* name = "sm80 backward, dQ from its sums";
  static constexpr int threads = 32 * query_sums::rows / 16, shared_bytes = 0;
  struct problem {
    view<G> d_q;
    F f;
    tiling tiles;
    float const* sums;
    float scale;
    bool aligned, accumulate;
  };
  static std::int64_t units(problem const& p) { return p.d_q.size.batch * p.d_q.size.heads * p.tiles.q_tiles(); }

  __device__ query_sums_kernel(problem const& p, std::uint32_t) : p_(p) {}

  __device__ void run(std::int64_t unit) const {
    std::int64_t const bh = unit / p_.tiles.q_tiles();
    std::int32_t const i = std::int32_t(unit - bh * p_.tiles.q_tiles());
    std::int32_t const b = std::int32_t(bh / p_.d_q.size.heads), h = std::int32_t(bh - b * p_.d_q.size.heads);
    block const t = p_.tiles.tile(b, h, i, 0);
    int const warp = int(threadIdx.x / 32);

    gpu::accumulators<1, n> sum;
    gpu::clear<1, n>(sum);
    // A query tile that no key tile visits has no sums.
    if (next_key_tile(p_.f, p_.tiles, b, h, i, -1) < p_.tiles.k_tiles()) {
      float const* const from =
          p_.sums + unit * query_sums::slabs(d) * query_sums::part + int(threadIdx.x % 32) * query_sums::lane;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        float4 const x = *reinterpret_cast<float4 const*>(from + query_sums::offset(warp, j));
        sum[0][j] = {{x.x, x.y, x.z, x.w}};
      }
    }
    float const factor[1][2] = {{p_.scale, p_.scale}};
    gpu::store_rows<d, G>(
        {p_.d_q.row(b, t.q_begin, h), p_.d_q.stride.sequence, t.q_end - t.q_begin, p_.aligned, p_.accumulate},
        warp * 16, sum, factor);
  }

 private:
  problem const& p_;
};

}  // namespace lanewise::sm80
