// The attention chain that flash attention replaces, on BLAS: the scores of every pair are materialised.
//
//   S = scale Q K^T,  P = softmax(S where k <= q),  O = P V
//   dV = P^T dO,  dP = dO V^T,  dS = P * (dP - rowsum(P * dP)),  dQ = scale dS K,  dK = scale dS^T Q
//
// P and dP are [batch, q_heads, sequence, sequence]. A work item is one (batch, key/value head); its query heads run in
// their order, so that dK and dV are summed in one order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attention_site.hpp"
#include "blas.hpp"
#include "exponential.hpp"
#include "workers.hpp"

namespace trainer::exact {

/// softmax of row[0 ... live-1]; the masked rest becomes 0.
template <class T>
void softmax_row(T* row, std::int64_t live, std::int64_t n) {
  T const most = *std::max_element(row, row + live);
  T sum = 0;
  for (std::int64_t i = 0; i < live; ++i) row[i] -= most;
  exponentials(live, row, row);
  for (std::int64_t i = 0; i < live; ++i) sum += row[i];
  T const factor = T(1) / sum;
  for (std::int64_t i = 0; i < live; ++i) row[i] *= factor;
  std::fill(row + live, row + n, T(0));
}

template <class T, class F>
void for_each_head(workers const& on, attention_shape s, F const& f) {
  std::int64_t const group = s.q_heads / s.kv_heads;
  on.each(s.batch * s.kv_heads, [&](std::int64_t item) {
    std::int64_t const b = item / s.kv_heads, kv = item % s.kv_heads;
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) f(b, h, kv, h == kv * group);
  });
}

template <class T>
void forward(workers const& on, attention_shape s, attention_inputs<T> const& in, lanewise::view<T> o, T* p) {
  std::int64_t const n = s.sequence, d = s.head_dim;
  T const scale = T(1) / std::sqrt(T(d));
  for_each_head<T>(on, s, [&](std::int64_t b, std::int64_t h, std::int64_t kv, bool) {
    T* const rows = p + (b * s.q_heads + h) * n * n;
    gemm(transpose::no, transpose::yes, n, n, d, scale, in.q.row(b, 0, h), in.q.stride.sequence, in.k.row(b, 0, kv),
         in.k.stride.sequence, T(0), rows, n);
    for (std::int64_t i = 0; i < n; ++i) softmax_row(rows + i * n, i + 1, n);
    gemm(transpose::no, transpose::no, n, d, n, T(1), rows, n, in.v.row(b, 0, kv), in.v.stride.sequence, T(0),
         o.row(b, 0, h), o.stride.sequence);
  });
}

template <class T>
void backward(workers const& on, attention_shape s, attention_inputs<T> const& in, T const* p,
              lanewise::view<T const> d_o, attention_gradients<T> const& out, T* d_p) {
  std::int64_t const n = s.sequence, d = s.head_dim;
  T const scale = T(1) / std::sqrt(T(d));
  for_each_head<T>(on, s, [&](std::int64_t b, std::int64_t h, std::int64_t kv, bool first) {
    T const* const rows = p + (b * s.q_heads + h) * n * n;
    T* const d_rows = d_p + (b * s.q_heads + h) * n * n;
    T const keep = first ? T(0) : T(1);
    gemm(transpose::yes, transpose::no, n, d, n, T(1), rows, n, d_o.row(b, 0, h), d_o.stride.sequence, keep,
         out.d_v.row(b, 0, kv), out.d_v.stride.sequence);
    gemm(transpose::no, transpose::yes, n, n, d, T(1), d_o.row(b, 0, h), d_o.stride.sequence, in.v.row(b, 0, kv),
         in.v.stride.sequence, T(0), d_rows, n);
    for (std::int64_t i = 0; i < n; ++i) {
      T sum = 0;
      for (std::int64_t j = 0; j <= i; ++j) sum += rows[i * n + j] * d_rows[i * n + j];
      for (std::int64_t j = 0; j < n; ++j) d_rows[i * n + j] = rows[i * n + j] * (d_rows[i * n + j] - sum);
    }
    gemm(transpose::no, transpose::no, n, d, n, scale, d_rows, n, in.k.row(b, 0, kv), in.k.stride.sequence, T(0),
         out.d_q.row(b, 0, h), out.d_q.stride.sequence);
    gemm(transpose::yes, transpose::no, n, d, n, scale, d_rows, n, in.q.row(b, 0, h), in.q.stride.sequence, keep,
         out.d_k.row(b, 0, kv), out.d_k.stride.sequence);
  });
}

}  // namespace trainer::exact
