// The ops on an NVIDIA GPU: matrix products through cuBLASLt, attention through lanewise, the rest in fused kernels.
// Every call is queued on one stream; only a download waits. Every sum has an order that the shape fixes, so that a run
// gives the same bits again on the same kind of GPU.
#pragma once

#include <cuda_runtime.h>

#include <lanewise/attention.hpp>
#include <stdexcept>
#include <string>

#include "device.hpp"
#include "matmul.hpp"

namespace trainer {

/// Where queued work goes. Null: nowhere, for planning.
struct cuda_queue {
  cudaStream_t stream = nullptr;
  matmul* products = nullptr;
};

/// Throws with the error's text; `what` failed.
inline void require(cudaError_t error, char const* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

class cuda_ops final : public ops<float> {
 public:
  /// For planning; target: the GPU that the plan is for.
  cuda_ops(arithmetic how, lanewise::cuda_target target) : how_(how), target_(target) {}
  /// queue outlives this.
  cuda_ops(arithmetic how, lanewise::cuda_target target, cuda_queue const& queue)
      : how_(how), target_(target), queue_(&queue) {}

  bool planning() const override { return queue_ == nullptr; }
  void zero(std::int64_t count, float* x) const override;
  void linear(std::int64_t rows, std::int64_t in, std::int64_t out, float const* x, float const* w,
              float const* residual, float* y) const override;
  void linear_backward(std::int64_t rows, std::int64_t in, std::int64_t out, float const* x, float const* w,
                       float const* d_y, float* d_x, float* d_w) const override;
  rounded_needs needs_of_rounded(std::int64_t rows, std::int64_t in, std::int64_t out) const override;
  void rounded_linear(std::int64_t rows, std::int64_t in, std::int64_t out, float const* x, lanewise::bf16 const* w,
                      float const* residual, float* y, void* scratch) const override;
  void rounded_linear_backward(std::int64_t rows, std::int64_t in, std::int64_t out, lanewise::bf16 const* w,
                               float const* d_y, float* d_x, void* scratch) const override;
  void rms_norm(std::int64_t rows, std::int64_t n, double epsilon, float const* x, float const* gain, float* y,
                float* inverse) const override;
  void rms_norm_backward(std::int64_t rows, std::int64_t n, float const* x, float const* gain, float const* inverse,
                         float const* d_y, float* d_x, float* d_gain, float* partial) const override;
  void head_norm(head_shape s, float const* qkv, float const* q_gain, float const* k_gain, float const* rotary,
                 float* qk, float* inverse) const override;
  void head_norm_backward(head_shape s, float const* qkv, float const* q_gain, float const* k_gain, float const* rotary,
                          float const* inverse, float const* d_qk, float* d_qkv, float* d_q_gain, float* d_k_gain,
                          float* partial) const override;
  void swiglu(std::int64_t rows, std::int64_t n, float const* gate_up, float* y) const override;
  void swiglu_backward(std::int64_t rows, std::int64_t n, float const* gate_up, float const* d_y,
                       float* d_gate_up) const override;
  void embed(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, float const* table,
             float* x) const override;
  void embed_backward(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, float const* d_x,
                      float* d_table) const override;
  void cross_entropy(std::int64_t rows, std::int64_t n, std::int32_t const* targets, float weight, float* logits,
                     float* loss) const override;
  void norm(std::int64_t segments, segment const* table, float const* x, double* squares,
            double* result) const override;
  void adamw_update(std::int64_t segments, segment const* table, adamw_rates const& r, double const* norm,
                    float const* gradients, float* weights, float* m, float* v) const override;
  void product(transpose ta, transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, float const* a,
               std::int64_t lda, float const* b, std::int64_t ldb, float beta, float* c,
               std::int64_t ldc) const override;
  void grouped_product(group_steps s, transpose ta, transpose tb, std::int64_t m, std::int64_t n, std::int64_t k,
                       float alpha, float const* a, std::int64_t lda, float const* b, std::int64_t ldb, float beta,
                       float* c, std::int64_t ldc) const override;
  void mix(mix_shape s, transpose t, float alpha, float const* w, float const* x, std::int64_t x_stride, float beta,
           float* y, std::int64_t y_stride) const override;
  void mix_weight_backward(mix_shape s, float alpha, float const* d_y, std::int64_t d_y_stride, float const* x,
                           std::int64_t x_stride, float* d_w, float* partial) const override;
  void add_columns(std::int64_t rows, std::int64_t n, float alpha, float const* x, std::int64_t x_stride, float beta,
                   float* y, std::int64_t y_stride) const override;
  void widen(std::int64_t count, lanewise::bf16 const* x, float* y) const override;

  /// flash has kernels for head_dim 32, 64 and 128. exact takes any.
  attention_needs attention(attention_site const& at) const override;
  char const* attention_forward(attention_site const& at, attention_inputs<float> const& in, lanewise::view<float> o,
                                float* saved, void* scratch) const override;
  char const* attention_backward(attention_site const& at, attention_inputs<float> const& in,
                                 lanewise::view<float const> o, float const* saved, lanewise::view<float const> d_o,
                                 attention_gradients<float> const& out, void* scratch) const override;

 private:
  /// y[rows, n] = a[rows, k] w + beta y in bf16, with w [k, n] or transposed [n, k].
  void rounded_product(transpose t, std::int64_t rows, std::int64_t n, std::int64_t k, lanewise::bf16 const* a,
                       lanewise::bf16 const* w, float beta, float* y) const;
  void begin_sum(std::int64_t count, float const* residual, float* y) const;
  void narrow(std::int64_t count, float const* x, lanewise::bf16* y) const;
  void batched_product(product_shape const& s, float alpha, batched_matrix<float const> a,
                       batched_matrix<float const> b, float beta, batched_matrix<float> c) const;
  char const* exact_forward(attention_shape const& s, attention_inputs<float> const& in, lanewise::view<float> o,
                            float* p) const;
  char const* exact_backward(attention_shape const& s, attention_inputs<float> const& in, float const* p,
                             lanewise::view<float const> d_o, attention_gradients<float> const& out, float* d_p) const;
  void copy(lanewise::view<float const> x, lanewise::view<lanewise::bf16> y) const;
  void copy(lanewise::view<lanewise::bf16 const> x, lanewise::view<float> y) const;
  template <class T>
  lanewise::view<T const> as_read(lanewise::view<float const> x, std::byte*& room) const;
  char const* zero_rows(std::initializer_list<lanewise::view<float>> all) const;
  void copy_in(std::size_t bytes, void const* host, void* x) const override;
  void copy_out(std::size_t bytes, void const* x, void* host) const override;

  arithmetic how_;
  lanewise::cuda_target target_;
  cuda_queue const* queue_ = nullptr;
};

}  // namespace trainer
