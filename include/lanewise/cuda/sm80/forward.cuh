// Flash attention forward on mma.sync (Dao 2023, algorithm 1), sm_80 and later.
//
// A block owns one query tile of one (batch, head), a warp 16 m of its rows. For every key tile that the variant
// visits:
//   S = Q K^T,  m' = max(m, S),  P = 2^(S - m'),  l = l 2^(m - m') + rowsum(P),  O = O 2^(m - m') + P V
// with S and P in registers: the accumulators of the first product are fed to the second. K and V have one buffer each:
// V arrives during Q K^T, the next K during P V, and a second block on the multiprocessor covers the rest.
#pragma once

#include "../../schedule.hpp"
#include "../launch.cuh"
#include "../tile/copy.cuh"
#include "../tile/scores.cuh"
#include "../tile/softmax.cuh"
#include "../tile/store.cuh"
#include "tiles.hpp"

namespace lanewise::sm80 {

template <config C, tuning T, class F>
class forward_kernel {
  using E = element<C>;
  using op = gpu::operation<C.precision>;
  static constexpr shape_of_tile size = forward_shape<C, T, F>();
  static constexpr int d = C.head_dim, width = width_of<C>(), m = size.m, n = size.columns / 8;
  /// A mask needs registers of its own, which O and S do not leave where they take 192 of them.
  static constexpr bool crowded = has_mask<F> && m * (width + size.columns) >= 384;
  static constexpr int unroll = crowded ? 2 : steps_at_once<op>(m, width);
  using query_tile = typename op::template tile<size.rows, width>;
  using key_tile = typename op::template streamed_tile<size.columns, width>;
  using key_transfer = typename op::template transfer<size.threads(), d, key_tile>;
  using live_columns = gpu::live_columns<size.warps()>;
  /// Rows that pass through registers wait there during the products where O and S leave room for them.
  static constexpr bool overlaps = key_transfer::registers == 0 || (m * width < 256 && key_transfer::registers < 64);

 public:
  static constexpr char const* name = "sm80 forward, mma.sync";
  static constexpr int threads = size.threads();
  static constexpr int shared_bytes = fits<query_tile::bytes + 2 * key_tile::bytes + live_columns::bytes>();

  struct problem {
    forward_args<C> a;
    F f;
    gpu::score_scale scale;
    tiling tiles;
    std::int32_t ratio;
    bool aligned;
  };
  static problem problem_of(forward_args<C> const& a, F const& f) {
    return {a,
            f,
            gpu::score_scale_of<F>(a.scale),
            {std::int32_t(a.q.size.sequence), std::int32_t(a.k.size.sequence), size.rows, size.columns},
            head_ratio(a.q.size, a.k.size),
            gpu::aligned_to_16(a.q) && gpu::aligned_to_16(a.k) && gpu::aligned_to_16(a.v) && gpu::aligned_to_16(a.o)};
  }
  static std::int64_t units(problem const& p) { return p.a.q.size.batch * p.a.q.size.heads * p.tiles.q_tiles(); }

  __device__ forward_kernel(problem const& p, std::uint32_t shared)
      : p_(p), q_{shared}, k_{shared + query_tile::bytes}, v_{k_.base + key_tile::bytes}, live_{v_.base +
                                                                                                key_tile::bytes} {}

  __device__ void run(std::int64_t unit) {
    locate(unit);
    gpu::clear<m, width / 8>(o_);
    softmax_.start();
    std::int32_t j = next_key_tile(p_.f, tiles(), b_, h_, i_, -1);
    if (j < tiles().k_tiles()) {
      load_queries();
      key_transfer k;
      start(k, p_.a.k, k_, j);
      k.finish(k_);
    }
    while (j < tiles().k_tiles()) {
      std::int32_t const next = next_key_tile(p_.f, tiles(), b_, h_, i_, j);
      step(j, next);
      j = next;
    }
    locate(unit);  // again: cheaper than to keep the head in a register
    finish();
  }

 private:
  /// p_.tiles in this kernel's constants: counting tiles is no division.
  __device__ tiling tiles() const { return {p_.tiles.q, p_.tiles.k, size.rows, size.columns}; }

  /// The last query tile first: under a causal mask it is the longest.
  __device__ void locate(std::int64_t unit64) {
    // A grid has fewer than 2^31 blocks; 64-bit divisions would be calls.
    std::uint32_t const unit = std::uint32_t(unit64), heads = std::uint32_t(p_.a.q.size.heads);
    std::uint32_t const count = tiles().q_tiles();
    std::uint32_t const bh = unit / count;
    i_ = gpu::anew(std::int32_t(count - 1 - unit % count));
    b_ = gpu::anew(std::int32_t(bh / heads));
    h_ = gpu::anew(std::int32_t(bh % heads));
    kv_head_ = gpu::anew(h_ / p_.ratio);
  }

  __device__ void load_queries() const {
    block const t = tiles().tile(b_, h_, i_, 0);
    gpu::copy_tile<op, threads, d>(q_, p_.a.q.row(b_, t.q_begin, h_), p_.a.q.stride.sequence, t.q_end - t.q_begin,
                                   p_.aligned);
  }
  __device__ __forceinline__ void start(key_transfer& x, view<E const> const& from, key_tile to, std::int32_t j) const {
    block const t = tiles().tile(b_, h_, i_, j);
    x.start(to, from.row(gpu::anew(b_), t.k_begin, gpu::anew(kv_head_)), from.stride.sequence, t.k_end - t.k_begin,
            p_.aligned);
    gpu::cp_async_commit();
  }

  /// One key tile; K of it is on its way, K of `next` is when it returns.
  __device__ __forceinline__ void step(std::int32_t j, std::int32_t next) {
    block const tile = tiles().tile(b_, h_, i_, j);
    cover const c = cover_of(p_.f, tile);
    bool const ragged = tile.k_end - tile.k_begin < size.columns || tile.q_end - tile.q_begin < size.rows;
    gpu::accumulators<m, n> s;
    key_transfer v, k;

    gpu::cp_async_wait<0>();
    __syncthreads();
    start(v, p_.a.v, v_, j);
    if (!overlaps) v.finish(v_);
    gpu::multiply_rows<op, unroll>(s, q_, first_row(), k_);
    gpu::apply_variant<gpu::rows_are::queries>(s, no_raw, p_.f, tile, first_row(), c, ragged, p_.scale);
    bool const masked = has_mask<F> && c == cover::partial;
    if (masked) live_.publish(gpu::live_columns_of(s));

    if (overlaps) v.finish(v_);
    gpu::cp_async_wait<0>();
    __syncthreads();
    if (next < tiles().k_tiles()) {
      start(k, p_.a.k, k_, next);
      if (!overlaps) k.finish(k_);
    }
    softmax_.step(s, o_, p_.scale.factor);
    if (masked && live_.template any_dead<n>()) {
      gpu::zero_rows<threads>(v_, [&](int row) { return live_.dead(row); });
      __syncthreads();
    }
    gpu::multiply_columns<op>(o_, s, v_);
    if (overlaps && next < tiles().k_tiles()) k.finish(k_);
  }

  /// O / l and LSE = m + log l; a sink joins as one more key of value zero.
  __device__ __forceinline__ void finish() {
    block const t = tiles().tile(b_, h_, i_, 0);
    int const valid = t.q_end - t.q_begin;
    float factor[m][2];
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int const row = first_row() + 16 * i + 8 * half + gpu::lane_index() / 4;
        float l = gpu::row_sum(softmax_.sum[i][half]), max = softmax_.maximum[i][half] * p_.scale.factor;
        factor[i][half] = l == 0.f ? 0.f : 1.f;
        if constexpr (has_sink<F>)
          if (row < valid) factor[i][half] *= softmax::add_sink(p_.f(lanewise::row{b_, h_, t.q_begin + row}), max, l);
        factor[i][half] *= softmax::inverse_of(l);
        if (p_.a.lse && row < valid && gpu::lane_index() % 4 == 0)
          *p_.a.lse.row(b_, t.q_begin + row, h_) = softmax::lse_of(max, l, C.empty_lse);
      }
    gpu::store_rows<d, E>({p_.a.o.row(b_, t.q_begin, h_), p_.a.o.stride.sequence, valid, p_.aligned, false},
                          first_row(), o_, factor);
  }

  /// The first row of this warp; cheaper to compute again than to keep in a register.
  __device__ static int first_row() { return gpu::thread_index_anew() / 32 * 16 * m; }

  static constexpr gpu::accumulators<m, n>* no_raw = nullptr;

  problem const& p_;
  query_tile q_;
  key_tile k_, v_;
  live_columns live_;
  std::int32_t i_, b_, h_, kv_head_;
  gpu::accumulators<m, width / 8> o_;
  gpu::running_softmax<m> softmax_;
};

}  // namespace lanewise::sm80
