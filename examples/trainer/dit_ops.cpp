#include "dit_ops.hpp"

#include <algorithm>
#include <cmath>

#include "exponential.hpp"

namespace trainer {
namespace {

/// f(first row, last row + 1, batch element, piece) for the pieces of every batch element.
template <class F>
void each_piece(workers const& on, sequence_shape s, F const& f) {
  std::int64_t const pieces = s.pieces();
  on.each(s.batch * pieces, [&](std::int64_t i) {
    std::int64_t const element = i / pieces, begin = i % pieces * row_grain;
    f(element * s.sequence + begin, element * s.sequence + std::min(begin + row_grain, s.sequence), element, i);
  });
}

/// out[element * stride + i] = the sum of the element's partial vectors, in their order.
template <class T>
void fold_pieces(workers const& on, sequence_shape s, std::int64_t partial_stride, T const* partial, T* out) {
  on.each(s.batch, [=](std::int64_t element) {
    T* const to = out + element * s.stride;
    std::fill_n(to, s.n, T(0));
    for (std::int64_t p = element * s.pieces(); p < (element + 1) * s.pieces(); ++p)
      for (std::int64_t i = 0; i < s.n; ++i) to[i] += partial[p * partial_stride + i];
  });
}

/// total[n] += the sum of the partial rows, in their order.
template <class T>
void add_partial_rows(workers const& on, std::int64_t rows, std::int64_t n, std::int64_t stride, T const* partial,
                      T* total) {
  if (on.planning()) return;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < n; ++i) total[i] += partial[r * stride + i];
}

/// f(i) summed over 0 ... n-1 in eight interleaved partial sums, so that the compiler has vectors to work on.
template <class T, class F>
T sum_of(std::int64_t n, F const& f) {
  T s[8] = {};
  for (std::int64_t i = 0; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) s[j] += f(i + j);
  for (std::int64_t i = n / 8 * 8; i < n; ++i) s[i % 8] += f(i);
  return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

}  // namespace

template <class T>
void cpu_dit_ops<T>::adaptive_norm(sequence_shape s, double epsilon, T const* x, T const* gain, T const* shift,
                                   T const* scale, T* y, T* inverse) const {
  each_piece(on_, s, [=](std::int64_t begin, std::int64_t end, std::int64_t element, std::int64_t) {
    T const *const h = shift + element * s.stride, *const c = scale + element * s.stride;
    for (std::int64_t r = begin; r < end; ++r) {
      T const* const row = x + r * s.n;
      T const square = sum_of<T>(s.n, [=](std::int64_t i) { return row[i] * row[i]; });
      T const factor = inverse[r] = T(1) / std::sqrt(square / T(s.n) + T(epsilon));
      for (std::int64_t i = 0; i < s.n; ++i) y[r * s.n + i] = gain[i] * (row[i] * factor) * (T(1) + c[i]) + h[i];
    }
  });
}

template <class T>
void cpu_dit_ops<T>::adaptive_norm_backward(sequence_shape s, T const* x, T const* gain, T const* scale,
                                            T const* inverse, T const* d_y, T* d_x, T* d_gain, T* d_shift, T* d_scale,
                                            T* partial) const {
  std::int64_t const n = s.n;
  each_piece(on_, s, [=](std::int64_t begin, std::int64_t end, std::int64_t element, std::int64_t piece) {
    T const* const c = scale + element * s.stride;
    T *const shift_sum = partial + piece * 3 * n, *const scale_sum = shift_sum + n, *const gain_sum = scale_sum + n;
    std::fill(shift_sum, shift_sum + 3 * n, T(0));
    for (std::int64_t r = begin; r < end; ++r) {
      T const *const row = x + r * n, *const d = d_y + r * n;
      T const factor = inverse[r];
      // With z = x / rms: d x = (dz - z mean(dz z)) / rms, where dz = d_y (1 + scale) g.
      T const mean = sum_of<T>(n, [=](std::int64_t i) { return d[i] * (T(1) + c[i]) * gain[i] * row[i]; }) / T(n);
      T const shrink = factor * factor * mean;
      for (std::int64_t i = 0; i < n; ++i) {
        T const z = row[i] * factor, modulated = d[i] * (T(1) + c[i]);
        d_x[r * n + i] += factor * (modulated * gain[i] - row[i] * shrink);
        shift_sum[i] += d[i];
        scale_sum[i] += d[i] * gain[i] * z;
        gain_sum[i] += modulated * z;
      }
    }
  });
  fold_pieces(on_, s, 3 * n, partial, d_shift);
  fold_pieces(on_, s, 3 * n, partial + n, d_scale);
  if (d_gain) add_partial_rows(on_, s.batch * s.pieces(), n, 3 * n, partial + 2 * n, d_gain);
}

template <class T>
void cpu_dit_ops<T>::gated_add(sequence_shape s, T const* x, T const* a, T const* gate, T* y) const {
  each_piece(on_, s, [=](std::int64_t begin, std::int64_t end, std::int64_t element, std::int64_t) {
    T const* const g = gate + element * s.stride;
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t i = 0; i < s.n; ++i) y[r * s.n + i] = x[r * s.n + i] + g[i] * a[r * s.n + i];
  });
}

template <class T>
void cpu_dit_ops<T>::gated_add_backward(sequence_shape s, T const* a, T const* gate, T const* d_y, T* d_a, T* d_gate,
                                        T* partial) const {
  each_piece(on_, s, [=](std::int64_t begin, std::int64_t end, std::int64_t element, std::int64_t piece) {
    T const* const g = gate + element * s.stride;
    T* const sum = partial + piece * s.n;
    std::fill_n(sum, s.n, T(0));
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t i = 0; i < s.n; ++i) {
        sum[i] += d_y[r * s.n + i] * a[r * s.n + i];
        d_a[r * s.n + i] = g[i] * d_y[r * s.n + i];
      }
  });
  fold_pieces(on_, s, s.n, partial, d_gate);
}

template <class T>
void cpu_dit_ops<T>::layer_norm(std::int64_t rows, std::int64_t n, double epsilon, T const* x, T const* gain,
                                T const* bias, T* y, T* statistics) const {
  on_.pieces(rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t r = begin; r < end; ++r) {
      T const* const row = x + r * n;
      T const mean = sum_of<T>(n, [=](std::int64_t i) { return row[i]; }) / T(n);
      T const variance = sum_of<T>(n, [=](std::int64_t i) { return (row[i] - mean) * (row[i] - mean); }) / T(n);
      T const factor = T(1) / std::sqrt(variance + T(epsilon));
      statistics[2 * r] = mean;
      statistics[2 * r + 1] = factor;
      for (std::int64_t i = 0; i < n; ++i) y[r * n + i] = gain[i] * ((row[i] - mean) * factor) + bias[i];
    }
  });
}

template <class T>
void cpu_dit_ops<T>::layer_norm_backward(std::int64_t rows, std::int64_t n, T const* x, T const* gain,
                                         T const* statistics, T const* d_y, T* d_x, T* d_gain, T* d_bias,
                                         T* partial) const {
  on_.pieces(rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t piece) {
    T* const sums = d_gain ? partial + piece * 2 * n : nullptr;
    if (sums) std::fill(sums, sums + 2 * n, T(0));
    for (std::int64_t r = begin; r < end; ++r) {
      T const *const row = x + r * n, *const d = d_y + r * n;
      T const mean = statistics[2 * r], factor = statistics[2 * r + 1];
      // With z = (x - mean) factor and dz = g d_y: d x = factor (dz - mean(dz) - z mean(dz z)).
      T const shift = sum_of<T>(n, [=](std::int64_t i) { return gain[i] * d[i]; }) / T(n);
      T const shrink = sum_of<T>(n, [=](std::int64_t i) { return gain[i] * d[i] * ((row[i] - mean) * factor); }) / T(n);
      for (std::int64_t i = 0; i < n; ++i) {
        T const z = (row[i] - mean) * factor;
        d_x[r * n + i] += factor * (gain[i] * d[i] - shift - z * shrink);
        if (!sums) continue;
        sums[i] += d[i] * z;
        sums[n + i] += d[i];
      }
    }
  });
  if (!d_gain) return;
  std::int64_t const pieces = workers::piece_count(rows, row_grain);
  add_partial_rows(on_, pieces, n, 2 * n, partial, d_gain);
  add_partial_rows(on_, pieces, n, 2 * n, partial + n, d_bias);
}

template <class T>
void cpu_dit_ops<T>::add_row(std::int64_t rows, std::int64_t n, T const* row, T* y) const {
  on_.pieces(rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t i = 0; i < n; ++i) y[r * n + i] += row[i];
  });
}

template <class T>
void cpu_dit_ops<T>::sum_rows(std::int64_t rows, std::int64_t n, T const* d_y, T* d_row, T* partial) const {
  on_.pieces(rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t piece) {
    T* const sum = partial + piece * n;
    std::fill_n(sum, n, T(0));
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t i = 0; i < n; ++i) sum[i] += d_y[r * n + i];
  });
  add_partial_rows(on_, workers::piece_count(rows, row_grain), n, n, partial, d_row);
}

/// Numbers of one piece of an element-wise pass.
constexpr std::int64_t count_grain = 1 << 12;

template <class T>
void cpu_dit_ops<T>::silu(std::int64_t count, T const* x, T* y) const {
  on_.pieces(count, count_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = -x[i];
    exponentials(end - begin, y + begin, y + begin);
    for (std::int64_t i = begin; i < end; ++i) y[i] = x[i] / (T(1) + y[i]);
  });
}

template <class T>
void cpu_dit_ops<T>::silu_backward(std::int64_t count, T const* x, T const* d_y, T* d_x) const {
  on_.pieces(count, count_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t i = begin; i < end; ++i) d_x[i] = -x[i];
    exponentials(end - begin, d_x + begin, d_x + begin);
    for (std::int64_t i = begin; i < end; ++i) {
      T const sigmoid = T(1) / (T(1) + d_x[i]);
      d_x[i] = d_y[i] * sigmoid * (T(1) + x[i] * (T(1) - sigmoid));
    }
  });
}

template <class T>
void cpu_dit_ops<T>::rotate(head_shape s, std::int64_t rotated, T const* rotary, bool backwards, T* qkv) const {
  on_.pieces(s.tokens, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    std::int64_t const half = rotated / 2;
    T const direction = backwards ? T(-1) : T(1);
    for (std::int64_t t = begin; t < end; ++t) {
      T const *const cosine = rotary + (t % s.sequence) * rotated, *const sine = cosine + half;
      for (std::int64_t h = 0; h < s.normed_heads(); ++h) {
        T* const x = qkv + (t * s.all_heads() + h) * s.n;
        for (std::int64_t i = 0; i < half; ++i) {
          T const a = x[i], b = x[i + half], turn = direction * sine[i];
          x[i] = a * cosine[i] - b * turn;
          x[i + half] = b * cosine[i] + a * turn;
        }
      }
    }
  });
}

template <class T>
void cpu_dit_ops<T>::squared_error(std::int64_t rows, std::int64_t n, T const* target, T const* row_weight,
                                   T const* channel_weight, T* prediction, T* loss) const {
  on_.pieces(rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t r = begin; r < end; ++r) {
      T* const p = prediction + r * n;
      T const weight = row_weight[r];
      T const* const v = target + r * n;
      loss[r] = 0;
      if (weight == T(0)) {
        std::fill_n(p, n, T(0));
        continue;
      }
      loss[r] = sum_of<T>(n, [=](std::int64_t i) { return channel_weight[i] * (p[i] - v[i]) * (p[i] - v[i]); }) / T(n);
      for (std::int64_t i = 0; i < n; ++i) p[i] = weight * (T(2) / T(n)) * channel_weight[i] * (p[i] - v[i]);
    }
  });
}

template class cpu_dit_ops<float>;
template class cpu_dit_ops<double>;

}  // namespace trainer
