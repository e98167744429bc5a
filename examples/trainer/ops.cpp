#include "ops.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "blas.hpp"
#include "exponential.hpp"

namespace trainer {
namespace {

/// The sum of eight partial sums; a loop that keeps eight has vectors to work on.
template <class T>
T fold(T const (&s)[8]) {
  return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

/// total[n] += the sum of the partial rows, in their order.
template <class T>
void add_partial_rows(workers const& on, std::int64_t rows, std::int64_t n, std::int64_t stride, T const* partial,
                      T* total) {
  if (on.planning()) return;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < n; ++i) total[i] += partial[r * stride + i];
}

/// A row of a rotary table that turns nothing, for head_dim n of at most 256.
template <class T>
std::array<T, 256> no_rotation(std::int64_t n) {
  std::array<T, 256> row{};
  std::fill_n(row.begin(), n / 2, T(1));
  return row;
}

/// 1 / sqrt(mean(x^2) + eps).
template <class T>
T inverse_root_mean_square(T const* x, std::int64_t n, double epsilon) {
  T sums[8] = {};
  for (std::int64_t i = 0; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) sums[j] += x[i + j] * x[i + j];
  for (std::int64_t i = n / 8 * 8; i < n; ++i) sums[i % 8] += x[i] * x[i];
  return T(1) / std::sqrt(fold(sums) / T(n) + T(epsilon));
}

/// sum(a b c).
template <class T>
T sum_of_products(T const* a, T const* b, T const* c, std::int64_t n) {
  T sums[8] = {};
  for (std::int64_t i = 0; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j] * c[i + j];
  for (std::int64_t i = n / 8 * 8; i < n; ++i) sums[i % 8] += a[i] * b[i] * c[i];
  return fold(sums);
}

/// With y = g x r, r = 1 / sqrt(mean(x^2) + eps): d x = r (g d_y - x r^2 mean(g d_y x)), d g += d_y x r.
template <bool Add, class T>
void rms_norm_row_backward(std::int64_t n, T const* x, T const* gain, T inverse, T const* d_y, T* d_x, T* d_gain) {
  T const shrink = inverse * inverse * (sum_of_products(d_y, gain, x, n) / T(n));
  for (std::int64_t i = 0; i < n; ++i) {
    T const d = inverse * (gain[i] * d_y[i] - x[i] * shrink);
    d_x[i] = Add ? d_x[i] + d : d;
  }
  if (d_gain)
    for (std::int64_t i = 0; i < n; ++i) d_gain[i] += d_y[i] * x[i] * inverse;
}

}  // namespace

template <class T>
void cpu_ops<T>::copy_in(std::size_t bytes, void const* host, void* x) const {
  if (!planning()) std::memcpy(x, host, bytes);
}

template <class T>
void cpu_ops<T>::copy_out(std::size_t bytes, void const* x, void* host) const {
  if (!planning()) std::memcpy(host, x, bytes);
}

template <class T>
void cpu_ops<T>::zero(std::int64_t count, T* x) const {
  constexpr std::int64_t grain = 1 << 14;
  on_.pieces(count, grain,
             [=](std::int64_t begin, std::int64_t end, std::int64_t) { std::fill(x + begin, x + end, T(0)); });
}

template <class T>
void cpu_ops<T>::linear(std::int64_t rows, std::int64_t in, std::int64_t out, T const* x, T const* w, T const* residual,
                        T* y) const {
  on_.pieces(rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    if (residual) std::copy(residual + begin * out, residual + end * out, y + begin * out);
    gemm(transpose::no, transpose::yes, end - begin, out, in, T(1), x + begin * in, in, w, in, T(residual ? 1 : 0),
         y + begin * out, out);
  });
}

template <class T>
void cpu_ops<T>::linear_backward(std::int64_t rows, std::int64_t in, std::int64_t out, T const* x, T const* w,
                                 T const* d_y, T* d_x, T* d_w) const {
  // The weight's gradient is cut along its longer side; its pieces come first because they are the longest.
  constexpr std::int64_t grain = 128;
  bool const cut_out = out >= in;
  std::int64_t const weight_pieces = d_w ? workers::piece_count(cut_out ? out : in, grain) : 0;
  on_.each(weight_pieces + (d_x ? workers::piece_count(rows, row_grain) : 0), [=](std::int64_t i) {
    if (i < weight_pieces) {
      std::int64_t const begin = i * grain, size = std::min(grain, (cut_out ? out : in) - begin);
      if (cut_out)
        gemm(transpose::yes, transpose::no, size, in, rows, T(1), d_y + begin, out, x, in, T(1), d_w + begin * in, in);
      else gemm(transpose::yes, transpose::no, out, size, rows, T(1), d_y, out, x + begin, in, T(1), d_w + begin, in);
    } else {
      std::int64_t const begin = (i - weight_pieces) * row_grain, size = std::min(row_grain, rows - begin);
      gemm(transpose::no, transpose::no, size, in, out, T(1), d_y + begin * out, out, w, in, T(0), d_x + begin * in,
           in);
    }
  });
}

template <class T>
void cpu_ops<T>::rms_norm(std::int64_t rows, std::int64_t n, double epsilon, T const* x, T const* gain, T* y,
                          T* inverse) const {
  on_.pieces(rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t r = begin; r < end; ++r) {
      T const scale = inverse[r] = inverse_root_mean_square(x + r * n, n, epsilon);
      for (std::int64_t i = 0; i < n; ++i) y[r * n + i] = gain[i] * (x[r * n + i] * scale);
    }
  });
}

template <class T>
void cpu_ops<T>::rms_norm_backward(std::int64_t rows, std::int64_t n, T const* x, T const* gain, T const* inverse,
                                   T const* d_y, T* d_x, T* d_gain, T* partial) const {
  on_.pieces(rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t piece) {
    T* const sums = d_gain ? partial + piece * n : nullptr;
    if (sums) std::fill(sums, sums + n, T(0));
    for (std::int64_t r = begin; r < end; ++r)
      rms_norm_row_backward<true>(n, x + r * n, gain, inverse[r], d_y + r * n, d_x + r * n, sums);
  });
  if (d_gain) add_partial_rows(on_, workers::piece_count(rows, row_grain), n, n, partial, d_gain);
}

template <class T>
void fill_rotary_table(std::int64_t positions, std::int64_t n, double theta, T* table) {
  std::int64_t const half = n / 2;
  for (std::int64_t p = 0; p < positions; ++p)
    for (std::int64_t i = 0; i < half; ++i) {
      double const angle = double(p) * std::pow(theta, -2.0 * double(i) / double(n));
      table[p * n + i] = T(std::cos(angle));
      table[p * n + half + i] = T(std::sin(angle));
    }
}

template <class T>
void cpu_ops<T>::head_norm(head_shape s, T const* qkv, T const* q_gain, T const* k_gain, T const* rotary, T* qk,
                           T* inverse) const {
  on_.pieces(s.tokens, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    std::int64_t const half = s.n / 2;
    std::array<T, 256> const still = no_rotation<T>(s.n);
    for (std::int64_t t = begin; t < end; ++t) {
      T const *const cosine = rotary ? rotary + (t % s.sequence) * s.n : still.data(), *const sine = cosine + half;
      for (std::int64_t h = 0; h < s.normed_heads(); ++h) {
        T const* const x = qkv + (t * s.all_heads() + h) * s.n;
        T const* const gain = h < s.q_heads ? q_gain : k_gain;
        T* const y = qk + (t * s.normed_heads() + h) * s.n;
        T const scale = inverse[t * s.normed_heads() + h] = inverse_root_mean_square(x, s.n, s.epsilon);
        for (std::int64_t i = 0; i < half; ++i) {
          T const a = gain[i] * (x[i] * scale), b = gain[i + half] * (x[i + half] * scale);
          y[i] = a * cosine[i] - b * sine[i];
          y[i + half] = b * cosine[i] + a * sine[i];
        }
      }
    }
  });
}

template <class T>
void cpu_ops<T>::head_norm_backward(head_shape s, T const* qkv, T const* q_gain, T const* k_gain, T const* rotary,
                                    T const* inverse, T const* d_qk, T* d_qkv, T* d_q_gain, T* d_k_gain,
                                    T* partial) const {
  on_.pieces(s.tokens, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t piece) {
    std::int64_t const half = s.n / 2;
    std::array<T, 256> const still = no_rotation<T>(s.n);
    T* const sums = d_q_gain ? partial + piece * 2 * s.n : nullptr;
    if (sums) std::fill(sums, sums + 2 * s.n, T(0));
    for (std::int64_t t = begin; t < end; ++t) {
      T const *const cosine = rotary ? rotary + (t % s.sequence) * s.n : still.data(), *const sine = cosine + half;
      for (std::int64_t h = 0; h < s.normed_heads(); ++h) {
        T const* const d_y = d_qk + (t * s.normed_heads() + h) * s.n;
        T unrotated[256];  // head_dim is at most 256
        for (std::int64_t i = 0; i < half; ++i) {
          unrotated[i] = d_y[i] * cosine[i] + d_y[i + half] * sine[i];
          unrotated[i + half] = d_y[i + half] * cosine[i] - d_y[i] * sine[i];
        }
        std::int64_t const at = (t * s.all_heads() + h) * s.n;
        bool const is_query = h < s.q_heads;
        rms_norm_row_backward<false>(s.n, qkv + at, is_query ? q_gain : k_gain, inverse[t * s.normed_heads() + h],
                                     unrotated, d_qkv + at, sums ? sums + (is_query ? 0 : s.n) : nullptr);
      }
    }
  });
  if (!d_q_gain) return;
  std::int64_t const rows = workers::piece_count(s.tokens, row_grain);
  add_partial_rows(on_, rows, s.n, 2 * s.n, partial, d_q_gain);
  add_partial_rows(on_, rows, s.n, 2 * s.n, partial + s.n, d_k_gain);
}

template <class T>
void cpu_ops<T>::swiglu(std::int64_t rows, std::int64_t n, T const* gate_up, T* y) const {
  on_.pieces(rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t r = begin; r < end; ++r) {
      T const *const gate = gate_up + r * 2 * n, *const up = gate + n;
      T* const out = y + r * n;
      for (std::int64_t i = 0; i < n; ++i) out[i] = -gate[i];
      exponentials(n, out, out);
      for (std::int64_t i = 0; i < n; ++i) out[i] = up[i] * gate[i] / (T(1) + out[i]);
    }
  });
}

template <class T>
void cpu_ops<T>::swiglu_backward(std::int64_t rows, std::int64_t n, T const* gate_up, T const* d_y,
                                 T* d_gate_up) const {
  on_.pieces(rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t r = begin; r < end; ++r) {
      T const *const gate = gate_up + r * 2 * n, *const up = gate + n, *const d = d_y + r * n;
      T *const d_gate = d_gate_up + r * 2 * n, *const d_up = d_gate + n;
      for (std::int64_t i = 0; i < n; ++i) d_gate[i] = -gate[i];
      exponentials(n, d_gate, d_gate);
      for (std::int64_t i = 0; i < n; ++i) {
        T const sigmoid = T(1) / (T(1) + d_gate[i]);
        d_gate[i] = d[i] * up[i] * sigmoid * (T(1) + gate[i] * (T(1) - sigmoid));
        d_up[i] = d[i] * gate[i] * sigmoid;
      }
    }
  });
}

template <class T>
void cpu_ops<T>::embed(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, T const* table, T* x) const {
  on_.pieces(rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t r = begin; r < end; ++r) std::copy_n(table + tokens[r] * n, n, x + r * n);
  });
}

template <class T>
void cpu_ops<T>::embed_backward(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, T const* d_x,
                                T* d_table) const {
  constexpr std::int64_t columns = 32;  // cut by column: every entry is summed over the rows in their order
  on_.pieces(n, columns, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = begin; i < end; ++i) d_table[tokens[r] * n + i] += d_x[r * n + i];
  });
}

template <class T>
void cpu_ops<T>::cross_entropy(std::int64_t rows, std::int64_t n, std::int32_t const* targets, T weight, T* logits,
                               T* loss) const {
  on_.pieces(rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t r = begin; r < end; ++r) {
      T* const row = logits + r * n;
      if (targets[r] == no_target) {
        loss[r] = 0;
        std::fill(row, row + n, T(0));
        continue;
      }
      T const target_logit = row[targets[r]];
      T most[8], sums[8] = {};
      std::fill(most, most + 8, row[0]);
      for (std::int64_t i = 0; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; ++j) most[j] = row[i + j] > most[j] ? row[i + j] : most[j];
      for (std::int64_t i = n / 8 * 8; i < n; ++i) most[0] = row[i] > most[0] ? row[i] : most[0];
      T const largest = *std::max_element(most, most + 8);
      for (std::int64_t i = 0; i < n; ++i) row[i] -= largest;
      exponentials(n, row, row);
      for (std::int64_t i = 0; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; ++j) sums[j] += row[i + j];
      for (std::int64_t i = n / 8 * 8; i < n; ++i) sums[i % 8] += row[i];
      T const sum = fold(sums);
      loss[r] = largest + std::log(sum) - target_logit;
      T const factor = weight / sum;
      for (std::int64_t i = 0; i < n; ++i) row[i] *= factor;
      row[targets[r]] -= weight;
    }
  });
}

template <class T>
void cpu_ops<T>::norm(std::int64_t segments, segment const* table, T const* x, double* squares, double* result) const {
  if (planning()) return;
  on_.each(segments, [=](std::int64_t i) {
    double sum[4] = {};
    for (std::int64_t j = table[i].begin; j < table[i].end; ++j) sum[j % 4] += double(x[j]) * double(x[j]);
    squares[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  });
  double sum = 0;
  for (std::int64_t i = 0; i < segments; ++i) sum += squares[i];
  *result = std::sqrt(sum);
}

template <class T>
void cpu_ops<T>::adamw_update(std::int64_t segments, segment const* table, adamw_rates const& r, double const* norm,
                              T const* gradients, T* weights, T* m, T* v) const {
  if (planning() || !std::isfinite(*norm)) return;
  T const clip = T(*norm > r.clip ? r.clip / *norm : 1), b1 = r.beta1, b2 = r.beta2;
  on_.each(segments, [=](std::int64_t i) {
    T const keep = table[i].decays ? r.keep : 1;
    for (std::int64_t j = table[i].begin; j < table[i].end; ++j) {
      T const g = gradients[j] * clip;
      m[j] = b1 * m[j] + (1 - b1) * g;
      v[j] = b2 * v[j] + (1 - b2) * g * g;
      weights[j] = keep * weights[j] - r.rate * m[j] / (std::sqrt(v[j] * r.v_scale) + r.epsilon);
    }
  });
}

template class cpu_ops<float>;
template class cpu_ops<double>;
template void fill_rotary_table(std::int64_t, std::int64_t, double, float*);
template void fill_rotary_table(std::int64_t, std::int64_t, double, double*);

}  // namespace trainer
