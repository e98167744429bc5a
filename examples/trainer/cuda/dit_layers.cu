// The diffusion transformer's layers. One block works on one row; sums over rows go through the partial sums of
// row_grain rows of one batch element that the CPU has too, a thread a column.
#include "cuda_dit_ops.hpp"
#include "launch.cuh"

namespace trainer {
namespace gpu {
namespace {

__global__ void adaptive_norm(sequence_shape s, float epsilon, float const* x, float const* gain, float const* shift,
                              float const* scale, float* y, float* inverse) {
  __shared__ block_sum<float> sum;
  std::int64_t const row = blockIdx.x, vector = row / s.sequence * s.stride;
  x += row * s.n, y += row * s.n, shift += vector, scale += vector;
  float mine = 0;
  for (std::int64_t i = threadIdx.x; i < s.n; i += block_threads) mine += x[i] * x[i];
  float const factor = 1.f / sqrtf(sum(mine) / float(s.n) + epsilon);
  if (threadIdx.x == 0) inverse[row] = factor;
  for (std::int64_t i = threadIdx.x; i < s.n; i += block_threads)
    y[i] = gain[i] * (x[i] * factor) * (1.f + scale[i]) + shift[i];
}

__global__ void adaptive_norm_backward(sequence_shape s, float const* x, float const* gain, float const* scale,
                                       float const* inverse, float const* d_y, float* d_x) {
  __shared__ block_sum<float> sum;
  std::int64_t const row = blockIdx.x;
  x += row * s.n, d_y += row * s.n, d_x += row * s.n, scale += row / s.sequence * s.stride;
  float mine = 0;
  for (std::int64_t i = threadIdx.x; i < s.n; i += block_threads) mine += d_y[i] * (1.f + scale[i]) * gain[i] * x[i];
  float const factor = inverse[row], shrink = factor * factor * (sum(mine) / float(s.n));
  for (std::int64_t i = threadIdx.x; i < s.n; i += block_threads)
    d_x[i] += factor * (d_y[i] * (1.f + scale[i]) * gain[i] - x[i] * shrink);
}

/// The column of this thread and the rows of its piece. Blocks: batch elements, pieces, as many as cover n columns.
struct piece_column {
  std::int64_t piece, element, begin, end, i;
  __device__ piece_column(sequence_shape const& s) {
    std::int64_t const across = (s.n + block_threads - 1) / block_threads,
                       pieces = (s.sequence + row_grain - 1) / row_grain;
    piece = blockIdx.x / across;
    element = piece / pieces;
    begin = element * s.sequence + piece % pieces * row_grain;
    end = min(begin + row_grain, (element + 1) * s.sequence);
    i = blockIdx.x % across * block_threads + threadIdx.x;
  }
};

/// partial[piece, 3, n]: sums of d shift, d scale and d gain.
__global__ void modulation_partials(sequence_shape s, float const* x, float const* gain, float const* scale,
                                    float const* inverse, float const* d_y, float* partial) {
  piece_column const at(s);
  if (at.i >= s.n) return;
  float shift_sum = 0, normed_sum = 0;
  for (std::int64_t r = at.begin; r < at.end; ++r) {
    float const d = d_y[r * s.n + at.i];
    shift_sum += d;
    normed_sum += d * (x[r * s.n + at.i] * inverse[r]);
  }
  float* const to = partial + at.piece * 3 * s.n + at.i;
  to[0] = shift_sum;
  to[s.n] = gain[at.i] * normed_sum;
  to[2 * s.n] = (1.f + scale[at.element * s.stride + at.i]) * normed_sum;
}

/// partial[piece, n]: sums of d gate. d_a = gate d_y.
__global__ void gate_backward(sequence_shape s, float const* a, float const* gate, float const* d_y, float* d_a,
                              float* partial) {
  piece_column const at(s);
  if (at.i >= s.n) return;
  float const g = gate[at.element * s.stride + at.i];
  float sum = 0;
  for (std::int64_t r = at.begin; r < at.end; ++r) {
    float const d = d_y[r * s.n + at.i];
    sum += d * a[r * s.n + at.i];
    d_a[r * s.n + at.i] = g * d;
  }
  partial[at.piece * s.n + at.i] = sum;
}

/// out[element * stride + i] = the sum of the element's partial vectors. Blocks: batch elements, then columns.
__global__ void fold_pieces(sequence_shape s, std::int64_t partial_stride, float const* partial, float* out) {
  std::int64_t const across = (s.n + block_threads - 1) / block_threads, element = blockIdx.x / across;
  std::int64_t const i = blockIdx.x % across * block_threads + threadIdx.x;
  std::int64_t const pieces = (s.sequence + row_grain - 1) / row_grain;
  if (i >= s.n) return;
  float sum = 0;
  for (std::int64_t p = element * pieces; p < (element + 1) * pieces; ++p) sum += partial[p * partial_stride + i];
  out[element * s.stride + i] = sum;
}

__global__ void gated_add(sequence_shape s, float const* x, float const* a, float const* gate, float* y) {
  std::int64_t const row = blockIdx.x * s.n;
  gate += blockIdx.x / s.sequence * s.stride;
  for (std::int64_t i = threadIdx.x; i < s.n; i += block_threads) y[row + i] = x[row + i] + gate[i] * a[row + i];
}

__global__ void layer_norm(std::int64_t n, float epsilon, float const* x, float const* gain, float const* bias,
                           float* y, float* statistics) {
  __shared__ block_sum<float> sum;
  x += blockIdx.x * n, y += blockIdx.x * n;
  float mine = 0, square = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) mine += x[i];
  float const mean = sum(mine) / float(n);
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) square += (x[i] - mean) * (x[i] - mean);
  float const factor = 1.f / sqrtf(sum(square) / float(n) + epsilon);
  if (threadIdx.x == 0) statistics[2 * blockIdx.x] = mean, statistics[2 * blockIdx.x + 1] = factor;
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) y[i] = gain[i] * ((x[i] - mean) * factor) + bias[i];
}

__global__ void layer_norm_backward(std::int64_t n, float const* x, float const* gain, float const* statistics,
                                    float const* d_y, float* d_x) {
  __shared__ block_sum<float> sum;
  x += blockIdx.x * n, d_y += blockIdx.x * n, d_x += blockIdx.x * n;
  float const mean = statistics[2 * blockIdx.x], factor = statistics[2 * blockIdx.x + 1];
  float mine = 0, along = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) {
    mine += gain[i] * d_y[i];
    along += gain[i] * d_y[i] * ((x[i] - mean) * factor);
  }
  float const shift = sum(mine) / float(n), shrink = sum(along) / float(n);
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads)
    d_x[i] += factor * (gain[i] * d_y[i] - shift - (x[i] - mean) * factor * shrink);
}

/// partial[piece, 2, n]: sums of d gain and d bias; without statistics partial[piece, n]: of d bias alone. The rows are
/// one batch element of s.
__global__ void column_partials(sequence_shape s, float const* x, float const* statistics, float const* d_y,
                                float* partial) {
  piece_column const at(s);
  if (at.i >= s.n) return;
  float gain_sum = 0, bias_sum = 0;
  for (std::int64_t r = at.begin; r < at.end; ++r) {
    float const d = d_y[r * s.n + at.i];
    bias_sum += d;
    if (statistics) gain_sum += d * ((x[r * s.n + at.i] - statistics[2 * r]) * statistics[2 * r + 1]);
  }
  if (statistics) {
    partial[at.piece * 2 * s.n + at.i] = gain_sum;
    partial[(at.piece * 2 + 1) * s.n + at.i] = bias_sum;
  } else {
    partial[at.piece * s.n + at.i] = bias_sum;
  }
}

__global__ void add_row(std::int64_t n, float const* row, float* y) {
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) y[blockIdx.x * n + i] += row[i];
}

__global__ void silu(std::int64_t count, float const* x, float* y) {
  std::int64_t const i = std::int64_t(blockIdx.x) * block_threads + threadIdx.x;
  if (i < count) y[i] = x[i] / (1.f + expf(-x[i]));
}

__global__ void silu_backward(std::int64_t count, float const* x, float const* d_y, float* d_x) {
  std::int64_t const i = std::int64_t(blockIdx.x) * block_threads + threadIdx.x;
  if (i >= count) return;
  float const sigmoid = 1.f / (1.f + expf(-x[i]));
  d_x[i] = d_y[i] * sigmoid * (1.f + x[i] * (1.f - sigmoid));
}

/// A block for every token; a thread turns one pair of one head.
__global__ void rotate(head_shape s, std::int64_t rotated, float const* rotary, float direction, float* qkv) {
  std::int64_t const half = rotated / 2, t = blockIdx.x;
  float const *const cosine = rotary + t % s.sequence * rotated, *const sine = cosine + half;
  for (std::int64_t j = threadIdx.x; j < s.normed_heads() * half; j += block_threads) {
    std::int64_t const h = j / half, i = j % half;
    float* const x = qkv + (t * s.all_heads() + h) * s.n;
    float const a = x[i], b = x[i + half], turn = direction * sine[i];
    x[i] = a * cosine[i] - b * turn;
    x[i + half] = b * cosine[i] + a * turn;
  }
}

__global__ void squared_error(std::int64_t n, float const* target, float const* row_weight, float const* channel_weight,
                              float* prediction, float* loss) {
  __shared__ block_sum<float> sum;
  float* const p = prediction + blockIdx.x * n;
  float const* const v = target + blockIdx.x * n;
  float const weight = row_weight[blockIdx.x];
  bool const counts = weight != 0.f;
  float mine = 0;
  for (std::int64_t i = threadIdx.x; counts && i < n; i += block_threads)
    mine += channel_weight[i] * (p[i] - v[i]) * (p[i] - v[i]);
  float const total = sum(mine);
  if (threadIdx.x == 0) loss[blockIdx.x] = total / float(n);
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads)
    p[i] = counts ? weight * (2.f / float(n)) * channel_weight[i] * (p[i] - v[i]) : 0.f;
}

std::int64_t columns(std::int64_t n) { return workers::piece_count(n, block_threads); }
sequence_shape one_element(std::int64_t rows, std::int64_t n) { return {1, rows, n, 0}; }

}  // namespace
}  // namespace gpu

using namespace gpu;

void cuda_dit_ops::adaptive_norm(sequence_shape s, double epsilon, float const* x, float const* gain,
                                 float const* shift, float const* scale, float* y, float* inverse) const {
  start(queue_, gpu::adaptive_norm, s.rows(), block_threads, s, float(epsilon), x, gain, shift, scale, y, inverse);
}

void cuda_dit_ops::adaptive_norm_backward(sequence_shape s, float const* x, float const* gain, float const* scale,
                                          float const* inverse, float const* d_y, float* d_x, float* d_gain,
                                          float* d_shift, float* d_scale, float* partial) const {
  start(queue_, gpu::adaptive_norm_backward, s.rows(), block_threads, s, x, gain, scale, inverse, d_y, d_x);
  std::int64_t const pieces = s.batch * s.pieces(), across = columns(s.n);
  start(queue_, modulation_partials, pieces * across, block_threads, s, x, gain, scale, inverse, d_y, partial);
  start(queue_, fold_pieces, s.batch * across, block_threads, s, 3 * s.n, partial, d_shift);
  start(queue_, fold_pieces, s.batch * across, block_threads, s, 3 * s.n, partial + s.n, d_scale);
  if (d_gain)
    start(queue_, add_partial_rows, across, block_threads, pieces, s.n, 3 * s.n, 1.f, partial + 2 * s.n, d_gain);
}

void cuda_dit_ops::gated_add(sequence_shape s, float const* x, float const* a, float const* gate, float* y) const {
  start(queue_, gpu::gated_add, s.rows(), block_threads, s, x, a, gate, y);
}

void cuda_dit_ops::gated_add_backward(sequence_shape s, float const* a, float const* gate, float const* d_y, float* d_a,
                                      float* d_gate, float* partial) const {
  start(queue_, gate_backward, s.batch * s.pieces() * columns(s.n), block_threads, s, a, gate, d_y, d_a, partial);
  start(queue_, fold_pieces, s.batch * columns(s.n), block_threads, s, s.n, partial, d_gate);
}

void cuda_dit_ops::layer_norm(std::int64_t rows, std::int64_t n, double epsilon, float const* x, float const* gain,
                              float const* bias, float* y, float* statistics) const {
  start(queue_, gpu::layer_norm, rows, block_threads, n, float(epsilon), x, gain, bias, y, statistics);
}

void cuda_dit_ops::layer_norm_backward(std::int64_t rows, std::int64_t n, float const* x, float const* gain,
                                       float const* statistics, float const* d_y, float* d_x, float* d_gain,
                                       float* d_bias, float* partial) const {
  start(queue_, gpu::layer_norm_backward, rows, block_threads, n, x, gain, statistics, d_y, d_x);
  if (!d_gain) return;
  sequence_shape const s = one_element(rows, n);
  start(queue_, column_partials, s.pieces() * columns(n), block_threads, s, x, statistics, d_y, partial);
  start(queue_, add_partial_rows, columns(n), block_threads, s.pieces(), n, 2 * n, 1.f, partial, d_gain);
  start(queue_, add_partial_rows, columns(n), block_threads, s.pieces(), n, 2 * n, 1.f, partial + n, d_bias);
}

void cuda_dit_ops::add_row(std::int64_t rows, std::int64_t n, float const* row, float* y) const {
  start(queue_, gpu::add_row, rows, block_threads, n, row, y);
}

void cuda_dit_ops::sum_rows(std::int64_t rows, std::int64_t n, float const* d_y, float* d_row, float* partial) const {
  sequence_shape const s = one_element(rows, n);
  start(queue_, column_partials, s.pieces() * columns(n), block_threads, s, nullptr, nullptr, d_y, partial);
  start(queue_, add_partial_rows, columns(n), block_threads, s.pieces(), n, n, 1.f, partial, d_row);
}

void cuda_dit_ops::silu(std::int64_t count, float const* x, float* y) const {
  start(queue_, gpu::silu, columns(count), block_threads, count, x, y);
}

void cuda_dit_ops::silu_backward(std::int64_t count, float const* x, float const* d_y, float* d_x) const {
  start(queue_, gpu::silu_backward, columns(count), block_threads, count, x, d_y, d_x);
}

void cuda_dit_ops::rotate(head_shape s, std::int64_t rotated, float const* rotary, bool backwards, float* qkv) const {
  start(queue_, gpu::rotate, s.tokens, block_threads, s, rotated, rotary, backwards ? -1.f : 1.f, qkv);
}

void cuda_dit_ops::squared_error(std::int64_t rows, std::int64_t n, float const* target, float const* row_weight,
                                 float const* channel_weight, float* prediction, float* loss) const {
  start(queue_, gpu::squared_error, rows, block_threads, n, target, row_weight, channel_weight, prediction, loss);
}

}  // namespace trainer
