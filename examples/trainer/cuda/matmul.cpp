// cuBLASLt works in column-major order: a row-major c = a b is its c^T = b^T a^T on the same memory, so that the
// operands change places: its first is b, its second a.
#include "matmul.hpp"

#include <limits>
#include <stdexcept>
#include <string>

namespace trainer {
namespace {

void require(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLASLt: ") + cublasLtGetStatusString(status));
}

std::string text(product_form::operand const& x) {
  return "rows " + std::to_string(x.row) + " apart, matrices " + std::to_string(x.step) + ", aligned to " +
         std::to_string(x.alignment) + " bytes";
}

/// The numbers of a product that cuBLASLt refuses.
std::string text(product_form const& form) {
  product_shape const& s = form.shape;
  return std::to_string(s.count) + " products of " + std::to_string(s.m) + " x " + std::to_string(s.k) + " by " +
         std::to_string(s.k) + " x " + std::to_string(s.n) + " (a: " + text(form.a) + "; b: " + text(form.b) +
         "; c: " + text(form.c) + ")";
}

/// The matrix of `rows` rows of n elements in memory.
cublasLtMatrixLayoutOpaque_t layout(cudaDataType_t element, std::int64_t rows, std::int64_t n,
                                    product_form::operand const& x, std::int64_t count) {
  cublasLtMatrixLayoutOpaque_t l{};
  std::int32_t const batch = std::int32_t(count);
  require(cublasLtMatrixLayoutInit(&l, element, std::uint64_t(n), std::uint64_t(rows), x.row));
  require(cublasLtMatrixLayoutSetAttribute(&l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
  require(cublasLtMatrixLayoutSetAttribute(&l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &x.step, sizeof x.step));
  return l;
}

/// A matrix of `rows` rows of n elements, or transposed of n rows of `rows`.
cublasLtMatrixLayoutOpaque_t layout(cudaDataType_t element, transpose t, std::int64_t rows, std::int64_t n,
                                    product_form::operand const& x, std::int64_t count) {
  return t == transpose::yes ? layout(element, n, rows, x, count) : layout(element, rows, n, x, count);
}

cublasLtMatmulDescOpaque_t description(product_form const& form) {
  cublasLtMatmulDescOpaque_t d{};
  cublasOperation_t const first = form.shape.tb == transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N,
                          second = form.shape.ta == transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N;
  require(cublasLtMatmulDescInit(&d, form.compute, CUDA_R_32F));
  require(cublasLtMatmulDescSetAttribute(&d, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
  require(cublasLtMatmulDescSetAttribute(&d, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
  return d;
}

/// Where k is cut, the parts are kept in the room and added up afterwards, in their order: the same bits every time.
cublasLtMatmulPreferenceOpaque_t preference(product_form const& form, std::size_t room_bytes) {
  cublasLtMatmulPreferenceOpaque_t p{};
  std::uint32_t const reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  std::uint64_t const room = room_bytes;
  require(cublasLtMatmulPreferenceInit(&p));
  auto const set = [&](cublasLtMatmulPreferenceAttributes_t what, auto const& value) {
    require(cublasLtMatmulPreferenceSetAttribute(&p, what, &value, sizeof value));
  };
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, room);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, form.b.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, form.a.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, form.c.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, form.c.alignment);
  return p;
}

}  // namespace

matmul::matmul() { require(cublasLtCreate(&handle_)); }
matmul::~matmul() { cublasLtDestroy(handle_); }

void matmul::give_room(void* room, std::size_t bytes) {
  if (bytes != room_bytes_) plans_.clear();  // an algorithm is chosen for the room that it may use
  room_ = room;
  room_bytes_ = bytes;
}

/// The first algorithm of those that cuBLASLt ranks: a choice by the form and the kind of GPU, with nothing measured.
matmul::plan matmul::search(product_form const& form) const {
  product_shape const& s = form.shape;
  if (s.count > std::numeric_limits<std::int32_t>::max())
    throw std::runtime_error("cuBLASLt: too many at once: " + text(form));
  plan p{description(form),
         layout(form.element, s.ta, s.m, s.k, form.a, s.count),
         layout(form.element, s.tb, s.k, s.n, form.b, s.count),
         layout(CUDA_R_32F, s.m, s.n, form.c, s.count),
         {}};
  cublasLtMatmulPreferenceOpaque_t preferred = preference(form, room_bytes_);
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  require(cublasLtMatmulAlgoGetHeuristic(handle_, &p.product, &p.b, &p.a, &p.c, &p.c, &preferred, 1, &best, &found));
  if (found == 0) throw std::runtime_error("cuBLASLt: no algorithm for " + text(form));
  require(best.state);
  p.algorithm = best.algo;
  return p;
}

void matmul::run(cudaStream_t stream, product_form const& form, float alpha, void const* a, void const* b, float beta,
                 float* c) {
  auto found = plans_.find(form);
  if (found == plans_.end()) found = plans_.emplace(form, search(form)).first;
  plan& p = found->second;
  cublasStatus_t const status = cublasLtMatmul(handle_, &p.product, &alpha, b, &p.b, a, &p.a, &beta, c, &p.c, c, &p.c,
                                               &p.algorithm, room_, room_bytes_, stream);
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLASLt: ") + cublasLtGetStatusString(status) + ": " + text(form));
}

}  // namespace trainer
