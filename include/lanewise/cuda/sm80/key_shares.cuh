// Shares of a key tile's walk. dK and dV take one block for each key tile of a key/value head; where these are few, as
// in cross-attention to a short prompt, a few multiprocessors would walk all queries while the others are idle. There
// the query tiles are dealt out to several blocks, each leaves its f32 sums in the workspace, and a second kernel adds
// them in ascending order. The number of shares depends on shape and chip alone, so that every sum has one order.
#pragma once

#include "backward_problem.cuh"

namespace lanewise::sm80 {

/// Blocks that walk for one of `key_tiles` key tiles, `steps` query tiles each: two blocks a multiprocessor, as many as
/// its registers hold. A share of fewer than 4 steps would take longer to load its keys and to leave its sums than to
/// walk; past 32 shares, finding the next step, which looks at those of the other shares, shows beside the products.
constexpr std::int32_t key_share_count(std::int64_t key_tiles, std::int64_t steps, int multiprocessors) {
  if (key_tiles == 0 || key_tiles >= multiprocessors) return 1;
  std::int64_t count = 2 * multiprocessors / key_tiles;
  if (count > steps / 4) count = steps / 4;
  return std::int32_t(count < 1 ? 1 : count > 32 ? 32 : count);
}

/// The f32 sums of each share: [share, batch][keys][key/value heads][head dim], one array for each wanted gradient.
struct key_shares {
  std::int32_t count = 1;
  view<float> d_k{}, d_v{};

  static std::size_t bytes(std::int32_t count, extents k, wanted grads) {
    return count == 1 ? 0 : sizeof(float) * std::size_t(count * k.count()) * std::size_t(grads.d_k + grads.d_v);
  }
  static key_shares in(float* room, std::int32_t count, extents k, wanted grads) {
    if (count == 1) return {};
    extents const all{count * k.batch, k.sequence, k.heads, k.head_dim};
    key_shares shares{count};
    if (grads.d_k) shares.d_k = {room, all};
    if (grads.d_v) shares.d_v = {room + (grads.d_k ? all.count() : 0), all};
    return shares;
  }
};

/// What the walks for dK and dV are told.
template <config C, class F>
struct key_problem : backward_problem<C, F> {
  key_shares shares;
};

/// Adds the sums of the shares in ascending order, four columns a thread.
template <config C>
class key_sum_kernel {
  using G = gradient<C>;
  static constexpr int d = C.head_dim, columns = 4;

 public:
  static constexpr char const* name = "sm80 backward, sums of dK and dV";
  static constexpr int threads = 128, shared_bytes = 0;
  struct problem {
    key_shares shares;
    view<G> d_k, d_v;
    std::int64_t chunks;  ///< of one gradient
    float scale;
    bool accumulate;
    problem(key_shares const& shares, backward_args<C> const& a)
        : shares(shares), d_k(a.d_k), d_v(a.d_v), chunks(a.k.size.count() / columns), scale(a.scale),
          accumulate(a.accumulate) {}
  };
  static std::int64_t units(problem const& p) {
    return ((bool(p.d_k) + bool(p.d_v)) * p.chunks + threads - 1) / threads;
  }

  __device__ key_sum_kernel(problem const& p, std::uint32_t) : p_(p) {}
  __device__ void run(std::int64_t unit) const {
    std::int64_t const x = unit * threads + threadIdx.x, of_k = p_.d_k ? p_.chunks : 0;
    if (x < of_k) add(p_.d_k, p_.shares.d_k, x, p_.scale);
    else if (p_.d_v && x - of_k < p_.chunks) add(p_.d_v, p_.shares.d_v, x - of_k, 1.f);
  }

 private:
  __device__ void add(view<G> const& to, view<float> const& from, std::int64_t chunk, float scale) const {
    float4 const* share = reinterpret_cast<float4 const*>(from.data) + chunk;
    float4 sum = *share;
#pragma unroll 8
    for (std::int32_t s = 1; s < p_.shares.count; ++s) {
      float4 const x = *(share += p_.chunks);
      sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
    }
    std::int64_t const row = chunk / (d / columns), bk = row / to.size.heads;
    G* const at =
        to.row(bk / to.size.sequence, bk % to.size.sequence, row % to.size.heads) + chunk % (d / columns) * columns;
    float const whole[columns] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < columns; ++i) gpu::store_element(at + i, whole[i] * scale, p_.accumulate);
  }
  problem const& p_;
};

}  // namespace lanewise::sm80
