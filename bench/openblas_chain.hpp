// The chain that flash attention replaces, on OpenBLAS, at its best: the softmax is kept for the backward.
//
//   S = scale Q K^T,  P = softmax(S where k <= q),  O = P V
//   dV = P^T dO,  dP = dO V^T,  dS = P * (dP - rowsum(P * dP)),  dQ = scale dS K,  dK = scale dS^T Q
//
// P is [batch, q_heads, Sq, Sk]; dP is [Sq, Sk] a thread. OpenBLAS runs one thread inside each of the pool's: then the
// softmax is spread over the threads too. Work items: (batch, head) forward, (batch, key/value head) backward, where
// the query heads of a group are summed in order. It takes any views, as the trainer lays them out.
#pragma once

#include <cblas.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <lanewise/cpu/thread_pool.hpp>
#include <lanewise/tensor.hpp>
#include <vector>

namespace bench {

// The row functions are compiled once per instruction set and chosen by the loader, as OpenBLAS's kernels are.

/// softmax of row[0 ... live-1]; the rest becomes 0. exp by range reduction and a polynomial, 1e-7 relative.
#if defined(__x86_64__) && !defined(__clang__)
[[gnu::target_clones("avx512f", "arch=haswell", "default"), gnu::optimize("O3,fast-math")]]
#endif
inline void
softmax_row(float* row, std::int64_t live, std::int64_t n) {
  float most = row[0];
  for (std::int64_t i = 1; i < live; ++i) most = most > row[i] ? most : row[i];
  float sum = 0;
  for (std::int64_t i = 0; i < live; ++i) {
    float const difference = row[i] - most;
    float const x = difference < -87.f ? -87.f : difference;
    float const scaled = x * 1.44269504f;
    std::int32_t const whole = std::int32_t(scaled - 0.5f);  // x <= 0: truncation towards zero then rounds
    float const r = (x - float(whole) * 0.693359375f) + float(whole) * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    row[i] = p * std::bit_cast<float>((whole + 127) << 23);
    sum += row[i];
  }
  float const factor = 1.f / sum;
  for (std::int64_t i = 0; i < live; ++i) row[i] *= factor;
  for (std::int64_t i = live; i < n; ++i) row[i] = 0;
}

/// d_row = row * (d_row - sum(row * d_row)) over the live part; the rest becomes 0.
#if defined(__x86_64__) && !defined(__clang__)
[[gnu::target_clones("avx512f", "arch=haswell", "default"), gnu::optimize("O3,fast-math")]]
#endif
inline void
softmax_gradient_row(float const* row, float* d_row, std::int64_t live, std::int64_t n) {
  float sum = 0;
  for (std::int64_t i = 0; i < live; ++i) sum += row[i] * d_row[i];
  for (std::int64_t i = 0; i < live; ++i) d_row[i] = row[i] * (d_row[i] - sum);
  for (std::int64_t i = live; i < n; ++i) d_row[i] = 0;
}

class openblas_chain {
 public:
  using input = lanewise::view<float const>;
  using output = lanewise::view<float>;

  openblas_chain(lanewise::thread_pool& pool, input q, input k, input v, bool causal)
      : pool_(pool), q_(q), k_(k), v_(v), causal_(causal), scale_(1.f / std::sqrt(float(q.size.head_dim))),
        p_(std::size_t(q.size.batch * q.size.heads * pairs())), d_p_(std::size_t(pool.size() * pairs())) {
    openblas_set_num_threads(1);
  }

  /// Kept from forward to backward, and taken by the backward beside it.
  std::size_t saved_bytes() const { return p_.size() * sizeof(float); }
  std::size_t scratch_bytes() const { return d_p_.size() * sizeof(float); }

  void forward(output o) {
    std::int64_t const heads = q_.size.heads, m = q_.size.sequence, n = k_.size.sequence, d = q_.size.head_dim;
    each(q_.size.batch * heads, [&](int, std::int64_t item) {
      std::int64_t const b = item / heads, h = item % heads, kv = h / group();
      float* const p = p_.data() + item * pairs();
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, d, scale_, q_.row(b, 0, h), q_.stride.sequence,
                  k_.row(b, 0, kv), k_.stride.sequence, 0, p, n);
      for (std::int64_t i = 0; i < m; ++i) softmax_row(p + i * n, live(i), n);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, d, n, 1, p, n, v_.row(b, 0, kv), v_.stride.sequence, 0,
                  o.row(b, 0, h), o.stride.sequence);
    });
  }

  void backward(input d_o, output d_q, output d_k, output d_v) {
    std::int64_t const heads = k_.size.heads, m = q_.size.sequence, n = k_.size.sequence, d = q_.size.head_dim;
    each(q_.size.batch * heads, [&](int thread, std::int64_t item) {
      std::int64_t const b = item / heads, kv = item % heads;
      float* const d_s = d_p_.data() + thread * pairs();
      for (std::int64_t h = kv * group(); h < (kv + 1) * group(); ++h) {
        float const* const p = p_.data() + (b * q_.size.heads + h) * pairs();
        float const keep = h == kv * group() ? 0 : 1;
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, d, m, 1, p, n, d_o.row(b, 0, h), d_o.stride.sequence,
                    keep, d_v.row(b, 0, kv), d_v.stride.sequence);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, d, 1, d_o.row(b, 0, h), d_o.stride.sequence,
                    v_.row(b, 0, kv), v_.stride.sequence, 0, d_s, n);
        for (std::int64_t i = 0; i < m; ++i) softmax_gradient_row(p + i * n, d_s + i * n, live(i), n);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, d, n, scale_, d_s, n, k_.row(b, 0, kv),
                    k_.stride.sequence, 0, d_q.row(b, 0, h), d_q.stride.sequence);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, d, m, scale_, d_s, n, q_.row(b, 0, h),
                    q_.stride.sequence, keep, d_k.row(b, 0, kv), d_k.stride.sequence);
      }
    });
  }

 private:
  std::int64_t pairs() const { return q_.size.sequence * k_.size.sequence; }
  std::int64_t group() const { return q_.size.heads / k_.size.heads; }
  std::int64_t live(std::int64_t i) const { return causal_ ? std::min(i + 1, k_.size.sequence) : k_.size.sequence; }

  template <class F>
  void each(std::int64_t items, F const& f) {
    std::atomic<std::int64_t> next{0};
    pool_.run([&](int thread) {
      for (std::int64_t i; (i = next++) < items;) f(thread, i);
    });
  }

  lanewise::thread_pool& pool_;
  input q_, k_, v_;
  bool causal_;
  float scale_;
  std::vector<float> p_, d_p_;
};

}  // namespace bench
