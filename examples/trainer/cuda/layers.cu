// The layers of a language model on the GPU, as ops.hpp defines them. One block works on one row of a norm, one warp on
// one head, and the gradient of a gain goes through the same partial sums of row_grain rows as on the CPU.
#include <cub/block/block_scan.cuh>

#include "launch.cuh"

namespace trainer {
namespace gpu {

__global__ void add_partial_rows(std::int64_t rows, std::int64_t n, std::int64_t stride, float scale,
                                 float const* partial, float* total) {
  std::int64_t const i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = 0;
  for (std::int64_t r = 0; r < rows; ++r) sum += partial[r * stride + i];
  total[i] += scale * sum;
}

namespace {

__global__ void rms_norm(std::int64_t n, float epsilon, float const* x, float const* gain, float* y, float* inverse) {
  __shared__ block_sum<float> sum;
  std::int64_t const row = blockIdx.x;
  x += row * n, y += row * n;
  float mine = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) mine += x[i] * x[i];
  float const scale = 1.f / sqrtf(sum(mine) / float(n) + epsilon);
  if (threadIdx.x == 0) inverse[row] = scale;
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) y[i] = gain[i] * (x[i] * scale);
}

__global__ void rms_norm_backward(std::int64_t n, float const* x, float const* gain, float const* inverse,
                                  float const* d_y, float* d_x) {
  __shared__ block_sum<float> sum;
  std::int64_t const row = blockIdx.x;
  x += row * n, d_y += row * n, d_x += row * n;
  float mine = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) mine += d_y[i] * gain[i] * x[i];
  float const r = inverse[row], shrink = r * r * (sum(mine) / float(n));
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) d_x[i] += r * (gain[i] * d_y[i] - x[i] * shrink);
}

/// partial[piece, n] = sums of d_y x inverse over the rows of a piece. Blocks: pieces, each as many as cover n columns.
__global__ void gain_partials(std::int64_t rows, std::int64_t n, float const* x, float const* inverse, float const* d_y,
                              float* partial) {
  std::int64_t const across = (n + block_threads - 1) / block_threads, piece = blockIdx.x / across;
  std::int64_t const i = blockIdx.x % across * block_threads + threadIdx.x;
  if (i >= n) return;
  std::int64_t const end = min(rows, (piece + 1) * row_grain);
  float sum = 0;
#pragma unroll 8  // so that eight rows are on their way at once
  for (std::int64_t r = piece * row_grain; r < end; ++r) sum += d_y[r * n + i] * x[r * n + i] * inverse[r];
  partial[piece * n + i] = sum;
}

/// Heads that one block of a head norm works on, a warp each.
constexpr int head_warps = 8;

/// The head of this warp and where its numbers lie.
struct head_place {
  bool exists;
  std::int64_t token, head, in, out;  ///< offsets into qkv and qk
  __device__ head_place(head_shape const& s) {
    std::int64_t const i = std::int64_t(blockIdx.x) * head_warps + threadIdx.x / 32;
    exists = i < s.tokens * s.normed_heads();
    token = i / s.normed_heads();
    head = i % s.normed_heads();
    in = (token * s.all_heads() + head) * s.n;
    out = i * s.n;
  }
};

/// Cosine and sine of pair i at a token's position; no table is no rotation.
struct rotation {
  float cosine = 1, sine = 0;
  __device__ rotation(head_shape const& s, float const* table, std::int64_t token, std::int64_t i) {
    if (!table) return;
    float const* const at = table + token % s.sequence * s.n;
    cosine = at[i], sine = at[s.n / 2 + i];
  }
};

__global__ void head_norm(head_shape s, float const* qkv, float const* q_gain, float const* k_gain, float const* rotary,
                          float* qk, float* inverse) {
  head_place const at(s);
  if (!at.exists) return;
  std::int64_t const half = s.n / 2;
  float const *const x = qkv + at.in, *const gain = at.head < s.q_heads ? q_gain : k_gain;
  float* const y = qk + at.out;
  int const lane = int(threadIdx.x) % 32;
  float mine = 0;
  for (std::int64_t i = lane; i < s.n; i += 32) mine += x[i] * x[i];
  float const scale = 1.f / sqrtf(warp_sum(mine) / float(s.n) + float(s.epsilon));
  if (lane == 0) inverse[at.out / s.n] = scale;
  for (std::int64_t i = lane; i < half; i += 32) {
    rotation const r(s, rotary, at.token, i);
    float const a = gain[i] * (x[i] * scale), b = gain[i + half] * (x[i + half] * scale);
    y[i] = a * r.cosine - b * r.sine;
    y[i + half] = b * r.cosine + a * r.sine;
  }
}

__global__ void head_norm_backward(head_shape s, float const* qkv, float const* q_gain, float const* k_gain,
                                   float const* rotary, float const* inverse, float const* d_qk, float* d_qkv) {
  head_place const at(s);
  if (!at.exists) return;
  std::int64_t const half = s.n / 2;
  float const *const x = qkv + at.in, *const gain = at.head < s.q_heads ? q_gain : k_gain, *const d_y = d_qk + at.out;
  float* const d_x = d_qkv + at.in;
  int const lane = int(threadIdx.x) % 32;
  float mine = 0;
  for (std::int64_t i = lane; i < half; i += 32) {
    rotation const r(s, rotary, at.token, i);
    mine += (d_y[i] * r.cosine + d_y[i + half] * r.sine) * gain[i] * x[i];
    mine += (d_y[i + half] * r.cosine - d_y[i] * r.sine) * gain[i + half] * x[i + half];
  }
  float const scale = inverse[at.out / s.n], shrink = scale * scale * (warp_sum(mine) / float(s.n));
  for (std::int64_t i = lane; i < half; i += 32) {
    rotation const r(s, rotary, at.token, i);
    float const a = d_y[i] * r.cosine + d_y[i + half] * r.sine, b = d_y[i + half] * r.cosine - d_y[i] * r.sine;
    d_x[i] = scale * (gain[i] * a - x[i] * shrink);
    d_x[i + half] = scale * (gain[i + half] * b - x[i + half] * shrink);
  }
}

/// Threads beside one another in head_gain_partials: of the row_grain tokens of a piece each takes every 32nd.
constexpr int token_lanes = 32;

/// partial[piece, 2 n]: sums of the gradients of the query and the key gain. Blocks: pieces, queries then keys; threads
/// [32 columns, token_lanes].
__global__ void head_gain_partials(head_shape s, float const* qkv, float const* rotary, float const* inverse,
                                   float const* d_qk, float* partial) {
  __shared__ float sums[token_lanes][32];
  std::int64_t const across = (s.n + 31) / 32, piece = blockIdx.x / (2 * across);
  bool const is_key = blockIdx.x / across % 2 == 1;
  std::int64_t const i = blockIdx.x % across * 32 + threadIdx.x, half = s.n / 2,
                     end = min(s.tokens, (piece + 1) * row_grain);
  std::int64_t const first = is_key ? s.q_heads : 0, last = is_key ? s.normed_heads() : s.q_heads;
  float sum = 0;
  for (std::int64_t t = piece * row_grain + threadIdx.y; i < s.n && t < end; t += token_lanes) {
    rotation const r(s, rotary, t, i % half);
    std::int64_t const other = i < half ? i + half : i - half;
    float const sine = i < half ? r.sine : -r.sine;
    for (std::int64_t h = first; h < last; ++h) {
      std::int64_t const head = t * s.normed_heads() + h;
      float const d = d_qk[head * s.n + i] * r.cosine + d_qk[head * s.n + other] * sine;
      sum += d * qkv[(t * s.all_heads() + h) * s.n + i] * inverse[head];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || i >= s.n) return;
  for (int lane = 1; lane < token_lanes; ++lane) sum += sums[lane][threadIdx.x];
  partial[(piece * 2 + is_key) * s.n + i] = sum;
}

__global__ void swiglu(std::int64_t n, float const* __restrict__ gate_up, float* __restrict__ y) {
  float const *const gate = gate_up + blockIdx.x * 2 * n, *const up = gate + n;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads)
    y[blockIdx.x * n + i] = up[i] * gate[i] / (1.f + expf(-gate[i]));
}

__global__ void swiglu_backward(std::int64_t n, float const* __restrict__ gate_up, float const* __restrict__ d_y,
                                float* __restrict__ d_gate_up) {
  float const *const gate = gate_up + blockIdx.x * 2 * n, *const up = gate + n, *const d = d_y + blockIdx.x * n;
  float *const d_gate = d_gate_up + blockIdx.x * 2 * n, *const d_up = d_gate + n;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) {
    float const sigmoid = 1.f / (1.f + expf(-gate[i]));
    d_gate[i] = d[i] * up[i] * sigmoid * (1.f + gate[i] * (1.f - sigmoid));
    d_up[i] = d[i] * gate[i] * sigmoid;
  }
}

__global__ void embed(std::int64_t n, std::int32_t const* tokens, float const* table, float* x) {
  float const* const from = table + tokens[blockIdx.x] * n;
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) x[blockIdx.x * n + i] = from[i];
}

/// A block for every row and block_threads columns; that of a token's first row adds all of its rows in their order.
__global__ void embed_backward(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, float const* d_x,
                               float* d_table) {
  using scan = cub::BlockScan<int, block_threads>;
  __shared__ typename scan::TempStorage storage;
  __shared__ int found[block_threads];
  std::int64_t const across = (n + block_threads - 1) / block_threads, first = blockIdx.x / across;
  std::int64_t const i = blockIdx.x % across * block_threads + threadIdx.x;
  std::int32_t const token = tokens[first];
  for (std::int64_t r = first - 1 - threadIdx.x, left = first; left > 0; r -= block_threads, left -= block_threads)
    if (__syncthreads_or(r >= 0 && tokens[r] == token)) return;
  float sum = i < n ? d_table[token * n + i] : 0.f;
  for (std::int64_t begin = first; begin < rows; begin += block_threads) {
    std::int64_t const r = begin + threadIdx.x;
    bool const mine = r < rows && tokens[r] == token;
    int place, count;
    scan(storage).ExclusiveSum(int(mine), place, count);
    if (mine) found[place] = int(threadIdx.x);
    __syncthreads();
    if (i < n) {
#pragma unroll 8  // so that eight rows are on their way at once
      for (int j = 0; j < count; ++j) sum += d_x[(begin + found[j]) * n + i];
    }
    __syncthreads();
  }
  if (i < n) d_table[token * n + i] = sum;
}

__global__ void cross_entropy(std::int64_t n, std::int32_t const* targets, float weight, float* logits, float* loss) {
  using reduce = cub::BlockReduce<float, block_threads>;
  __shared__ typename reduce::TempStorage storage;
  __shared__ block_sum<float> sum;
  __shared__ float largest, target_logit;
  std::int32_t const target = targets[blockIdx.x];
  float* const row = logits + blockIdx.x * n;
  if (target == no_target) {
    if (threadIdx.x == 0) loss[blockIdx.x] = 0;
    for (std::int64_t i = threadIdx.x; i < n; i += block_threads) row[i] = 0;
    return;
  }
  float most = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) most = fmaxf(most, row[i]);
  most = reduce(storage).Reduce(most, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x == 0) largest = most, target_logit = row[target];
  __syncthreads();
  float mine = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) mine += expf(row[i] - largest);
  float const total = sum(mine), factor = weight / total;
  if (threadIdx.x == 0) loss[blockIdx.x] = largest + logf(total) - target_logit;
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads)
    row[i] = expf(row[i] - largest) * factor - (i == target ? weight : 0.f);
}

std::int64_t pieces(std::int64_t count, std::int64_t grain) { return workers::piece_count(count, grain); }

}  // namespace
}  // namespace gpu

using namespace gpu;

void cuda_ops::rms_norm(std::int64_t rows, std::int64_t n, double epsilon, float const* x, float const* gain, float* y,
                        float* inverse) const {
  start(queue_, gpu::rms_norm, rows, block_threads, n, float(epsilon), x, gain, y, inverse);
}

void cuda_ops::rms_norm_backward(std::int64_t rows, std::int64_t n, float const* x, float const* gain,
                                 float const* inverse, float const* d_y, float* d_x, float* d_gain,
                                 float* partial) const {
  start(queue_, gpu::rms_norm_backward, rows, block_threads, n, x, gain, inverse, d_y, d_x);
  if (!d_gain) return;
  std::int64_t const across = pieces(n, block_threads), down = pieces(rows, row_grain);
  start(queue_, gain_partials, down * across, block_threads, rows, n, x, inverse, d_y, partial);
  start(queue_, add_partial_rows, across, block_threads, down, n, n, 1.f, partial, d_gain);
}

void cuda_ops::head_norm(head_shape s, float const* qkv, float const* q_gain, float const* k_gain, float const* rotary,
                         float* qk, float* inverse) const {
  start(queue_, gpu::head_norm, pieces(s.tokens * s.normed_heads(), head_warps), head_warps * 32, s, qkv, q_gain,
        k_gain, rotary, qk, inverse);
}

void cuda_ops::head_norm_backward(head_shape s, float const* qkv, float const* q_gain, float const* k_gain,
                                  float const* rotary, float const* inverse, float const* d_qk, float* d_qkv,
                                  float* d_q_gain, float* d_k_gain, float* partial) const {
  start(queue_, gpu::head_norm_backward, pieces(s.tokens * s.normed_heads(), head_warps), head_warps * 32, s, qkv,
        q_gain, k_gain, rotary, inverse, d_qk, d_qkv);
  if (!partial) return;
  std::int64_t const down = pieces(s.tokens, row_grain);
  start(queue_, head_gain_partials, down * 2 * pieces(s.n, 32), dim3(32, token_lanes), s, qkv, rotary, inverse, d_qk,
        partial);
  std::int64_t const across = pieces(s.n, block_threads);
  if (d_q_gain) start(queue_, add_partial_rows, across, block_threads, down, s.n, 2 * s.n, 1.f, partial, d_q_gain);
  if (d_k_gain)
    start(queue_, add_partial_rows, across, block_threads, down, s.n, 2 * s.n, 1.f, partial + s.n, d_k_gain);
}

void cuda_ops::swiglu(std::int64_t rows, std::int64_t n, float const* gate_up, float* y) const {
  start(queue_, gpu::swiglu, rows, block_threads, n, gate_up, y);
}

void cuda_ops::swiglu_backward(std::int64_t rows, std::int64_t n, float const* gate_up, float const* d_y,
                               float* d_gate_up) const {
  start(queue_, gpu::swiglu_backward, rows, block_threads, n, gate_up, d_y, d_gate_up);
}

void cuda_ops::embed(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, float const* table,
                     float* x) const {
  start(queue_, gpu::embed, rows, block_threads, n, tokens, table, x);
}

void cuda_ops::embed_backward(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, float const* d_x,
                              float* d_table) const {
  start(queue_, gpu::embed_backward, rows * pieces(n, block_threads), block_threads, rows, n, tokens, d_x, d_table);
}

void cuda_ops::cross_entropy(std::int64_t rows, std::int64_t n, std::int32_t const* targets, float weight,
                             float* logits, float* loss) const {
  start(queue_, gpu::cross_entropy, rows, block_threads, n, targets, weight, logits, loss);
}

}  // namespace trainer
