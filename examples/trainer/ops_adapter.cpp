// The ops that adapters and mirrored weights are made of, on the CPU.
#include <algorithm>

#include "blas.hpp"
#include "ops.hpp"

namespace trainer {

template <class T>
void cpu_ops<T>::product(transpose ta, transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, T alpha,
                         T const* a, std::int64_t lda, T const* b, std::int64_t ldb, T beta, T* c,
                         std::int64_t ldc) const {
  // Cut along the longer side of c; the sum over k is never cut.
  constexpr std::int64_t grain = 128;
  bool const cut_rows = m >= n;
  on_.pieces(cut_rows ? m : n, grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    if (cut_rows)
      gemm(ta, tb, end - begin, n, k, alpha, a + begin * (ta == transpose::yes ? 1 : lda), lda, b, ldb, beta,
           c + begin * ldc, ldc);
    else
      gemm(ta, tb, m, end - begin, k, alpha, a, lda, b + begin * (tb == transpose::yes ? ldb : 1), ldb, beta, c + begin,
           ldc);
  });
}

template <class T>
void cpu_ops<T>::grouped_product(group_steps s, transpose ta, transpose tb, std::int64_t m, std::int64_t n,
                                 std::int64_t k, T alpha, T const* a, std::int64_t lda, T const* b, std::int64_t ldb,
                                 T beta, T* c, std::int64_t ldc) const {
  for (std::int64_t g = 0; g < s.groups; ++g)
    cpu_ops::product(ta, tb, m, n, k, alpha, a + g * s.a, lda, b + g * s.b, ldb, s.c == 0 && g > 0 ? T(1) : beta,
                     c + g * s.c, ldc);
}

template <class T>
void cpu_ops<T>::mix(mix_shape s, transpose t, T alpha, T const* w, T const* x, std::int64_t x_stride, T beta, T* y,
                     std::int64_t y_stride) const {
  bool const back = t == transpose::yes;
  std::int64_t const to = back ? s.in_groups : s.out_groups, from = back ? s.out_groups : s.in_groups;
  on_.pieces(s.rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t l = 0; l < to; ++l) {
        T* const out = y + r * y_stride + l * s.channels;
        for (std::int64_t i = 0; i < s.channels; ++i) out[i] = beta == T(0) ? T(0) : beta * out[i];
        for (std::int64_t m = 0; m < from; ++m) {
          T const factor = alpha * w[back ? m * s.in_groups + l : l * s.in_groups + m];
          T const* const in = x + r * x_stride + m * s.channels;
          for (std::int64_t i = 0; i < s.channels; ++i) out[i] += factor * in[i];
        }
      }
  });
}

template <class T>
void cpu_ops<T>::mix_weight_backward(mix_shape s, T alpha, T const* d_y, std::int64_t d_y_stride, T const* x,
                                     std::int64_t x_stride, T* d_w, T* partial) const {
  std::int64_t const count = s.pairs();
  on_.pieces(s.rows, mix_shape::grain, [=](std::int64_t begin, std::int64_t end, std::int64_t piece) {
    T* const sums = partial + piece * count;
    std::fill(sums, sums + count, T(0));
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t l = 0; l < s.out_groups; ++l)
        for (std::int64_t m = 0; m < s.in_groups; ++m) {
          T const *const a = d_y + r * d_y_stride + l * s.channels, *const b = x + r * x_stride + m * s.channels;
          T eight[8] = {};
          for (std::int64_t i = 0; i + 8 <= s.channels; i += 8)
            for (int j = 0; j < 8; ++j) eight[j] += a[i + j] * b[i + j];
          for (std::int64_t i = s.channels / 8 * 8; i < s.channels; ++i) eight[i % 8] += a[i] * b[i];
          sums[l * s.in_groups + m] +=
              ((eight[0] + eight[4]) + (eight[1] + eight[5])) + ((eight[2] + eight[6]) + (eight[3] + eight[7]));
        }
  });
  on_.each(1, [=](std::int64_t) {
    for (std::int64_t i = 0; i < count; ++i) {
      T sum = 0;
      for (std::int64_t p = 0; p < s.pieces(); ++p) sum += partial[p * count + i];
      d_w[i] += alpha * sum;
    }
  });
}

template <class T>
void cpu_ops<T>::add_columns(std::int64_t rows, std::int64_t n, T alpha, T const* x, std::int64_t x_stride, T beta,
                             T* y, std::int64_t y_stride) const {
  on_.pieces(rows, row_grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t i = 0; i < n; ++i) {
        T& to = y[r * y_stride + i];
        to = alpha * x[r * x_stride + i] + (beta == T(0) ? T(0) : beta * to);
      }
  });
}

template <class T>
void cpu_ops<T>::widen(std::int64_t count, lanewise::bf16 const* x, T* y) const {
  constexpr std::int64_t grain = 1 << 14;
  on_.pieces(count, grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = T(lanewise::to_float(x[i]));
  });
}

/// y[count] = x rounded to the nearest bf16, ties to even.
template <class T>
void cpu_ops<T>::round_to_bf16(std::int64_t count, T const* x, T* y) const {
  constexpr std::int64_t grain = 1 << 14;
  on_.pieces(count, grain, [=](std::int64_t begin, std::int64_t end, std::int64_t) {
    for (std::int64_t i = begin; i < end; ++i)
      y[i] = T(lanewise::to_float(lanewise::from_float<lanewise::bf16>(float(x[i]))));
  });
}

/// The matrix in T, then what it meets.
template <class T>
rounded_needs cpu_ops<T>::needs_of_rounded(std::int64_t rows, std::int64_t in, std::int64_t out) const {
  return {std::size_t(in * out + rows * in) * sizeof(T), std::size_t(in * out + rows * out) * sizeof(T)};
}

template <class T>
void cpu_ops<T>::rounded_linear(std::int64_t rows, std::int64_t in, std::int64_t out, T const* x,
                                lanewise::bf16 const* w, T const* residual, T* y, void* scratch) const {
  T *const wide = static_cast<T*>(scratch), *const rounded = wide + in * out;
  widen(in * out, w, wide);
  round_to_bf16(rows * in, x, rounded);
  linear(rows, in, out, rounded, wide, residual, y);
}

template <class T>
void cpu_ops<T>::rounded_linear_backward(std::int64_t rows, std::int64_t in, std::int64_t out, lanewise::bf16 const* w,
                                         T const* d_y, T* d_x, void* scratch) const {
  T *const wide = static_cast<T*>(scratch), *const rounded = wide + in * out;
  widen(in * out, w, wide);
  round_to_bf16(rows * out, d_y, rounded);
  linear_backward(rows, in, out, nullptr, wide, rounded, d_x, nullptr);
}

template void cpu_ops<float>::product(transpose, transpose, std::int64_t, std::int64_t, std::int64_t, float,
                                      float const*, std::int64_t, float const*, std::int64_t, float, float*,
                                      std::int64_t) const;
template void cpu_ops<float>::grouped_product(group_steps, transpose, transpose, std::int64_t, std::int64_t,
                                              std::int64_t, float, float const*, std::int64_t, float const*,
                                              std::int64_t, float, float*, std::int64_t) const;
template void cpu_ops<float>::mix(mix_shape, transpose, float, float const*, float const*, std::int64_t, float, float*,
                                  std::int64_t) const;
template void cpu_ops<float>::mix_weight_backward(mix_shape, float, float const*, std::int64_t, float const*,
                                                  std::int64_t, float*, float*) const;
template void cpu_ops<float>::add_columns(std::int64_t, std::int64_t, float, float const*, std::int64_t, float, float*,
                                          std::int64_t) const;
template rounded_needs cpu_ops<float>::needs_of_rounded(std::int64_t, std::int64_t, std::int64_t) const;
template void cpu_ops<float>::rounded_linear(std::int64_t, std::int64_t, std::int64_t, float const*,
                                             lanewise::bf16 const*, float const*, float*, void*) const;
template void cpu_ops<float>::rounded_linear_backward(std::int64_t, std::int64_t, std::int64_t, lanewise::bf16 const*,
                                                      float const*, float*, void*) const;
template void cpu_ops<float>::widen(std::int64_t, lanewise::bf16 const*, float*) const;
template void cpu_ops<double>::product(transpose, transpose, std::int64_t, std::int64_t, std::int64_t, double,
                                       double const*, std::int64_t, double const*, std::int64_t, double, double*,
                                       std::int64_t) const;
template void cpu_ops<double>::grouped_product(group_steps, transpose, transpose, std::int64_t, std::int64_t,
                                               std::int64_t, double, double const*, std::int64_t, double const*,
                                               std::int64_t, double, double*, std::int64_t) const;
template void cpu_ops<double>::mix(mix_shape, transpose, double, double const*, double const*, std::int64_t, double,
                                   double*, std::int64_t) const;
template void cpu_ops<double>::mix_weight_backward(mix_shape, double, double const*, std::int64_t, double const*,
                                                   std::int64_t, double*, double*) const;
template void cpu_ops<double>::add_columns(std::int64_t, std::int64_t, double, double const*, std::int64_t, double,
                                           double*, std::int64_t) const;
template rounded_needs cpu_ops<double>::needs_of_rounded(std::int64_t, std::int64_t, std::int64_t) const;
template void cpu_ops<double>::rounded_linear(std::int64_t, std::int64_t, std::int64_t, double const*,
                                              lanewise::bf16 const*, double const*, double*, void*) const;
template void cpu_ops<double>::rounded_linear_backward(std::int64_t, std::int64_t, std::int64_t, lanewise::bf16 const*,
                                                       double const*, double*, void*) const;
template void cpu_ops<double>::widen(std::int64_t, lanewise::bf16 const*, double*) const;

}  // namespace trainer
