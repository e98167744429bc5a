// dK and dV of one key tile (Dao 2023, algorithm 2, the outer loop) for head dims above 128, on wgmma and TMA, sm_90a.
//
// A block owns 64 keys of one (batch, key/value head) and walks the query tiles of every query head of the group, or
// its share of them (key_shares.hpp). dK and dV of 64 keys take 256 columns of accumulators each, 128 registers a
// thread of a warpgroup: one warpgroup keeps dV, the other dK, each with the products that lead there, on transposed
// scores:
//   values:  S^T = K Q^T,  P^T = 2^(S^T - LSE),              dV += P^T dO
//   keys:    dP^T = V dO^T,  dS^T = P^T (dP^T - delta),      dK += dS^T Q
// P^T in f32, times the score's derivative, goes from the one to the other through shared memory in the order of the
// accumulators. A step is four products of 64 x 64 x D: 2048 clocks at D 256 for 1792 clocks of shared memory.
#pragma once

#include "../instruction/bulk.cuh"
#include "../instruction/mbarrier.cuh"
#include "../instruction/tma.cuh"
#include "../instruction/warpgroup.cuh"
#include "../instruction/wgmma.cuh"
#include "../launch.cuh"
#include "../row_values.hpp"
#include "../tensor_map.hpp"
#include "../tile/store.cuh"
#include "../tile/swizzled_tile.cuh"
#include "../tile/wgmma_gradients.cuh"
#include "backward_tiles.hpp"
#include "hidden_rows.cuh"
#include "share_store.cuh"

namespace lanewise::sm90 {

template <config C, tuning T, class F>
class wide_key_kernel {
  using E = element<C>;
  using G = gradient<C>;
  static constexpr wide_shape size = wide_key_tile<C, F>;
  static constexpr int d = C.head_dim, stages = 2, n = size.rows / 8;
  using tile_of_rows = gpu::swizzled_tile<E, 64, d>;
  using scores = gpu::accumulators<1, n>;
  using rounded = gpu::fragments<n>;
  using sum = gpu::accumulators<1, width_of<C> / 8>;
  using ring = gpu::ring<stages>;
  /// A step is written when the Q two before it has been given back, and read until its scores are done.
  using step_ring = gpu::ring<4>;
  static constexpr int row_bytes = size.rows * int(sizeof(float));  ///< LSE or delta of a query tile
  static constexpr int weight_bytes = 64 * size.rows * int(sizeof(float));
  static_assert(size.rows == 64 && size.columns == 64 && gpu::row_padding % size.rows == 0);
  static_assert(T.sm90_backward == tile{}, "tuning: sm90_backward has one tile for each head dim; leave it at 0");

 public:
  static constexpr char const* name = "sm90 backward, dK and dV, wgmma";
  static constexpr int threads = 384;
  static constexpr int shared_bytes =
      fits<2 * tile_of_rows::bytes + stages*(2 * tile_of_rows::bytes + 2 * row_bytes + weight_bytes)>();

  struct problem {
    CUtensorMap q, k, v, d_o;
    view<G> d_k, d_v;
    F f;
    gpu::score_scale scale;
    float plain_scale;
    bool accumulate, aligned;
    tiling tiles;
    key_order order;
    key_shares shares;
    key_sums<C> key_room;  ///< of shared key tiles
    std::int32_t key_heads, ratio;
    std::int64_t rows;  ///< padded rows of a head in `row`
    gpu::row_values row;
  };
  static tiling tiles_of(extents q, extents k) {
    return {std::int32_t(q.sequence), std::int32_t(k.sequence), size.rows, size.columns};
  }
  static key_shares shares_of(extents q, extents k, F const& f, int processors) {
    return sm90::shares_of(tiles_of(q, k), q, k, f, processors, key_sums<C>::part);
  }
  /// Everything but the maps.
  static problem problem_of(backward_args<C> const& a, F const& f, gpu::row_values row, key_shares const& shares,
                            key_sums<C> key_room) {
    tiling const tiles = tiles_of(a.q.size, a.k.size);
    std::int32_t const ratio = head_ratio(a.q.size, a.k.size);
    std::int64_t const bytes_of_head = ratio * a.q.size.sequence * d * std::int64_t(2 * sizeof(E));
    return {{},
            {},
            {},
            {},
            a.d_k,
            a.d_v,
            f,
            gpu::score_scale_of<F>(a.scale),
            a.scale,
            a.accumulate,
            gpu::aligned_to_16(a.d_k) && gpu::aligned_to_16(a.d_v),
            tiles,
            key_order_of(tiles, a.k.size, heads_in_l2(bytes_of_head)),
            shares,
            key_room,
            std::int32_t(a.k.size.heads),
            ratio,
            gpu::padded_rows(a.q.size.sequence),
            row};
  }
  /// False where the copy engine cannot walk a view.
  static bool encode_maps(problem& p, backward_args<C> const& a) {
    if (p.order.count() == 0 || p.tiles.q == 0) return true;
    return gpu::encode_tensor_map<tile_of_rows>(p.k, a.k) && gpu::encode_tensor_map<tile_of_rows>(p.v, a.v) &&
           gpu::encode_tensor_map<tile_of_rows>(p.q, a.q) && gpu::encode_tensor_map<tile_of_rows>(p.d_o, a.d_o);
  }

  /// One query tile of a block's walk.
  struct step {
    std::int32_t word, head;  ///< query tile and flags; query head
    static constexpr std::int32_t end = 1 << 30, masked = 1 << 29, last = 1 << 28, tile = last - 1;
    __device__ std::int32_t i() const { return word & tile; }
    __device__ bool is(std::int32_t flag) const { return (word & flag) != 0; }
  };
  struct signals {
    std::uint64_t full_keys, full_q[stages], empty_q[stages], full_d_o[stages], empty_d_o[stages];
    std::uint64_t full_weights[stages], empty_weights[stages];
    step steps[step_ring::size];
    std::int32_t j, batch, key_head;  ///< this block's key tile; read again where needed, to hold no registers
    key_shares::place place;          ///< this block's part of the line
    std::int32_t shares;              ///< of its key tile
  };

  __device__ wide_key_kernel(problem const& p, std::uint32_t shared, signals& s)
      : p_(p), s_(s), k_{shared}, v_{k_.base + tile_of_rows::bytes}, q_{v_.base + tile_of_rows::bytes},
        d_o_{q_.base + stages * tile_of_rows::bytes}, weights_(d_o_.base + stages * tile_of_rows::bytes),
        rows_(weights_ + stages * weight_bytes) {}

  __device__ void run() {
    if (threadIdx.x == 0) prepare();
    __syncthreads();
    int const warp = __shfl_sync(0xffffffffu, int(threadIdx.x / 32), 0);
    if (warp < 4) {
      gpu::lower_registers<size.producer_registers>();
      if (warp == 0 && gpu::elect_one()) copy();
    } else {
      gpu::raise_registers<size.consumer_registers()>();
      if (warp < 8) sum_values();
      else sum_keys();
    }
  }

 private:
  static __device__ std::uint32_t at(std::uint64_t& barrier) { return gpu::shared_address(&barrier); }
  static __device__ __forceinline__ void release(std::uint64_t& empty) {
    if (threadIdx.x % 32 == 0) gpu::mbarrier_arrive(at(empty));
  }

  __device__ void prepare() {
    if (p_.tiles.q > 0)
      gpu::tma_prefetch_map(p_.k), gpu::tma_prefetch_map(p_.v), gpu::tma_prefetch_map(p_.q),
          gpu::tma_prefetch_map(p_.d_o);
    gpu::mbarrier_init(at(s_.full_keys), 1);
    for (int i = 0; i < stages; ++i) {
      gpu::mbarrier_init(at(s_.full_q[i]), 1), gpu::mbarrier_init(at(s_.empty_q[i]), 8);
      gpu::mbarrier_init(at(s_.full_d_o[i]), 1), gpu::mbarrier_init(at(s_.empty_d_o[i]), 8);
      gpu::mbarrier_init(at(s_.full_weights[i]), 4), gpu::mbarrier_init(at(s_.empty_weights[i]), 4);
    }
    gpu::mbarrier_init_fence();
    s_.place = p_.shares[std::int32_t(blockIdx.x)], s_.shares = p_.shares.shares_of(s_.place.tile);
    key_order::place const to = p_.order[s_.place.tile];
    s_.j = to.tile, s_.batch = to.head / p_.key_heads, s_.key_head = to.head - s_.batch * p_.key_heads;
  }

  // The copying warp.

  struct cursor {
    std::int32_t head, i;
  };
  __device__ cursor next(cursor c) const {
    do {
      c.i = next_query_tile(p_.f, p_.tiles, s_.batch, c.head, c.i, s_.j);
      while (c.i == p_.tiles.q_tiles() && ++c.head < (s_.key_head + 1) * p_.ratio)
        c.i = next_query_tile(p_.f, p_.tiles, s_.batch, c.head, -1, s_.j);
    } while (!done(c) && s_.shares > 1 && !owns(c.i, p_.ratio, c.head, s_.place.share, s_.shares));
    return c;
  }
  __device__ bool done(cursor c) const { return c.head >= (s_.key_head + 1) * p_.ratio; }
  __device__ step describe(cursor c, bool last) const {
    block const t = p_.tiles.tile(s_.batch, c.head, c.i, s_.j);
    std::int32_t const flags = asks_for_pairs<size.rows, size.columns>(p_.f, t) ? step::masked : 0;
    return {c.i | flags | (last ? step::last : 0), c.head};
  }
  __device__ void copy() const {
    cursor c = next({s_.key_head * p_.ratio, -1});
    if (done(c)) {
      s_.steps[0] = {step::end, 0};
      gpu::mbarrier_arrive(at(s_.full_q[0]));
      return;
    }
    gpu::mbarrier_arrive_expect(at(s_.full_keys), 2 * tile_of_rows::bytes);
    load(k_, p_.k, at(s_.full_keys), s_.j * size.columns, s_.key_head);
    load(v_, p_.v, at(s_.full_keys), s_.j * size.columns, s_.key_head);
    for (std::uint32_t number = 0; !done(c); ++number) {
      cursor const after = next(c);
      load_queries(describe(c, done(after)), number);
      c = after;
    }
  }
  __device__ __forceinline__ void load_queries(step const& to, std::uint32_t number) const {
    int const stage = ring::stage(number), row = to.i() * size.rows;
    std::int64_t const value = (std::int64_t(s_.batch) * p_.key_heads * p_.ratio + to.head) * p_.rows + row;
    std::uint32_t const q = at(s_.full_q[stage]), d_o = at(s_.full_d_o[stage]);
    gpu::mbarrier_wait(at(s_.empty_q[stage]), ring::parity(number) ^ 1);
    s_.steps[step_ring::stage(number)] = to;
    gpu::mbarrier_arrive_expect(q, tile_of_rows::bytes + row_bytes);
    load(q_.stage(stage), p_.q, q, row, to.head);
    gpu::bulk_load(base_address(stage), p_.row.base + value, row_bytes, q);
    gpu::mbarrier_wait(at(s_.empty_d_o[stage]), ring::parity(number) ^ 1);
    gpu::mbarrier_arrive_expect(d_o, tile_of_rows::bytes + row_bytes);
    load(d_o_.stage(stage), p_.d_o, d_o, row, to.head);
    gpu::bulk_load(delta_address(stage), p_.row.delta + value, row_bytes, d_o);
  }
  __device__ void load(tile_of_rows to, CUtensorMap const& map, std::uint32_t full, int row, int head) const {
#pragma unroll
    for (int s = 0; s < tile_of_rows::slabs; ++s)
      gpu::tma_load(to.slab(s), map, full, s * tile_of_rows::slab_columns, row, head, s_.batch);
  }
  __device__ std::uint32_t base_address(int stage) const { return rows_ + std::uint32_t(2 * stage * row_bytes); }
  __device__ std::uint32_t delta_address(int stage) const { return base_address(stage) + std::uint32_t(row_bytes); }

  // The computing warpgroups.

  __device__ void sum_values() const {
    sum d_v;
    gpu::clear<1, width_of<C> / 8>(d_v);
    step now = take(0);
    if (!now.is(step::end)) {
      scores s;
      rounded p;
      gpu::mbarrier_wait(at(s_.full_keys), 0);
      multiply(s, k_, q_.stage(0));
      for (std::uint32_t number = 0;; ++number) {
        int const stage = ring::stage(number);
        gpu::wgmma_wait<0>(s[0]);
        weigh(s, p, now, stage);
        hand_over(s, number);
        release(s_.empty_q[stage]);  // behind a __syncwarp: every lane has read the LSE
        gpu::mbarrier_wait(at(s_.full_d_o[stage]), ring::parity(number));
        if (now.is(step::masked)) hide_queries(d_o_.stage(stage), now, 1);
        add_product(d_v, p, d_o_.stage(stage));
        bool const last = now.is(step::last);
        if (!last) now = take(number + 1);
        // Behind the last step they multiply what lies there, and nobody reads the result.
        multiply(s, k_, q_.stage(ring::stage(number + 1)));
        gpu::wgmma_wait<1>(d_v[0]);
        gpu::pin(p);
        release(s_.empty_d_o[stage]);
        if (last) break;
      }
      gpu::wgmma_wait<0>(s[0]);
    }
    store(p_.d_v, p_.key_room.d_v, d_v, 1.f);
  }

  __device__ void sum_keys() const {
    sum d_k;
    gpu::clear<1, width_of<C> / 8>(d_k);
    step now = take(0);
    if (!now.is(step::end)) {
      scores dp;
      rounded ds;
      gpu::mbarrier_wait(at(s_.full_keys), 0);
      gpu::mbarrier_wait(at(s_.full_d_o[0]), 0);
      multiply(dp, v_, d_o_.stage(0));
      for (std::uint32_t number = 0;; ++number) {
        int const stage = ring::stage(number);
        gpu::wgmma_wait<0>(dp[0]);
        score_gradients(ds, dp, now, number);
        release(s_.empty_d_o[stage]);
        if (now.is(step::masked)) hide_queries(q_.stage(stage), now, 2);
        add_product(d_k, ds, q_.stage(stage));
        bool const last = now.is(step::last);
        int const next_stage = ring::stage(number + 1);
        if (!last) {
          now = take(number + 1);
          gpu::mbarrier_wait(at(s_.full_d_o[next_stage]), ring::parity(number + 1));
        }
        multiply(dp, v_, d_o_.stage(next_stage));
        gpu::wgmma_wait<1>(d_k[0]);
        gpu::pin(ds);
        release(s_.empty_q[stage]);
        if (last) break;
      }
      gpu::wgmma_wait<0>(dp[0]);
    }
    store(p_.d_k, p_.key_room.d_k, d_k, p_.plain_scale);
  }

  /// Waits for Q of a step.
  __device__ __forceinline__ step take(std::uint32_t number) const {
    gpu::mbarrier_wait(at(s_.full_q[ring::stage(number)]), ring::parity(number));
    step const& x = s_.steps[step_ring::stage(number)];
    return {__shfl_sync(0xffffffffu, x.word, 0), x.head};
  }
  /// This warp's first key of the tile.
  static __device__ __forceinline__ int first_row() { return gpu::thread_index_anew() / 32 % 4 * 16; }
  __device__ __forceinline__ block tile_of(step const& x) const { return p_.tiles.tile(s_.batch, x.head, x.i(), s_.j); }

  /// S^T = K Q^T or dP^T = V dO^T
  static __device__ __forceinline__ void multiply(scores& to, tile_of_rows keys, tile_of_rows queries) {
    gpu::wgmma_operand const a = keys.rows_from(0).of_warp(), b = queries.rows_from(0).of_warp();
    gpu::wgmma_fence();
#pragma unroll
    for (int c = 0; c < d; c += 16)
      gpu::wgmma<E, true>(to[0], a + tile_of_rows::column_offset(c), b + tile_of_rows::column_offset(c), c != 0);
    gpu::wgmma_commit();
  }
  /// dV += P^T dO or dK += dS^T Q
  static __device__ __forceinline__ void add_product(sum& to, rounded& a, tile_of_rows b) {
    gpu::wgmma_operand const rows = b.all_columns().of_warp();
    gpu::pin(a), gpu::pin(to[0]);
    gpu::wgmma_fence();
#pragma unroll
    for (int i = 0; i < n / 2; ++i) gpu::wgmma<E, false>(to[0], a[i], rows + tile_of_rows::row_offset(16 * i), true);
    gpu::wgmma_commit();
  }

  /// P^T, rounded, and in place of S^T its weight in dS.
  __device__ __forceinline__ void weigh(scores& s, rounded& p, step const& x, int stage) const {
    if (!has_score<F> && p_.scale.before != 1.f)
      gpu::for_each_element<1, n>(0, [&](int, int, int, int j, int e) { s[0][j].x[e] *= p_.scale.before; });
    block t{};
    if constexpr (has_score<F>) t = tile_of(x);
    if (x.is(step::masked)) {
      std::uint32_t const kept = gpu::kept_pairs<n>(p_.f, tile_of(x), first_row());
      gpu::exponentiate_columns<true, E, n>(s, p, p_.f, t, first_row(), kept, p_.scale, base_address(stage));
    } else {
      gpu::exponentiate_columns<false, E, n>(s, p, p_.f, t, first_row(), 0, p_.scale, base_address(stage));
    }
  }
  /// A thread of one warpgroup leaves its weights where the same thread of the other finds them.
  __device__ __forceinline__ std::uint32_t own_weights(int stage) const {
    return weights_ + std::uint32_t(stage * weight_bytes + gpu::thread_index_anew() % 128 * 16);
  }
  __device__ __forceinline__ void hand_over(scores const& weight, std::uint32_t number) const {
    int const stage = ring::stage(number);
    gpu::mbarrier_wait(at(s_.empty_weights[stage]), ring::parity(number) ^ 1);
    std::uint32_t const to = own_weights(stage);
#pragma unroll
    for (int j = 0; j < n; ++j) {
      float const(&x)[4] = weight[0][j].x;
      gpu::store_shared_4(to + std::uint32_t(j * 128 * 16), __float_as_uint(x[0]), __float_as_uint(x[1]),
                          __float_as_uint(x[2]), __float_as_uint(x[3]));
    }
    __syncwarp();
    release(s_.full_weights[stage]);
  }
  __device__ __forceinline__ void score_gradients(rounded& ds, scores const& dp, step const& x,
                                                  std::uint32_t number) const {
    int const stage = ring::stage(number);
    gpu::mbarrier_wait(at(s_.full_weights[stage]), ring::parity(number));
    scores weight;
    std::uint32_t const from = own_weights(stage);
#pragma unroll
    for (int j = 0; j < n; ++j) {
      float2 const low = gpu::load_shared_2(from + std::uint32_t(j * 128 * 16));
      float2 const high = gpu::load_shared_2(from + std::uint32_t(j * 128 * 16 + 8));
      weight[0][j] = {{low.x, low.y, high.x, high.y}};
    }
    if (x.is(step::masked)) gpu::score_gradients<true, E, n>(ds, weight, dp, delta_address(stage));
    else gpu::score_gradients<false, E, n>(ds, weight, dp, delta_address(stage));
    __syncwarp();
    release(s_.empty_weights[stage]);
  }

  /// Rows of Q or dO that see none of the tile's keys become zeros before they meet dS or P. The other warpgroup may
  /// read them meanwhile for scores that are masked.
  __device__ __forceinline__ void hide_queries(tile_of_rows x, step const& to, int barrier) const {
    if (!has_mask<F>) return;
    block const t = tile_of(to);
    auto const hidden = [&](std::int32_t r) { return t.q_begin + r < t.q_end && sees_no_key(p_.f, t, t.q_begin + r); };
    zero_hidden_rows<size.rows>(barrier, hidden, x);
  }

  __device__ __forceinline__ void store(view<G> const& to, float* room, sum const& from, float scale) const {
    if (!to) return;
    if (s_.shares > 1) return leave_share<C>(room, p_.shares, s_.place, 0, from);
    block const t = p_.tiles.tile(s_.batch, 0, 0, s_.j);
    float const factor[1][2] = {{scale, scale}};
    gpu::store_rows<d, G>(
        {to.row(s_.batch, t.k_begin, s_.key_head), to.stride.sequence, t.k_end - t.k_begin, p_.aligned, p_.accumulate},
        first_row(), from, factor);
  }

  problem const& p_;
  signals& s_;
  tile_of_rows k_, v_, q_, d_o_;
  std::uint32_t weights_, rows_;
};

}  // namespace lanewise::sm90
