// Flash attention backward on wgmma and TMA (Dao 2023, algorithm 2; Shah et al. 2024), sm_90a: dK and dV of one key
// tile and its share of dQ.
//
// A block owns 128 keys of one (batch, key/value head) and walks the query tiles of every query head of the group, or
// its share of them (key_shares.hpp). One warp copies; two warpgroups compute, 64 keys each, on transposed scores, so
// that P^T and dS^T are fed from the accumulators that hold them:
//   S^T = K Q^T,  P^T = 2^(S^T - LSE),  dV += P^T dO,  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),  dK += dS^T Q
//   dQ += dS K, dS through shared memory
// Two more warps add dQ to an f32 sum in the workspace, one key tile after the other in a fixed order
// (backward_tiles.hpp), while the next step is computed. The first to come writes instead of adding, so that nothing is
// cleared beforehand.
//
// S of the next step is issued behind dK of this one, so that the tensor cores have work while a step ends and the next
// begins; the exponentials run beside dP, dS beside dV, the way of dQ out of the registers beside dK. dQ takes the
// registers of S and the rounded dS those of dP: with arrays of their own the registers end at head dim 128 and ptxas
// serialises all products (C7512).
#pragma once

#include "../../softmax.hpp"
#include "../instruction/bulk.cuh"
#include "../instruction/dependent_launch.cuh"
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

/// One query tile of a block's walk.
struct query_step {
  std::int32_t word, head;  ///< query tile and flags; query head
  std::int32_t before;      ///< the key tile whose share of dQ is added before this one's; -1: none
  static constexpr std::int32_t end = 1 << 30, masked = 1 << 29, last = 1 << 28, tile = last - 1;
  __device__ std::int32_t i() const { return word & tile; }
  __device__ bool is(std::int32_t flag) const { return (word & flag) != 0; }
};

/// `sharing`: some key tiles' walks are dealt out to several blocks. As an instance of its own, since asking for shares
/// while the walk is planned cost 4 % of the kernel where there are none.
template <config C, tuning T, class F, bool sharing = false>
class backward_kernel {
  using E = element<C>;
  using G = gradient<C>;
  static constexpr backward_shape size = backward_tile<C>;
  static constexpr int d = C.head_dim, stages = 2, groups = size.columns / 64;
  /// Scores are computed 64 x 64 at a time: more of them do not fit the registers beside dK and dV.
  static constexpr int chunks = size.rows / 64, n = 8;
  using query_tile = gpu::swizzled_tile<E, size.rows, d>;
  using key_tile = gpu::swizzled_tile<E, size.columns, d>;
  using key_slab = gpu::swizzled_tile<E, size.columns, 64>;
  using score_tile = gpu::swizzled_tile<E, size.rows, size.columns>;
  using scores = gpu::accumulators<1, n>;
  using rounded = gpu::fragments<n>;
  using key_gradient = gpu::accumulators<1, width_of<C> / 8>;
  using ring = gpu::ring<stages>;
  /// Steps are planned four ahead of the one that is computed, and are read by the adding warps up to two after it.
  static constexpr int ahead = 4;
  using plan_ring = gpu::ring<8>;
  static constexpr int row_bytes = size.rows * int(sizeof(float));  ///< LSE or delta of a query tile
  static_assert(query_tile::slabs == size.slabs && groups == query_sums::parts && gpu::row_padding % size.rows == 0);
  static_assert(T.sm90_backward == tile{}, "tuning: sm90_backward has one tile for each head dim; leave it at 0");

 public:
  static constexpr char const* name = "sm90 backward, wgmma";
  static constexpr int threads = 128 * (1 + groups);
  static constexpr int shared_bytes = fits<2 * key_tile::bytes + stages*(2 * query_tile::bytes + score_tile::bytes +
                                                                         query_sums::bytes + 2 * row_bytes)>();

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
    float* sums;           ///< query_sums of every query tile; null: dQ is not wanted
    std::uint32_t* turns;  ///< of every query tile, 1 + the key tile added last; all 0 before the launch
    std::uint32_t* drawn;  ///< numbers drawn by blocks so far; 0 before the launch
    __host__ __device__ std::int64_t query_tile_index(std::int64_t batch, std::int64_t head, std::int64_t i) const {
      return (batch * key_heads * ratio + head) * tiles.q_tiles() + i;
    }
  };
  static tiling tiles_of(extents q, extents k) {
    return {std::int32_t(q.sequence), std::int32_t(k.sequence), size.rows, size.columns};
  }
  static key_shares shares_of(extents q, extents k, F const& f, int processors) {
    return sm90::shares_of(tiles_of(q, k), q, k, f, processors, key_sums<C>::part);
  }
  static std::int64_t query_tiles(extents q) { return q.batch * q.heads * tiles_of(q, q).q_tiles(); }

  /// Everything but the maps.
  static problem problem_of(backward_args<C> const& a, F const& f, gpu::row_values row, float* sums,
                            std::uint32_t* turns, key_shares const& shares, key_sums<C> key_room) {
    tiling const tiles = tiles_of(a.q.size, a.k.size);
    std::int32_t const ratio = head_ratio(a.q.size, a.k.size);
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
            key_order_of(tiles, a.k.size, heads_in_step<C>),
            shares,
            key_room,
            std::int32_t(a.k.size.heads),
            ratio,
            gpu::padded_rows(a.q.size.sequence),
            row,
            sums,
            turns,
            turns + query_tiles(a.q.size)};
  }
  /// False where the copy engine cannot walk a view.
  static bool encode_maps(problem& p, backward_args<C> const& a) {
    if (p.order.count() == 0 || p.tiles.q == 0) return true;
    return gpu::encode_tensor_map<key_tile>(p.k, a.k) && gpu::encode_tensor_map<key_tile>(p.v, a.v) &&
           gpu::encode_tensor_map<query_tile>(p.q, a.q) && gpu::encode_tensor_map<query_tile>(p.d_o, a.d_o);
  }

  struct signals {
    std::uint64_t full_keys, full_q[stages], empty_q[stages], full_d_o[stages], empty_d_o[stages];
    std::uint64_t full_sums[stages], empty_sums[stages];
    std::uint64_t planned[8];
    query_step step[8];
    std::int32_t next_head, next_i;   ///< of the step that is planned next; of the planning thread alone
    std::int32_t j, batch, key_head;  ///< this block's key tile; read again where needed, to hold no registers
    key_shares::place place;          ///< this block's part of the line
    std::int32_t shares;              ///< of its key tile
  };

  __device__ backward_kernel(problem const& p, std::uint32_t shared, signals& s)
      : p_(p), s_(s), k_{shared}, v_{k_.base + key_tile::bytes}, q_{v_.base + key_tile::bytes},
        d_o_{q_.base + stages * query_tile::bytes}, ds_{d_o_.base + stages * query_tile::bytes},
        sums_(ds_.base + stages * score_tile::bytes), rows_(sums_ + stages * query_sums::bytes) {}

  __device__ void run() {
    if (threadIdx.x == 0) prepare();
    __syncthreads();
    int const warp = __shfl_sync(0xffffffffu, int(threadIdx.x / 32), 0);
    if (warp < 4) {
      gpu::lower_registers<24>();
      if (warp == 0 && gpu::elect_one()) copy();
      if (p_.sums)
        for (int stage = 0; stage < stages; ++stage)
          if (warp == 1 + stage && gpu::elect_one()) add_to_sums(stage);
    } else {
      gpu::raise_registers<240>();
      compute(warp / 4 - 1);
    }
  }

 private:
  static __device__ std::uint32_t at(std::uint64_t& barrier) { return gpu::shared_address(&barrier); }
  static __device__ bool leads() { return threadIdx.x % 32 == 0; }

  __device__ void prepare() {
    gpu::let_next_kernel_start();
    gpu::await_kernel_before();
    // Numbers only order blocks: what each computes, and the order of every sum, are the key tile's own. Without query
    // tiles nothing has cleared the count.
    std::int32_t const number = std::int32_t(p_.tiles.q > 0 ? atomicAdd(p_.drawn, 1u) : blockIdx.x);
    if (p_.tiles.q > 0)
      gpu::tma_prefetch_map(p_.k), gpu::tma_prefetch_map(p_.v), gpu::tma_prefetch_map(p_.q),
          gpu::tma_prefetch_map(p_.d_o);
    constexpr int computing_warps = 4 * groups;
    gpu::mbarrier_init(at(s_.full_keys), 1);
    for (int i = 0; i < stages; ++i) {
      gpu::mbarrier_init(at(s_.full_q[i]), 1), gpu::mbarrier_init(at(s_.empty_q[i]), computing_warps);
      gpu::mbarrier_init(at(s_.full_d_o[i]), 1), gpu::mbarrier_init(at(s_.empty_d_o[i]), computing_warps);
      gpu::mbarrier_init(at(s_.full_sums[i]), computing_warps), gpu::mbarrier_init(at(s_.empty_sums[i]), 1);
    }
    for (std::uint64_t& slot : s_.planned) gpu::mbarrier_init(at(slot), 1);
    gpu::mbarrier_init_fence();
    s_.place = sharing ? p_.shares[number] : key_shares::place{number, 0};
    s_.shares = p_.shares.shares_of(s_.place.tile);
    key_order::place const to = p_.order[s_.place.tile];
    s_.j = to.tile, s_.batch = to.head / p_.key_heads, s_.key_head = to.head - s_.batch * p_.key_heads;
    s_.next_head = end_of_group(), s_.next_i = p_.tiles.q_tiles();
    advance();
    if (planned_all()) s_.step[0] = {query_step::end, 0, 0}, gpu::mbarrier_arrive(at(s_.planned[0]));
    plan(0);
  }

  // The walk, by one thread: the first of the computing ones, which have the registers for it while S is computed.

  __device__ std::int32_t shares() const { return sharing ? s_.shares : 1; }
  __device__ std::int32_t end_of_group() const { return (s_.key_head + 1) * p_.ratio; }
  __device__ std::int32_t next_visitor(std::int32_t i, std::int32_t h) const {
    while (h < end_of_group() && cover_of(p_.f, p_.tiles.tile(s_.batch, h, i, s_.j)) == cover::empty) h += shares();
    return h;
  }
  /// To the next head of the group that visits the same query tile, else to the next lower tile that any of them does.
  __device__ void advance() {
    std::int32_t i = s_.next_i, h = next_visitor(i, s_.next_head + shares());
    bool found = h < end_of_group();
    while (!found) {
      std::int32_t const above = i;
      i = -1;
      for (std::int32_t g = end_of_group(); g-- > s_.key_head * p_.ratio;) {
        std::int32_t const below = previous_query_tile(p_.f, p_.tiles, s_.batch, g, above, s_.j);
        if (below >= i) i = below, h = g;
      }
      if (shares() > 1 && i >= 0)
        if (std::int32_t const others = heads_to_own(i, p_.ratio, h, s_.place.share, shares()); others > 0)
          h = next_visitor(i, h + others);
      found = !sharing || i < 0 || h < end_of_group();
    }
    s_.next_head = h, s_.next_i = i;
  }
  __device__ bool planned_all() const { return s_.next_i < 0; }
  __device__ void plan(std::uint32_t number) {
    if (planned_all()) return;
    int const slot = plan_ring::stage(number);
    std::int32_t const h = s_.next_head, i = s_.next_i;
    block const t = p_.tiles.tile(s_.batch, h, i, s_.j);
    std::int32_t flags = asks_for_pairs<size.rows, size.columns>(p_.f, t) ? query_step::masked : 0;
    std::int32_t const before = previous_key_tile(p_.f, p_.tiles, s_.batch, h, i, s_.j);
    advance();
    if (planned_all()) flags |= query_step::last;
    s_.step[slot] = {i | flags, h, before};
    gpu::mbarrier_arrive(at(s_.planned[slot]));
  }
  /// For the copying and the adding warps.
  __device__ query_step planned(std::uint32_t number) const {
    int const slot = plan_ring::stage(number);
    gpu::mbarrier_wait(at(s_.planned[slot]), plan_ring::parity(number));
    return s_.step[slot];
  }

  // The copying warp.

  __device__ void copy() const {
    query_step step = planned(0);
    if (step.is(query_step::end)) {
      gpu::mbarrier_arrive(at(s_.full_q[0]));
      return;
    }
    gpu::mbarrier_arrive_expect(at(s_.full_keys), 2 * key_tile::bytes);
    load(k_, p_.k, at(s_.full_keys), s_.j * size.columns, s_.key_head);
    load(v_, p_.v, at(s_.full_keys), s_.j * size.columns, s_.key_head);
    load_queries(step, 0);
    for (std::uint32_t number = 1; !step.is(query_step::last); ++number) {
      step = planned(number);
      load_queries(step, number);
    }
  }
  __device__ __forceinline__ void load_queries(query_step const& to, std::uint32_t number) const {
    int const stage = ring::stage(number), row = to.i() * size.rows;
    std::int64_t const value = (std::int64_t(s_.batch) * p_.key_heads * p_.ratio + to.head) * p_.rows + row;
    std::uint32_t const q = at(s_.full_q[stage]), d_o = at(s_.full_d_o[stage]);
    gpu::mbarrier_wait(at(s_.empty_q[stage]), ring::parity(number) ^ 1);
    gpu::mbarrier_arrive_expect(q, query_tile::bytes + row_bytes);
    load(q_.stage(stage), p_.q, q, row, to.head);
    gpu::bulk_load(base_address(stage), p_.row.base + value, row_bytes, q);
    gpu::mbarrier_wait(at(s_.empty_d_o[stage]), ring::parity(number) ^ 1);
    gpu::mbarrier_arrive_expect(d_o, query_tile::bytes + row_bytes);
    load(d_o_.stage(stage), p_.d_o, d_o, row, to.head);
    gpu::bulk_load(delta_address(stage), p_.row.delta + value, row_bytes, d_o);
  }
  template <class Tile>
  __device__ void load(Tile to, CUtensorMap const& map, std::uint32_t full, int row, int head) const {
#pragma unroll
    for (int s = 0; s < Tile::slabs; ++s)
      gpu::tma_load(to.slab(s), map, full, s * Tile::slab_columns, row, head, s_.batch);
  }
  __device__ std::uint32_t base_address(int stage, int chunk = 0) const {
    return rows_ + std::uint32_t(2 * stage * row_bytes + chunk * 64 * int(sizeof(float)));
  }
  __device__ std::uint32_t delta_address(int stage, int chunk = 0) const {
    return base_address(stage, chunk) + std::uint32_t(row_bytes);
  }
  __device__ std::uint32_t sums_address(int stage) const { return sums_ + std::uint32_t(stage * query_sums::bytes); }

  // The adding warps, one for each stage: while one waits for the end of its addition, a microsecond or more, the other
  // adds dQ of the next step. At head dim 128 a computing warp waited 7 % of its time for a single one.

  /// dQ of the steps of a stage to the workspace: after the next earlier key tile that visits the same query tile, and
  /// before the next later one, which is released when all of this one's has been written.
  __device__ void add_to_sums(int stage) const {
    static_assert(stages == 2, "the step between two of a stage may be the last one");
    for (std::uint32_t number = std::uint32_t(stage);; number += stages) {
      if (number > 0 && planned(number - 1).is(query_step::last | query_step::end)) return;
      query_step const step = planned(number);
      if (step.is(query_step::end)) return;
      std::int64_t const index = p_.query_tile_index(s_.batch, step.head, step.i());
      float* const to = p_.sums + index * (query_sums::bytes / int(sizeof(float)));
      gpu::mbarrier_wait(at(s_.full_sums[stage]), ring::parity(number));
      gpu::async_proxy_fence();  // here instead of in all 256 threads that wrote: 2 to 6 % of the kernel
      if (step.before < 0) {
        gpu::bulk_store(to, sums_address(stage), query_sums::bytes);
      } else {
        gpu::await_turn(p_.turns + index, std::uint32_t(step.before + 1));
        gpu::bulk_add(to, sums_address(stage), query_sums::bytes);
      }
      gpu::bulk_commit();
      gpu::bulk_wait_read();
      gpu::mbarrier_arrive(at(s_.empty_sums[stage]));
      gpu::bulk_wait_written();
      gpu::pass_turn(p_.turns + index, std::uint32_t(s_.j + 1));
      if (step.is(query_step::last)) return;
    }
  }

  // The computing warpgroups.

  __device__ void compute(int group) {
    key_gradient d_k, d_v;
    gpu::clear<1, width_of<C> / 8>(d_k), gpu::clear<1, width_of<C> / 8>(d_v);
    // Beside the first transfers.
    if (threadIdx.x == 128)
      for (std::uint32_t number = 1; number < ahead; ++number) plan(number);
    __syncwarp();
    if (!take(0).is(query_step::end)) {
      gpu::mbarrier_wait(at(s_.full_keys), 0);
      if (has_mask<F>)
        zero_hidden_rows<size.columns>(
            1 + group, [&](std::int32_t r) { return is_hidden_key(r); }, k_);
      walk(d_k, d_v, group);
    }
    store(p_.d_k, p_.key_room.d_k, d_k, group, p_.plain_scale);
    store(p_.d_v, p_.key_room.d_v, d_v, group, 1.f);
  }

  __device__ __forceinline__ void walk(key_gradient& d_k, key_gradient& d_v, int group) {
    scores s[chunks], dp;
    rounded p, ds[chunks];
    query_step step = take(0);
    multiply_queries(s, 0, group);
    for (std::uint32_t number = 0;; ++number) {
      int const stage = ring::stage(number);
      gpu::mbarrier_wait(at(s_.full_d_o[stage]), ring::parity(number));
      gpu::wgmma_wait<0>(s[0][0]);
#pragma unroll
      for (int c = 1; c < chunks; ++c) gpu::pin(s[c][0]);
      multiply_values(dp, stage, 0, group);
      if (!plans_beside_dq) plan_ahead(number, group);
      std::uint64_t kept = 0;  // 32 bits a chunk
      bool const masked = step.is(query_step::masked);
      if (masked) {
#pragma unroll
        for (int c = 0; c < chunks; ++c)
          kept |= std::uint64_t(gpu::kept_pairs<n>(p_.f, tile_of(step, c), first_row(group))) << 32 * c;
        if (has_mask<F>) hide_queries(step, stage, group);
      }
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        if (c > 0) {
          gpu::wgmma_wait<1>(d_v[0]);
          gpu::pin(p);
        }
        exponentiate(s[c], p, step, std::uint32_t(kept >> 32 * c), stage, c, group);
        add_product(d_v, p, d_o_.stage(stage), c);
        gpu::wgmma_wait<1>(dp[0]);
        if (masked) gpu::score_gradients<true, E, n>(ds[c], s[c], dp, delta_address(stage, c));
        else gpu::score_gradients<false, E, n>(ds[c], s[c], dp, delta_address(stage, c));
        if (c + 1 < chunks) multiply_values(dp, stage, c + 1, group);
        gpu::store_transposed<n>(ds_.stage(stage), 64 * c, first_row(group), ds[c]);
      }
      gpu::async_proxy_fence();
      gpu::named_barrier<128 * groups>(1 + groups);
      multiply_keys(s[0], stage, group);
#pragma unroll
      for (int c = 0; c < chunks; ++c) add_product(d_k, ds[c], q_.stage(stage), c);
      if (plans_beside_dq) plan_ahead(number, group);
      gpu::wgmma_wait<chunks>(s[0][0]);
      gpu::pin(d_v[0]), gpu::pin(p);
      if (leads()) gpu::mbarrier_arrive(at(s_.empty_d_o[stage]));
      if (p_.sums) hand_over(s[0], number, group);
      bool const last = step.is(query_step::last);
      if (!last) step = take(number + 1);
      // Behind the last step they multiply what lies there, and nobody reads the result.
      multiply_queries(s, ring::stage(number + 1), group);
      gpu::wgmma_wait<1>(d_k[0]);
#pragma unroll
      for (int c = 0; c < chunks; ++c) gpu::pin(ds[c]);
      if (leads()) gpu::mbarrier_arrive(at(s_.empty_q[stage]));
      if (last) break;
    }
    gpu::wgmma_wait<0>(s[0][0]);
  }

  /// The walk is planned beside products that are waited for: beside dQ, which all wait for, or beside dP. The first is
  /// 2 to 6 % faster where there is something to plan or dP has exponentials enough beside it, 3 % slower where not.
  static constexpr bool plans_beside_dq = has_mask<F> || chunks > 1;
  __device__ __forceinline__ void plan_ahead(std::uint32_t number, int group) {
    if (group == 0 && gpu::thread_index_anew() % 128 == 0) plan(number + ahead);
    __syncwarp();
  }
  /// Waits for Q of a step.
  __device__ __forceinline__ query_step take(std::uint32_t number) const {
    int const stage = ring::stage(number);
    gpu::mbarrier_wait(at(s_.full_q[stage]), ring::parity(number));
    query_step const& step = s_.step[plan_ring::stage(number)];
    return {__shfl_sync(0xffffffffu, step.word, 0), step.head, 0};
  }
  /// This warp's first key of the tile.
  static __device__ __forceinline__ int first_row(int group) {
    return 64 * group + gpu::thread_index_anew() / 32 % 4 * 16;
  }

  /// S^T = K Q^T
  __device__ __forceinline__ void multiply_queries(scores (&s)[chunks], int stage, int group) const {
    gpu::wgmma_operand const k = k_.rows_from(64 * group).of_warp();
    gpu::wgmma_fence();
#pragma unroll
    for (int chunk = 0; chunk < chunks; ++chunk) {
      gpu::wgmma_operand const q = q_.stage(stage).rows_from(64 * chunk).of_warp();
#pragma unroll
      for (int c = 0; c < d; c += 16)
        gpu::wgmma<E, true>(s[chunk][0], k + key_tile::column_offset(c), q + query_tile::column_offset(c), c != 0);
    }
    gpu::wgmma_commit();
  }
  /// dP^T = V dO^T
  __device__ __forceinline__ void multiply_values(scores& dp, int stage, int chunk, int group) const {
    gpu::wgmma_operand const v = v_.rows_from(64 * group).of_warp(),
                             d_o = d_o_.stage(stage).rows_from(64 * chunk).of_warp();
    gpu::wgmma_fence();
#pragma unroll
    for (int c = 0; c < d; c += 16)
      gpu::wgmma<E, true>(dp[0], v + key_tile::column_offset(c), d_o + query_tile::column_offset(c), c != 0);
    gpu::wgmma_commit();
  }
  /// dV += P^T dO and dK += dS^T Q
  static __device__ __forceinline__ void add_product(key_gradient& to, rounded& a, query_tile b, int chunk) {
    gpu::wgmma_operand const rows = b.all_columns().of_warp();
    gpu::pin(a), gpu::pin(to[0]);
    gpu::wgmma_fence();
#pragma unroll
    for (int i = 0; i < n / 2; ++i)
      gpu::wgmma<E, false>(to[0], a[i], rows + query_tile::row_offset(64 * chunk + 16 * i), true);
    gpu::wgmma_commit();
  }
  /// dQ = dS K, this warpgroup's half of it: 64 of 128 rows, or one slab of two.
  __device__ __forceinline__ void multiply_keys(scores& d_q, int stage, int group) const {
    gpu::wgmma_operand const ds = ds_.stage(stage).rows_from(size.slabs == 2 ? 0 : 64 * group).of_warp();
    gpu::wgmma_operand const k = key_slab{k_.slab(size.slabs == 2 ? group : 0)}.all_columns().of_warp();
    gpu::wgmma_fence();
#pragma unroll
    for (int c = 0; c < size.columns; c += 16)
      gpu::wgmma<E, false>(d_q[0], ds + score_tile::column_offset(c), k + key_slab::row_offset(c), c != 0);
    gpu::wgmma_commit();
  }

  __device__ __forceinline__ block tile_of(query_step const& step, int chunk = 0) const {
    block t = p_.tiles.tile(s_.batch, step.head, step.i(), s_.j);
    t.q_begin += 64 * chunk;
    return t;
  }
  __device__ __forceinline__ void exponentiate(scores& s, rounded& p, query_step const& step, std::uint32_t kept,
                                               int stage, int chunk, int group) const {
    if (!has_score<F> && p_.scale.before != 1.f)
      gpu::for_each_element<1, n>(0, [&](int, int, int, int j, int e) { s[0][j].x[e] *= p_.scale.before; });
    block t{};
    if constexpr (has_score<F>) t = tile_of(step, chunk);
    std::uint32_t const base = base_address(stage, chunk);
    if (step.is(query_step::masked))
      gpu::exponentiate_columns<true, E, n>(s, p, p_.f, t, first_row(group), kept, p_.scale, base);
    else gpu::exponentiate_columns<false, E, n>(s, p, p_.f, t, first_row(group), kept, p_.scale, base);
  }

  /// dQ to shared memory in the order of query_sums, for the adding warps.
  __device__ __forceinline__ void hand_over(scores const& d_q, std::uint32_t number, int group) const {
    int const stage = ring::stage(number);
    gpu::mbarrier_wait(at(s_.empty_sums[stage]), ring::parity(number) ^ 1);
    std::uint32_t const to =
        sums_address(stage) +
        std::uint32_t((query_sums::part * group + query_sums::thread_stride * (gpu::thread_index_anew() % 128)) *
                      int(sizeof(float)));
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float const(&x)[4] = d_q[0][j].x;
      gpu::store_shared_4(to + std::uint32_t(j * query_sums::block_stride * int(sizeof(float))), __float_as_uint(x[0]),
                          __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
    }
    __syncwarp();
    if (leads()) gpu::mbarrier_arrive(at(s_.full_sums[stage]));
  }

  /// No query of the group's heads sees this key, which else would reach dQ.
  __device__ bool is_hidden_key(std::int32_t r) const {
    block const t = p_.tiles.tile(s_.batch, 0, 0, s_.j);
    std::int32_t const k = t.k_begin + r;
    if (k >= t.k_end) return false;
    for (std::int32_t h = s_.key_head * p_.ratio; h < (s_.key_head + 1) * p_.ratio; ++h) {
      block const column = hull_of(p_.f, {s_.batch, h, 0, p_.tiles.q, k, k + 1});
      if (is_empty(column) || cover_of(p_.f, column) == cover::empty) continue;
      for (std::int32_t q = column.q_begin; q < column.q_end; ++q)
        if (keep(p_.f, {s_.batch, h, q, k})) return false;
    }
    return true;
  }
  /// Rows of Q and dO that see none of the tile's keys become zeros before they meet dS and P.
  __device__ __forceinline__ void hide_queries(query_step const& step, int stage, int group) const {
    block const t = tile_of(step);
    auto const hidden = [&](std::int32_t r) { return t.q_begin + r < t.q_end && sees_no_key(p_.f, t, t.q_begin + r); };
    zero_hidden_rows<size.rows>(1 + group, hidden, q_.stage(stage), d_o_.stage(stage));
  }

  __device__ __forceinline__ void store(view<G> const& to, float* room, key_gradient const& from, int group,
                                        float scale) const {
    if (!to) return;
    if (shares() > 1) return leave_share<C>(room, p_.shares, s_.place, group, from);
    block const t = p_.tiles.tile(s_.batch, 0, 0, s_.j);
    float const factor[1][2] = {{scale, scale}};
    gpu::store_rows<d, G>(
        {to.row(s_.batch, t.k_begin, s_.key_head), to.stride.sequence, t.k_end - t.k_begin, p_.aligned, p_.accumulate},
        first_row(group), from, factor);
  }

  problem const& p_;
  signals& s_;
  key_tile k_, v_;
  query_tile q_, d_o_;
  score_tile ds_;
  std::uint32_t sums_, rows_;
};

}  // namespace lanewise::sm90
