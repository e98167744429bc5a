// The chain that flash attention replaces, on the GPU: attention_exact.hpp has the equations. A product covers the
// query heads of equal place within their groups, one for every key/value head; the places follow one another, so that
// dK and dV are summed in one order.
#include "launch.cuh"

namespace trainer {
namespace gpu {
namespace {

/// Keys that the query of this block's row sees: begin ... end-1. Rows are [batch, q_heads, queries].
struct live_keys {
  std::int64_t begin, end;
  __device__ live_keys(attention_shape const& s, std::int32_t const* key_lengths) {
    std::int64_t const i = blockIdx.x % s.queries, b = blockIdx.x / (s.queries * s.q_heads);
    begin = max(std::int64_t(0), i - s.mask.left);
    end = min(i + s.mask.right + 1, key_lengths ? min(s.keys, std::int64_t(key_lengths[b])) : s.keys);
    if (end < begin) begin = end = 0;
  }
  __device__ bool has(std::int64_t k) const { return begin <= k && k < end; }
};

__global__ void softmax_rows(attention_shape s, std::int32_t const* key_lengths, float* p) {
  using reduce = cub::BlockReduce<float, block_threads>;
  __shared__ typename reduce::TempStorage storage;
  __shared__ block_sum<float> sum;
  __shared__ float largest;
  live_keys const live(s, key_lengths);
  float* const row = p + blockIdx.x * s.keys;
  float most = -INFINITY;
  for (std::int64_t i = live.begin + threadIdx.x; i < live.end; i += block_threads) most = fmaxf(most, row[i]);
  most = reduce(storage).Reduce(most, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x == 0) largest = most;
  __syncthreads();
  float mine = 0;
  for (std::int64_t i = live.begin + threadIdx.x; i < live.end; i += block_threads) mine += expf(row[i] - largest);
  float const factor = 1.f / sum(mine);
  for (std::int64_t i = threadIdx.x; i < s.keys; i += block_threads)
    row[i] = live.has(i) ? expf(row[i] - largest) * factor : 0.f;
}

/// d_p = p * (d_p - rowsum(p * d_p)).
__global__ void score_gradients(attention_shape s, std::int32_t const* key_lengths, float const* p, float* d_p) {
  __shared__ block_sum<float> sum;
  live_keys const live(s, key_lengths);
  float const* const p_row = p + blockIdx.x * s.keys;
  float* const d_row = d_p + blockIdx.x * s.keys;
  float mine = 0;
  for (std::int64_t i = live.begin + threadIdx.x; i < live.end; i += block_threads) mine += p_row[i] * d_row[i];
  float const total = sum(mine);
  for (std::int64_t i = threadIdx.x; i < s.keys; i += block_threads) d_row[i] = p_row[i] * (d_row[i] - total);
}

/// A block for every row of one head.
__global__ void zero_row(lanewise::view<float> x) {
  std::int64_t const h = blockIdx.x % x.size.heads, s = blockIdx.x / x.size.heads % x.size.sequence;
  float* const row = x.row(blockIdx.x / (x.size.heads * x.size.sequence), s, h);
  for (std::int64_t i = threadIdx.x; i < x.size.head_dim; i += blockDim.x) row[i] = 0;
}

/// The heads first, first + every, ... of batch element b.
template <class T>
batched_matrix<T> heads(lanewise::view<T> const& x, std::int64_t b, std::int64_t first, std::int64_t every) {
  return {x.row(b, 0, first), x.stride.sequence, every * x.stride.heads};
}

constexpr char const* exact_name = "materialised softmax on cuBLASLt";

}  // namespace
}  // namespace gpu

using namespace gpu;

char const* cuda_ops::exact_forward(attention_shape const& s, attention_inputs<float> const& in,
                                    lanewise::view<float> o, float* p) const {
  std::int64_t const group = s.q_heads / s.kv_heads, area = s.queries * s.keys;
  float const scale = 1.f / std::sqrt(float(s.head_dim));
  auto const each = [&](auto const& f) {
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t place = 0; place < group; ++place)
        f(b, place, batched_matrix<float>{p + (b * s.q_heads + place) * area, s.keys, group * area});
  };
  each([&](std::int64_t b, std::int64_t place, batched_matrix<float> rows) {
    batched_product({transpose::no, transpose::yes, s.queries, s.keys, s.head_dim, s.kv_heads}, scale,
                    heads(in.q, b, place, group), heads(in.k, b, 0, 1), 0, rows);
  });
  start(queue_, softmax_rows, s.batch * s.q_heads * s.queries, block_threads, s, in.key_lengths, p);
  each([&](std::int64_t b, std::int64_t place, batched_matrix<float> rows) {
    batched_product({transpose::no, transpose::no, s.queries, s.head_dim, s.keys, s.kv_heads}, 1, rows,
                    heads(in.v, b, 0, 1), 0, heads(o, b, place, group));
  });
  return exact_name;
}

char const* cuda_ops::exact_backward(attention_shape const& s, attention_inputs<float> const& in, float const* p,
                                     lanewise::view<float const> d_o, attention_gradients<float> const& out,
                                     float* d_p) const {
  std::int64_t const group = s.q_heads / s.kv_heads, area = s.queries * s.keys;
  float const scale = 1.f / std::sqrt(float(s.head_dim));
  auto const each = [&](auto const& f) {
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t place = 0; place < group; ++place) {
        std::int64_t const at = (b * s.q_heads + place) * area;
        f(b, place, batched_matrix<float const>{p + at, s.keys, group * area},
          batched_matrix<float>{d_p + at, s.keys, group * area});
      }
  };
  each([&](std::int64_t b, std::int64_t place, batched_matrix<float const> rows, batched_matrix<float> d_rows) {
    float const keep = place == 0 ? 0.f : 1.f;
    batched_product({transpose::yes, transpose::no, s.keys, s.head_dim, s.queries, s.kv_heads}, 1, rows,
                    heads(d_o, b, place, group), keep, heads(out.d_v, b, 0, 1));
    batched_product({transpose::no, transpose::yes, s.queries, s.keys, s.head_dim, s.kv_heads}, 1,
                    heads(d_o, b, place, group), heads(in.v, b, 0, 1), 0, d_rows);
  });
  start(queue_, score_gradients, s.batch * s.q_heads * s.queries, block_threads, s, in.key_lengths, p, d_p);
  each([&](std::int64_t b, std::int64_t place, batched_matrix<float const>, batched_matrix<float> d_rows) {
    float const keep = place == 0 ? 0.f : 1.f;
    batched_product({transpose::no, transpose::no, s.queries, s.head_dim, s.keys, s.kv_heads}, scale, d_rows,
                    heads(in.k, b, 0, 1), 0, heads(out.d_q, b, place, group));
    batched_product({transpose::yes, transpose::no, s.keys, s.head_dim, s.queries, s.kv_heads}, scale, d_rows,
                    heads(in.q, b, place, group), keep, heads(out.d_k, b, 0, 1));
  });
  return exact_name;
}

char const* cuda_ops::zero_rows(std::initializer_list<lanewise::view<float>> all) const {
  for (lanewise::view<float> const& x : all)
    start(queue_, zero_row, x.size.batch * x.size.sequence * x.size.heads, 32, x);
  return "ablated: the output is zero";
}

}  // namespace trainer
