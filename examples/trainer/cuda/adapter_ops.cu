// What adapters and mirrored weights are made of, on the GPU.
#include "launch.cuh"

namespace trainer {
namespace gpu {
namespace {

/// A block for every row; a thread works on one channel of one output group.
__global__ void mix(mix_shape s, bool back, float alpha, float const* w, float const* x, std::int64_t x_stride,
                    float beta, float* y, std::int64_t y_stride) {
  std::int64_t const to = back ? s.in_groups : s.out_groups, from = back ? s.out_groups : s.in_groups;
  x += blockIdx.x * x_stride, y += blockIdx.x * y_stride;
  for (std::int64_t j = threadIdx.x; j < to * s.channels; j += block_threads) {
    std::int64_t const l = j / s.channels, i = j % s.channels;
    float sum = beta == 0.f ? 0.f : beta * y[j];
    for (std::int64_t m = 0; m < from; ++m)
      sum += alpha * w[back ? m * s.in_groups + l : l * s.in_groups + m] * x[m * s.channels + i];
    y[j] = sum;
  }
}

/// partial[piece, l, m]: a block for every piece of rows and pair of groups.
__global__ void mix_weight_partials(mix_shape s, float const* d_y, std::int64_t d_y_stride, float const* x,
                                    std::int64_t x_stride, float* partial) {
  __shared__ block_sum<float> sum;
  std::int64_t const pairs = s.in_groups * s.out_groups, piece = blockIdx.x / pairs, pair = blockIdx.x % pairs;
  d_y += pair / s.in_groups * s.channels, x += pair % s.in_groups * s.channels;
  std::int64_t const end = min(s.rows, (piece + 1) * row_grain);
  float mine = 0;
  for (std::int64_t r = piece * row_grain; r < end; ++r)
    for (std::int64_t i = threadIdx.x; i < s.channels; i += block_threads)
      mine += d_y[r * d_y_stride + i] * x[r * x_stride + i];
  float const total = sum(mine);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
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

__global__ void round_to_bf16(std::int64_t count, float const* x, float* y) {
  std::int64_t const i = std::int64_t(blockIdx.x) * block_threads + threadIdx.x;
  if (i < count) y[i] = lanewise::to_float(lanewise::from_float<lanewise::bf16>(x[i]));
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
  std::int64_t const down = workers::piece_count(s.rows, row_grain), pairs = s.in_groups * s.out_groups;
  start(queue_, mix_weight_partials, down * pairs, block_threads, s, d_y, d_y_stride, x, x_stride, partial);
  start(queue_, add_partial_rows, workers::piece_count(pairs, block_threads), block_threads, down, pairs, pairs, alpha,
        partial, d_w);
}

void cuda_ops::add_columns(std::int64_t rows, std::int64_t n, float alpha, float const* x, std::int64_t x_stride,
                           float beta, float* y, std::int64_t y_stride) const {
  start(queue_, gpu::add_columns, rows, block_threads, n, alpha, x, x_stride, beta, y, y_stride);
}

void cuda_ops::widen(std::int64_t count, lanewise::bf16 const* x, float* y) const {
  start(queue_, gpu::widen, workers::piece_count(count, block_threads), block_threads, count, x, y);
}

void cuda_ops::round_to_bf16(std::int64_t count, float const* x, float* y) const {
  start(queue_, gpu::round_to_bf16, workers::piece_count(count, block_threads), block_threads, count, x, y);
}

}  // namespace trainer
