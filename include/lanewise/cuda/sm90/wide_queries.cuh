// dQ of one query tile (Dao 2023, algorithm 2, with the loops exchanged) for head dims above 128, on wgmma and TMA,
// sm_90a.
//
// A block owns 128 queries of one (batch, query head), 64 a computing warpgroup, and walks their key tiles:
//   S = Q K^T,  P = 2^(S - LSE),  dP = dO V^T,  dS = P (dP - delta),  dQ += dS K
// Q and dO stay in shared memory. Nothing is shared between blocks, so dQ has one order and needs no workspace. S of
// the next step is issued behind dQ of this one, whose dS is fed from the registers that hold it; dQ itself is waited
// for before the next step, since ptxas serialises all products where its accumulators cross the loop (C7515). A step
// of 64 keys is 3072 clocks of products for 2560 of shared memory at D 256. Registers of a computing warpgroup: dQ
// width / 2, S and dP 32 each, dS 16.
#pragma once

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

namespace lanewise::sm90 {

template <config C, tuning T, class F>
class wide_query_kernel {
  using E = element<C>;
  using G = gradient<C>;
  static constexpr wide_shape size = wide_query_tile<C, F>;
  static constexpr int d = C.head_dim, groups = size.rows / 64, n = size.columns / 8;
  using query_tile = gpu::swizzled_tile<E, size.rows, d>;
  using key_tile = gpu::swizzled_tile<E, size.columns, d>;
  static constexpr int key_buffers = 2, value_buffers = query_tile::slabs == 4 ? 1 : 2;  ///< 227 KiB hold no more
  using scores = gpu::accumulators<1, n>;
  using rounded = gpu::fragments<n>;
  using sum = gpu::accumulators<1, width_of<C> / 8>;
  using key_ring = gpu::ring<key_buffers>;
  using value_ring = gpu::ring<value_buffers>;
  using step_ring = gpu::ring<4>;
  static_assert(groups == 2 && gpu::row_padding % size.rows == 0);

 public:
  static constexpr char const* name = "sm90 backward, dQ, wgmma";
  static constexpr int threads = 128 * (1 + groups);
  static constexpr int shared_bytes = fits<2 * query_tile::bytes + (key_buffers + value_buffers) * key_tile::bytes>();

  struct problem {
    CUtensorMap q, k, v, d_o;
    view<G> d_q;
    F f;
    gpu::score_scale scale;
    float plain_scale;
    bool accumulate, aligned;
    tiling tiles;
    key_order order;  ///< of query tiles and query heads here
    std::int32_t query_heads, ratio;
    std::int64_t rows;  ///< padded rows of a head in `row`
    gpu::row_values row;
  };
  /// Everything but the maps.
  static problem problem_of(backward_args<C> const& a, F const& f, gpu::row_values row) {
    tiling const tiles{std::int32_t(a.q.size.sequence), std::int32_t(a.k.size.sequence), size.rows, size.columns};
    std::int32_t const ratio = head_ratio(a.q.size, a.k.size);
    std::int64_t const bytes_of_head = 2 * a.k.size.sequence * d * std::int64_t(sizeof(E)) / ratio;
    tiling const exchanged{tiles.k, tiles.q, size.columns, size.rows};
    return {{},
            {},
            {},
            {},
            a.d_q,
            f,
            gpu::score_scale_of<F>(a.scale),
            a.scale,
            a.accumulate,
            gpu::aligned_to_16(a.d_q),
            tiles,
            key_order_of(exchanged, a.q.size, heads_in_l2(bytes_of_head)),
            std::int32_t(a.q.size.heads),
            ratio,
            gpu::padded_rows(a.q.size.sequence),
            row};
  }
  /// False where the copy engine cannot walk a view.
  static bool encode_maps(problem& p, backward_args<C> const& a) {
    if (p.order.count() == 0 || p.tiles.k == 0) return true;
    return gpu::encode_tensor_map<key_tile>(p.k, a.k) && gpu::encode_tensor_map<key_tile>(p.v, a.v) &&
           gpu::encode_tensor_map<query_tile>(p.q, a.q) && gpu::encode_tensor_map<query_tile>(p.d_o, a.d_o);
  }

  struct signals {
    std::uint64_t full_queries, full_k[key_buffers], empty_k[key_buffers];
    std::uint64_t full_v[value_buffers], empty_v[value_buffers];
    std::int32_t word[4];         ///< key tile and flags of a step
    std::int32_t i, batch, head;  ///< this block's query tile; read again where needed, to hold no registers
  };
  static constexpr std::int32_t end = 1 << 30, masked = 1 << 29, last = 1 << 28, tile_bits = last - 1;

  __device__ wide_query_kernel(problem const& p, std::uint32_t shared, signals& s)
      : p_(p), s_(s), q_{shared}, d_o_{q_.base + query_tile::bytes}, k_{d_o_.base + query_tile::bytes},
        v_{k_.base + key_buffers * key_tile::bytes} {}

  __device__ void run() {
    if (threadIdx.x == 0) prepare();
    __syncthreads();
    int const warp = __shfl_sync(0xffffffffu, int(threadIdx.x / 32), 0);
    if (warp < 4) {
      gpu::lower_registers<size.producer_registers>();
      if (warp == 0 && gpu::elect_one()) copy();
    } else {
      gpu::raise_registers<size.consumer_registers()>();
      compute(warp / 4 - 1);
    }
  }

 private:
  static __device__ std::uint32_t at(std::uint64_t& barrier) { return gpu::shared_address(&barrier); }
  static __device__ __forceinline__ void release(std::uint64_t& empty) {
    if (threadIdx.x % 32 == 0) gpu::mbarrier_arrive(at(empty));
  }

  __device__ void prepare() {
    if (p_.tiles.k > 0)
      gpu::tma_prefetch_map(p_.k), gpu::tma_prefetch_map(p_.v), gpu::tma_prefetch_map(p_.q),
          gpu::tma_prefetch_map(p_.d_o);
    gpu::mbarrier_init(at(s_.full_queries), 1);
    for (int i = 0; i < key_buffers; ++i)
      gpu::mbarrier_init(at(s_.full_k[i]), 1), gpu::mbarrier_init(at(s_.empty_k[i]), 4 * groups);
    for (int i = 0; i < value_buffers; ++i)
      gpu::mbarrier_init(at(s_.full_v[i]), 1), gpu::mbarrier_init(at(s_.empty_v[i]), 4 * groups);
    gpu::mbarrier_init_fence();
    // The last query tile first: under causal masks its walk is the longest.
    key_order::place const to = p_.order[std::int32_t(blockIdx.x)];
    s_.i = p_.tiles.q_tiles() - 1 - to.tile;
    s_.batch = to.head / p_.query_heads, s_.head = to.head - s_.batch * p_.query_heads;
  }

  // The copying warp.

  __device__ std::int32_t next(std::int32_t j) const {
    return next_key_tile(p_.f, p_.tiles, s_.batch, s_.head, s_.i, j);
  }
  __device__ void copy() const {
    std::int32_t j = next(-1);
    if (j == p_.tiles.k_tiles()) {
      s_.word[0] = end;
      gpu::mbarrier_arrive(at(s_.full_k[0]));
      return;
    }
    gpu::mbarrier_arrive_expect(at(s_.full_queries), 2 * query_tile::bytes);
    load(q_, p_.q, at(s_.full_queries), s_.i * size.rows, s_.head);
    load(d_o_, p_.d_o, at(s_.full_queries), s_.i * size.rows, s_.head);
    std::int32_t const key_head = s_.head / p_.ratio;
    for (std::uint32_t number = 0; j < p_.tiles.k_tiles(); ++number) {
      std::int32_t const after = next(j);
      std::int32_t const word = j | flags_of(j) | (after == p_.tiles.k_tiles() ? last : 0);
      int const k = key_ring::stage(number), v = value_ring::stage(number);
      gpu::mbarrier_wait(at(s_.empty_k[k]), key_ring::parity(number) ^ 1);
      s_.word[step_ring::stage(number)] = word;
      gpu::mbarrier_arrive_expect(at(s_.full_k[k]), key_tile::bytes);
      load(k_.stage(k), p_.k, at(s_.full_k[k]), j * size.columns, key_head);
      gpu::mbarrier_wait(at(s_.empty_v[v]), value_ring::parity(number) ^ 1);
      gpu::mbarrier_arrive_expect(at(s_.full_v[v]), key_tile::bytes);
      load(v_.stage(v), p_.v, at(s_.full_v[v]), j * size.columns, key_head);
      j = after;
    }
  }
  __device__ std::int32_t flags_of(std::int32_t j) const {
    block const t = p_.tiles.tile(s_.batch, s_.head, s_.i, j);
    return asks_for_pairs<size.rows, size.columns>(p_.f, t) ? masked : 0;
  }
  template <class Tile>
  __device__ void load(Tile to, CUtensorMap const& map, std::uint32_t full, int row, int head) const {
#pragma unroll
    for (int s = 0; s < Tile::slabs; ++s)
      gpu::tma_load(to.slab(s), map, full, s * Tile::slab_columns, row, head, s_.batch);
  }

  // The computing warpgroups.

  __device__ void compute(int group) const {
    sum d_q;
    gpu::clear<1, width_of<C> / 8>(d_q);
    std::int32_t const first = take(0);
    if (!(first & end)) walk(d_q, first, group);
    if (!p_.d_q) return;
    block const t = p_.tiles.tile(s_.batch, s_.head, s_.i, 0);
    float const factor[1][2] = {{p_.plain_scale, p_.plain_scale}};
    gpu::store_rows<d, G>({p_.d_q.row(s_.batch, t.q_begin, s_.head), p_.d_q.stride.sequence, t.q_end - t.q_begin,
                           p_.aligned, p_.accumulate},
                          first_row(group), d_q, factor);
  }

  __device__ __forceinline__ void walk(sum& d_q, std::int32_t word, int group) const {
    scores s, dp;
    rounded ds;
    float base[2], delta[2];
    read_rows(base, delta, group);
    gpu::mbarrier_wait(at(s_.full_queries), 0);
    multiply(s, q_, k_.stage(0), group);
    for (std::uint32_t number = 0;; ++number) {
      int const k = key_ring::stage(number), v = value_ring::stage(number);
      gpu::mbarrier_wait(at(s_.full_v[v]), value_ring::parity(number));
      gpu::wgmma_wait<0>(s[0]);
      multiply(dp, d_o_, v_.stage(v), group);
      bool const hides = word & masked;
      if (hides) weigh<true>(s, word, base, group);
      else weigh<false>(s, word, base, group);
      gpu::wgmma_wait<0>(dp[0]);
      release(s_.empty_v[v]);
      if (hides) gpu::score_gradients_of_rows<true, E, n>(ds, s, dp, delta);
      else gpu::score_gradients_of_rows<false, E, n>(ds, s, dp, delta);
      if (hides) hide_keys(k_.stage(k), word, group);
      bool const ends = word & last;
      if (!ends) word = take(number + 1);
      add_product(d_q, ds, k_.stage(k));
      // Behind the last step they multiply what lies there, and nobody reads the result.
      multiply(s, q_, k_.stage(key_ring::stage(number + 1)), group);
      gpu::wgmma_wait<1>(d_q[0]);
      gpu::pin(ds);
      release(s_.empty_k[k]);
      if (ends) break;
    }
    gpu::wgmma_wait<0>(s[0]);
  }

  /// Waits for K of a step.
  __device__ __forceinline__ std::int32_t take(std::uint32_t number) const {
    gpu::mbarrier_wait(at(s_.full_k[key_ring::stage(number)]), key_ring::parity(number));
    std::int32_t const volatile& word = s_.word[step_ring::stage(number)];
    return __shfl_sync(0xffffffffu, word, 0);
  }
  /// This warp's first query of the tile.
  static __device__ __forceinline__ int first_row(int group) {
    return 64 * group + gpu::thread_index_anew() / 32 % 4 * 16;
  }
  __device__ __forceinline__ block tile_of(std::int32_t word) const {
    return p_.tiles.tile(s_.batch, s_.head, s_.i, word & tile_bits);
  }
  __device__ __forceinline__ void read_rows(float (&base)[2], float (&delta)[2], int group) const {
    std::int64_t const from = (std::int64_t(s_.batch) * p_.query_heads + s_.head) * p_.rows + s_.i * size.rows +
                              first_row(group) + gpu::lane_index_anew() / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      base[half] = p_.row.base[from + 8 * half], delta[half] = p_.row.delta[from + 8 * half];
  }

  /// S = Q K^T or dP = dO V^T
  static __device__ __forceinline__ void multiply(scores& to, query_tile queries, key_tile keys, int group) {
    gpu::wgmma_operand const a = queries.rows_from(64 * group).of_warp(), b = keys.rows_from(0).of_warp();
    gpu::wgmma_fence();
    gpu::wgmma_anew<E, true>(to[0], a + query_tile::column_offset(0), b + key_tile::column_offset(0));
#pragma unroll
    for (int c = 16; c < d; c += 16)
      gpu::wgmma<E, true>(to[0], a + query_tile::column_offset(c), b + key_tile::column_offset(c), true);
    gpu::wgmma_commit();
  }
  /// dQ += dS K
  static __device__ __forceinline__ void add_product(sum& to, rounded& a, key_tile b) {
    gpu::wgmma_operand const rows = b.all_columns().of_warp();
    gpu::pin(a), gpu::pin(to[0]);
    gpu::wgmma_fence();
#pragma unroll
    for (int i = 0; i < n / 2; ++i) gpu::wgmma<E, false>(to[0], a[i], rows + key_tile::row_offset(16 * i), true);
    gpu::wgmma_commit();
  }

  /// In place of S its weight in dS.
  template <bool hides>
  __device__ __forceinline__ void weigh(scores& s, std::int32_t word, float const (&base)[2], int group) const {
    if (!has_score<F> && p_.scale.before != 1.f)
      gpu::for_each_element<1, n>(0, [&](int, int, int, int j, int e) { s[0][j].x[e] *= p_.scale.before; });
    block t{};
    if constexpr (hides || has_score<F>) t = tile_of(word);
    std::uint32_t const kept = hides ? gpu::kept_pairs<n, gpu::rows_are::queries>(p_.f, t, first_row(group)) : 0;
    gpu::exponentiate_rows<hides, n>(s, p_.f, t, first_row(group), kept, p_.scale, base);
  }

  /// K's rows of keys that no query of the tile sees become zeros before they meet dS.
  __device__ __forceinline__ void hide_keys(key_tile k, std::int32_t word, int group) const {
    if (!has_mask<F>) return;
    block const t = tile_of(word);
    auto const hidden = [&](std::int32_t key) {
      return key < t.k_end - t.k_begin && no_query_sees(p_.f, t, t.k_begin + key);
    };
    zero_hidden_rows<size.columns>(1 + group, hidden, k);
  }

  problem const& p_;
  signals& s_;
  query_tile q_, d_o_;
  key_tile k_, v_;
};

}  // namespace lanewise::sm90
