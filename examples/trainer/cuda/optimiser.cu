// The gradient's norm and AdamW on the GPU. Neither waits: the update reads the norm where the first kernel left it.
#include "launch.cuh"

namespace trainer {
namespace gpu {
namespace {

/// A block sums one segment.
__global__ void segment_squares(segment const* table, float const* x, double* squares) {
  __shared__ block_sum<double> sum;
  segment const s = table[blockIdx.x];
  double mine = 0;
  for (std::int64_t i = s.begin + threadIdx.x; i < s.end; i += block_threads) mine += double(x[i]) * double(x[i]);
  double const total = sum(mine);
  if (threadIdx.x == 0) squares[blockIdx.x] = total;
}

/// One block: the root of the sum of all segments.
__global__ void root_of_sum(std::int64_t segments, double const* squares, double* norm) {
  __shared__ block_sum<double> sum;
  double mine = 0;
  for (std::int64_t i = threadIdx.x; i < segments; i += block_threads) mine += squares[i];
  double const total = sum(mine);
  if (threadIdx.x == 0) *norm = sqrt(total);
}

__global__ void adamw(segment const* table, adamw_rates r, double const* norm, float const* __restrict__ gradients,
                      float* __restrict__ weights, float* __restrict__ m, float* __restrict__ v) {
  if (!isfinite(*norm)) return;
  segment const s = table[blockIdx.x];
  float const clip = float(*norm > r.clip ? r.clip / *norm : 1.0), keep = s.decays ? r.keep : 1.f;
#pragma unroll 4  // so that the loads of four numbers are on their way at once
  for (std::int64_t i = s.begin + threadIdx.x; i < s.end; i += block_threads) {
    float const g = gradients[i] * clip;
    float const mean = m[i] = r.beta1 * m[i] + (1 - r.beta1) * g;
    float const square = v[i] = r.beta2 * v[i] + (1 - r.beta2) * g * g;
    weights[i] = keep * weights[i] - r.rate * mean / (sqrtf(square * r.v_scale) + r.epsilon);
  }
}

}  // namespace
}  // namespace gpu

using namespace gpu;

void cuda_ops::norm(std::int64_t segments, segment const* table, float const* x, double* squares,
                    double* result) const {
  start(queue_, segment_squares, segments, block_threads, table, x, squares);
  start(queue_, root_of_sum, 1, block_threads, segments, squares, result);
}

void cuda_ops::adamw_update(std::int64_t segments, segment const* table, adamw_rates const& r, double const* norm,
                            float const* gradients, float* weights, float* m, float* v) const {
  start(queue_, gpu::adamw, segments, block_threads, table, r, norm, gradients, weights, m, v);
}

}  // namespace trainer
