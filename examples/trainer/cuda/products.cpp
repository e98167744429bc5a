// Matrix products and the copies. The same shape gives the same bits: it always runs through the same algorithm, and
// one stream runs every product.
#include "cuda_ops.hpp"

namespace trainer {
namespace {

cublasComputeType_t compute_type(arithmetic how) {
  switch (how) {
    case arithmetic::tf32:
    case arithmetic::bf16: return CUBLAS_COMPUTE_32F_FAST_TF32;
    case arithmetic::f32:
    case arithmetic::f32_split: break;
  }
  return CUBLAS_COMPUTE_32F;
}

}  // namespace

void cuda_ops::copy_in(std::size_t bytes, void const* host, void* x) const {
  if (!planning())
    require(cudaMemcpyAsync(x, host, bytes, cudaMemcpyHostToDevice, queue_->stream), "a copy to the GPU");
}

void cuda_ops::copy_out(std::size_t bytes, void const* x, void* host) const {
  if (planning()) return;
  require(cudaMemcpyAsync(host, x, bytes, cudaMemcpyDeviceToHost, queue_->stream), "a copy from the GPU");
  require(cudaStreamSynchronize(queue_->stream), "the work before a copy from the GPU");
}

void cuda_ops::zero(std::int64_t count, float* x) const {
  if (!planning())
    require(cudaMemsetAsync(x, 0, std::size_t(count) * sizeof(float), queue_->stream), "cudaMemsetAsync");
}

void cuda_ops::batched_product(product_shape const& s, float alpha, batched_matrix<float const> a,
                               batched_matrix<float const> b, float beta, batched_matrix<float> c) const {
  if (planning() || s.m == 0 || s.n == 0 || s.count == 0) return;
  if (s.k == 0 && beta == 1) return;  // nothing to add, and cuBLASLt may refuse an empty matrix
  queue_->products->run(queue_->stream, s, compute_type(how_), alpha, a, b, beta, c);
}

void cuda_ops::product(transpose ta, transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                       float const* a, std::int64_t lda, float const* b, std::int64_t ldb, float beta, float* c,
                       std::int64_t ldc) const {
  batched_product({ta, tb, m, n, k, 1}, alpha, {a, lda, 0}, {b, ldb, 0}, beta, {c, ldc, 0});
}

void cuda_ops::grouped_product(group_steps s, transpose ta, transpose tb, std::int64_t m, std::int64_t n,
                               std::int64_t k, float alpha, float const* a, std::int64_t lda, float const* b,
                               std::int64_t ldb, float beta, float* c, std::int64_t ldc) const {
  if (s.c != 0)
    return batched_product({ta, tb, m, n, k, s.groups}, alpha, {a, lda, s.a}, {b, ldb, s.b}, beta, {c, ldc, s.c});
  for (std::int64_t g = 0; g < s.groups; ++g)
    product(ta, tb, m, n, k, alpha, a + g * s.a, lda, b + g * s.b, ldb, g > 0 ? 1.f : beta, c, ldc);
}

/// y = residual, where there is one for the product to be added to.
void cuda_ops::begin_sum(std::int64_t count, float const* residual, float* y) const {
  if (residual && !planning())
    require(cudaMemcpyAsync(y, residual, std::size_t(count) * sizeof(float), cudaMemcpyDeviceToDevice, queue_->stream),
            "a copy on the GPU");
}

void cuda_ops::linear(std::int64_t rows, std::int64_t in, std::int64_t out, float const* x, float const* w,
                      float const* residual, float* y) const {
  begin_sum(rows * out, residual, y);
  product(transpose::no, transpose::yes, rows, out, in, 1, x, in, w, in, residual ? 1.f : 0.f, y, out);
}

void cuda_ops::linear_backward(std::int64_t rows, std::int64_t in, std::int64_t out, float const* x, float const* w,
                               float const* d_y, float* d_x, float* d_w) const {
  if (d_w) product(transpose::yes, transpose::no, out, in, rows, 1, d_y, out, x, in, 1, d_w, in);
  if (d_x) product(transpose::no, transpose::no, rows, in, out, 1, d_y, out, w, in, 0, d_x, in);
}

rounded_needs cuda_ops::needs_of_rounded(std::int64_t rows, std::int64_t in, std::int64_t out) const {
  return {std::size_t(rows * in) * sizeof(lanewise::bf16), std::size_t(rows * out) * sizeof(lanewise::bf16)};
}

void cuda_ops::rounded_product(transpose t, std::int64_t rows, std::int64_t n, std::int64_t k, lanewise::bf16 const* a,
                               lanewise::bf16 const* w, float beta, float* y) const {
  if (planning() || rows == 0 || n == 0) return;
  batched_matrix<lanewise::bf16 const> const left(a, k, 0), right(w, t == transpose::yes ? k : n, 0);
  queue_->products->run(queue_->stream, {transpose::no, t, rows, n, k, 1}, CUBLAS_COMPUTE_32F, 1, left, right, beta,
                        batched_matrix<float>(y, n, 0));
}

void cuda_ops::rounded_linear(std::int64_t rows, std::int64_t in, std::int64_t out, float const* x,
                              lanewise::bf16 const* w, float const* residual, float* y, void* scratch) const {
  auto* const rounded = static_cast<lanewise::bf16*>(scratch);
  narrow(rows * in, x, rounded);
  begin_sum(rows * out, residual, y);
  rounded_product(transpose::yes, rows, out, in, rounded, w, residual ? 1.f : 0.f, y);
}

void cuda_ops::rounded_linear_backward(std::int64_t rows, std::int64_t in, std::int64_t out, lanewise::bf16 const* w,
                                       float const* d_y, float* d_x, void* scratch) const {
  if (!d_x) return;
  auto* const rounded = static_cast<lanewise::bf16*>(scratch);
  narrow(rows * out, d_y, rounded);
  rounded_product(transpose::no, rows, in, out, rounded, w, 0, d_x);
}

}  // namespace trainer
