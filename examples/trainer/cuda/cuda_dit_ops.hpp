// The diffusion transformer's own layers on an NVIDIA GPU, as dit_ops.hpp defines them.
#pragma once

#include "cuda_ops.hpp"
#include "dit_ops.hpp"

namespace trainer {

class cuda_dit_ops final : public dit_ops<float> {
 public:
  /// queue: null for planning; else it outlives this.
  explicit cuda_dit_ops(cuda_queue const* queue) : queue_(queue) {}

  void adaptive_norm(sequence_shape s, double epsilon, float const* x, float const* gain, float const* shift,
                     float const* scale, float* y, float* inverse) const override;
  void adaptive_norm_backward(sequence_shape s, float const* x, float const* gain, float const* scale,
                              float const* inverse, float const* d_y, float* d_x, float* d_gain, float* d_shift,
                              float* d_scale, float* partial) const override;
  void gated_add(sequence_shape s, float const* x, float const* a, float const* gate, float* y) const override;
  void gated_add_backward(sequence_shape s, float const* a, float const* gate, float const* d_y, float* d_a,
                          float* d_gate, float* partial) const override;
  void layer_norm(std::int64_t rows, std::int64_t n, double epsilon, float const* x, float const* gain,
                  float const* bias, float* y, float* statistics) const override;
  void layer_norm_backward(std::int64_t rows, std::int64_t n, float const* x, float const* gain,
                           float const* statistics, float const* d_y, float* d_x, float* d_gain, float* d_bias,
                           float* partial) const override;
  void add_row(std::int64_t rows, std::int64_t n, float const* row, float* y) const override;
  void sum_rows(std::int64_t rows, std::int64_t n, float const* d_y, float* d_row, float* partial) const override;
  void silu(std::int64_t count, float const* x, float* y) const override;
  void silu_backward(std::int64_t count, float const* x, float const* d_y, float* d_x) const override;
  void rotate(head_shape s, std::int64_t rotated, float const* rotary, bool backwards, float* qkv) const override;
  void squared_error(std::int64_t rows, std::int64_t n, float const* target, float const* row_weight,
                     float const* channel_weight, float* prediction, float* loss) const override;

 private:
  cuda_queue const* queue_;
};

}  // namespace trainer
