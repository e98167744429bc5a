// The layers of the models, forward and backward, on the CPU. All tensors are dense and row-major; a row is a token.
// T is float in training; double is there so that tests can check every derivative by finite differences.
//
//   linear       y = x W^T (+ residual)                    W [out, in], as Hugging Face stores it
//   rms_norm     y = g x / sqrt(mean(x^2) + eps)           Zhang and Sennrich 2019
//   head_norm    rms_norm over each head, then the rotary embedding (Su et al. 2021), halves paired as in GPT-NeoX
//   swiglu       y = u * silu(z), z and u side by side     Shazeer 2020
//   cross_entropy  loss = -log softmax(logits)[target]
//
// Gradients of inputs are written, gradients of parameters are added to. Sums over rows go through partial sums of a
// fixed number of rows, so they do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "workers.hpp"

namespace trainer {

inline constexpr double norm_epsilon = 1e-6;

/// Rows of one piece of work: many enough that a product packs its weights rarely, few enough to share out.
inline constexpr std::int64_t row_grain = 128;

/// Elements of the partial sums that a norm's backward needs for a gain of n elements.
constexpr std::int64_t partial_count(std::int64_t rows, std::int64_t n) {
  return workers::piece_count(rows, row_grain) * n;
}

/// A row whose target is `no_target` has loss 0 and gradient 0.
inline constexpr std::int32_t no_target = -1;

/// What head_norm reads and writes: token t's heads lie side by side in qkv, queries first, then keys, then values.
struct head_shape {
  std::int64_t tokens, sequence;      ///< token t is at position t % sequence
  std::int64_t q_heads, kv_heads, n;  ///< n: head_dim
  constexpr std::int64_t normed_heads() const { return q_heads + kv_heads; }
  constexpr std::int64_t all_heads() const { return q_heads + 2 * kv_heads; }
};

/// Sines and cosines of the rotary embedding: table[position, 0 ... n/2-1] the cosines, then n/2 sines.
template <class T>
void fill_rotary_table(std::int64_t positions, std::int64_t n, double theta, T* table);

template <class T>
class cpu_ops {
 public:
  explicit cpu_ops(workers on) : on_(on) {}
  workers const& on() const { return on_; }

  /// x[count] = 0.
  void zero(std::int64_t count, T* x) const;

  /// y[rows, out] = x[rows, in] w[out, in]^T, plus residual[rows, out] unless null.
  void linear(std::int64_t rows, std::int64_t in, std::int64_t out, T const* x, T const* w, T const* residual,
              T* y) const;

  /// d_x[rows, in] = d_y w;  d_w[out, in] += d_y^T x.
  void linear_backward(std::int64_t rows, std::int64_t in, std::int64_t out, T const* x, T const* w, T const* d_y,
                       T* d_x, T* d_w) const;

  /// y[rows, n] from x[rows, n]; inverse[rows] receives 1 / sqrt(mean(x^2) + eps) for the backward.
  void rms_norm(std::int64_t rows, std::int64_t n, T const* x, T const* gain, T* y, T* inverse) const;

  /// d_x[rows, n] += gradient with respect to x; d_gain[n] += that of the gain. partial: partial_count(rows, n).
  void rms_norm_backward(std::int64_t rows, std::int64_t n, T const* x, T const* gain, T const* inverse, T const* d_y,
                         T* d_x, T* d_gain, T* partial) const;

  /// qk[tokens, q_heads + kv_heads, n]: the queries and keys of qkv[tokens, all heads, n], normed with q_gain[n] and
  /// k_gain[n] while each head is contiguous, then rotated. inverse[tokens, q_heads + kv_heads] is for the backward.
  void head_norm(head_shape s, T const* qkv, T const* q_gain, T const* k_gain, T const* rotary, T* qk,
                 T* inverse) const;

  /// Writes the query and key part of d_qkv; d_q_gain and d_k_gain [n] are added to. partial:
  /// partial_count(tokens, 2 n).
  void head_norm_backward(head_shape s, T const* qkv, T const* q_gain, T const* k_gain, T const* rotary,
                          T const* inverse, T const* d_qk, T* d_qkv, T* d_q_gain, T* d_k_gain, T* partial) const;

  /// y[rows, n] = up * silu(gate) with gate_up[rows, 2 n]: gate, then up.
  void swiglu(std::int64_t rows, std::int64_t n, T const* gate_up, T* y) const;

  /// d_gate_up[rows, 2 n] from d_y[rows, n].
  void swiglu_backward(std::int64_t rows, std::int64_t n, T const* gate_up, T const* d_y, T* d_gate_up) const;

  /// x[rows, n] = table[token]; tokens are 0 ... entries of table - 1.
  void embed(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, T const* table, T* x) const;

  /// d_table[token] += d_x[row], rows in order.
  void embed_backward(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, T const* d_x, T* d_table) const;

  /// loss[rows] in nats; logits[rows, n] become weight * d loss / d logits.
  void cross_entropy(std::int64_t rows, std::int64_t n, std::int32_t const* targets, T weight, T* logits,
                     T* loss) const;

 private:
  workers on_;
};

}  // namespace trainer
