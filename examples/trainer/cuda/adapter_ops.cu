// What adapters and mirrored weights are made of, on the GPU.
#include "launch.cuh"

namespace trainer {
namespace gpu {
namespace {

/// Groups of either side that a thread holds at once, so that a number that was read serves so many products.
constexpr int held_groups = 4;

/// A block for every row; a thread works on one channel of all groups.
__global__ void mix(mix_shape s, bool back, float alpha, float const* w, float const* x, std::int64_t x_stride,
                    float beta, float* y, std::int64_t y_stride) {
  int const to = int(back ? s.in_groups : s.out_groups), from = int(back ? s.out_groups : s.in_groups);
  int const next_to = back ? 1 : from, next_from = back ? to : 1;  // steps through w
  x += blockIdx.x * x_stride, y += blockIdx.x * y_stride;
  for (std::int64_t i = threadIdx.x; i < s.channels; i += block_threads)
    for (int first = 0; first < to; first += held_groups) {
      float sum[held_groups] = {};
      for (int m = 0; m < from; ++m) {
        float const in = x[m * s.channels + i];
#pragma unroll
        for (int l = 0; l < held_groups; ++l)
          if (first + l < to) sum[l] += w[(first + l) * next_to + m * next_from] * in;
      }
#pragma unroll
      for (int l = 0; l < held_groups; ++l)
        if (first + l < to) {
          float& out = y[(first + l) * s.channels + i];
          out = alpha * sum[l] + (beta == 0.f ? 0.f : beta * out);
        }
    }
}

__host__ __device__ constexpr std::int64_t tiles(std::int64_t groups) {
  return (groups + held_groups - 1) / held_groups;
}

/// partial[piece, l, m]: a block for every piece of rows and tile of pairs of groups. Reading each number once for a
/// whole tile, not once for every pair, is what the time goes by.
__global__ void mix_weight_partials(mix_shape s, float const* d_y, std::int64_t d_y_stride, float const* x,
                                    std::int64_t x_stride, float* partial) {
  constexpr int sums = held_groups * held_groups, warps = block_threads / 32;
  __shared__ float of_warp[warps][sums];
  std::int64_t const across = tiles(s.in_groups), all = across * tiles(s.out_groups);
  std::int64_t const piece = blockIdx.x / all, tile = blockIdx.x % all;
  int const first_l = int(tile / across) * held_groups, first_m = int(tile % across) * held_groups;
  int const count_l = min(held_groups, int(s.out_groups) - first_l),
            count_m = min(held_groups, int(s.in_groups) - first_m);
  d_y += first_l * s.channels, x += first_m * s.channels;

  float sum[held_groups][held_groups] = {};
  std::int64_t const end = min(s.rows, (piece + 1) * mix_shape::grain);
  for (std::int64_t r = piece * mix_shape::grain; r < end; ++r)
    for (std::int64_t i = threadIdx.x; i < s.channels; i += block_threads) {
      float above[held_groups], in[held_groups];
#pragma unroll
      for (int g = 0; g < held_groups; ++g) {
        above[g] = g < count_l ? d_y[r * d_y_stride + g * s.channels + i] : 0.f;
        in[g] = g < count_m ? x[r * x_stride + g * s.channels + i] : 0.f;
      }
#pragma unroll
      for (int l = 0; l < held_groups; ++l)
#pragma unroll
        for (int m = 0; m < held_groups; ++m) sum[l][m] += above[l] * in[m];
    }

#pragma unroll
  for (int i = 0; i < sums; ++i) {
    float const total = warp_sum(sum[i / held_groups][i % held_groups]);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32][i] = total;
  }
  __syncthreads();
  int const l = int(threadIdx.x) / held_groups, m = int(threadIdx.x) % held_groups;
  if (l >= count_l || m >= count_m) return;
  float total = 0;
  for (int warp = 0; warp < warps; ++warp) total += of_warp[warp][threadIdx.x];
  partial[(piece * s.out_groups + first_l + l) * s.in_groups + first_m + m] = total;
}

/// d_w[pair] += alpha times the sum of partial[0 ... pieces-1][pair]: a block for every pair.
__global__ void add_mix_partials(std::int64_t pieces, float alpha, float const* partial, float* d_w) {
  __shared__ block_sum<float> sum;
  float mine = 0;
  for (std::int64_t piece = threadIdx.x; piece < pieces; piece += block_threads)
    mine += partial[piece * gridDim.x + blockIdx.x];
  float const total = sum(mine);
  if (threadIdx.x == 0) d_w[blockIdx.x] += alpha * total;
}

__global__ void add_columns(std::int64_t n, float alpha, float const* x, std::int64_t x_stride, float beta, float* y,
                            std::int64_t y_stride) {
  x += blockIdx.x * x_stride, y += blockIdx.x * y_stride;
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) y[i] = alpha * x[i] + (beta == 0.f ? 0.f : beta * y[i]);
}

__global__ void widen(std::int64_t count, lanewise::bf16 const* x, float* y) {
  std::int64_t const i = std::int64_t(blockIdx.x) * block_threads + threadIdx.x;
  if (i < count) y[i] = lanewise::to_float(x[i]);
}

__global__ void narrow(std::int64_t count, float const* x, lanewise::bf16* y) {
  std::int64_t const i = std::int64_t(blockIdx.x) * block_threads + threadIdx.x;
  if (i < count) y[i] = lanewise::from_float<lanewise::bf16>(x[i]);
}

}  // namespace
}  // namespace gpu

using namespace gpu;

void cuda_ops::mix(mix_shape s, transpose t, float alpha, float const* w, float const* x, std::int64_t x_stride,
                   float beta, float* y, std::int64_t y_stride) const {
  start(queue_, gpu::mix, s.rows, block_threads, s, t == transpose::yes, alpha, w, x, x_stride, beta, y, y_stride);
}

void cuda_ops::mix_weight_backward(mix_shape s, float alpha, float const* d_y, std::int64_t d_y_stride, float const* x,
                                   std::int64_t x_stride, float* d_w, float* partial) const {
  start(queue_, mix_weight_partials, s.pieces() * tiles(s.out_groups) * tiles(s.in_groups), block_threads, s, d_y,
        d_y_stride, x, x_stride, partial);
  start(queue_, add_mix_partials, s.pairs(), block_threads, s.pieces(), alpha, partial, d_w);
}

void cuda_ops::add_columns(std::int64_t rows, std::int64_t n, float alpha, float const* x, std::int64_t x_stride,
                           float beta, float* y, std::int64_t y_stride) const {
  start(queue_, gpu::add_columns, rows, block_threads, n, alpha, x, x_stride, beta, y, y_stride);
}

void cuda_ops::widen(std::int64_t count, lanewise::bf16 const* x, float* y) const {
  start(queue_, gpu::widen, workers::piece_count(count, block_threads), block_threads, count, x, y);
}

void cuda_ops::narrow(std::int64_t count, float const* x, lanewise::bf16* y) const {
  start(queue_, gpu::narrow, workers::piece_count(count, block_threads), block_threads, count, x, y);
}

}  // namespace trainer
