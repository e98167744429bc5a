// The attention chain that flash attention replaces, on BLAS: the scores of every pair are materialised.
//
//   S = scale Q K^T,  P = softmax(S where the mask keeps it),  O = P V
//   dV = P^T dO,  dP = dO V^T,  dS = P * (dP - rowsum(P * dP)),  dQ = scale dS K,  dK = scale dS^T Q
//
// P and dP are [batch, q_heads, queries, keys]. A work item is one (batch, key/value head); its query heads run in
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

/// Keys that query i of a batch element sees: begin ... end-1.
struct live_keys {
  std::int64_t begin, end;
  live_keys(attention_shape const& s, std::int32_t const* key_lengths, std::int64_t batch, std::int64_t i)
      : begin(std::max<std::int64_t>(0, i - s.mask.left)),
        end(std::min(i + s.mask.right + 1, key_lengths ? std::min<std::int64_t>(s.keys, key_lengths[batch]) : s.keys)) {
    if (end < begin) end = begin = 0;
  }
};

/// softmax of the live part of row[n]; the masked rest becomes 0.
template <class T>
void softmax_row(T* row, live_keys live, std::int64_t n) {
  std::fill(row, row + live.begin, T(0));
  std::fill(row + live.end, row + n, T(0));
  T* const seen = row + live.begin;
  std::int64_t const count = live.end - live.begin;
  if (count == 0) return;
  T const most = *std::max_element(seen, seen + count);
  T sum = 0;
  for (std::int64_t i = 0; i < count; ++i) seen[i] -= most;
  exponentials(count, seen, seen);
  for (std::int64_t i = 0; i < count; ++i) sum += seen[i];
  T const factor = T(1) / sum;
  for (std::int64_t i = 0; i < count; ++i) seen[i] *= factor;
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
  std::int64_t const queries = s.queries, keys = s.keys, d = s.head_dim;
  T const scale = T(1) / std::sqrt(T(d));
  for_each_head<T>(on, s, [&](std::int64_t b, std::int64_t h, std::int64_t kv, bool) {
    T* const rows = p + (b * s.q_heads + h) * queries * keys;
    gemm(transpose::no, transpose::yes, queries, keys, d, scale, in.q.row(b, 0, h), in.q.stride.sequence,
         in.k.row(b, 0, kv), in.k.stride.sequence, T(0), rows, keys);
    for (std::int64_t i = 0; i < queries; ++i) softmax_row(rows + i * keys, live_keys(s, in.key_lengths, b, i), keys);
    gemm(transpose::no, transpose::no, queries, d, keys, T(1), rows, keys, in.v.row(b, 0, kv), in.v.stride.sequence,
         T(0), o.row(b, 0, h), o.stride.sequence);
  });
}

template <class T>
void backward(workers const& on, attention_shape s, attention_inputs<T> const& in, T const* p,
              lanewise::view<T const> d_o, attention_gradients<T> const& out, T* d_p) {
  std::int64_t const queries = s.queries, keys = s.keys, d = s.head_dim;
  T const scale = T(1) / std::sqrt(T(d));
  for_each_head<T>(on, s, [&](std::int64_t b, std::int64_t h, std::int64_t kv, bool first) {
    T const* const rows = p + (b * s.q_heads + h) * queries * keys;
    T* const d_rows = d_p + (b * s.q_heads + h) * queries * keys;
    T const keep = first ? T(0) : T(1);
    gemm(transpose::yes, transpose::no, keys, d, queries, T(1), rows, keys, d_o.row(b, 0, h), d_o.stride.sequence, keep,
         out.d_v.row(b, 0, kv), out.d_v.stride.sequence);
    gemm(transpose::no, transpose::yes, queries, keys, d, T(1), d_o.row(b, 0, h), d_o.stride.sequence,
         in.v.row(b, 0, kv), in.v.stride.sequence, T(0), d_rows, keys);
    for (std::int64_t i = 0; i < queries; ++i) {
      live_keys const live(s, in.key_lengths, b, i);
      T const* const p_row = rows + i * keys;
      T* const d_row = d_rows + i * keys;
      T sum = 0;
      for (std::int64_t j = live.begin; j < live.end; ++j) sum += p_row[j] * d_row[j];
      for (std::int64_t j = 0; j < keys; ++j) d_row[j] = p_row[j] * (d_row[j] - sum);
    }
    gemm(transpose::no, transpose::no, queries, d, keys, scale, d_rows, keys, in.k.row(b, 0, kv), in.k.stride.sequence,
         T(0), out.d_q.row(b, 0, h), out.d_q.stride.sequence);
    gemm(transpose::yes, transpose::no, keys, d, queries, scale, d_rows, keys, in.q.row(b, 0, h), in.q.stride.sequence,
         keep, out.d_k.row(b, 0, kv), out.d_k.stride.sequence);
  });
}

}  // namespace trainer::exact
