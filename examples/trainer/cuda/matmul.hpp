// Matrix products through cuBLASLt. What it has to say about a product of one form is asked once and kept, so that a
// step whose products have all been seen asks nothing.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <type_traits>

#include "ops.hpp"

namespace trainer {

/// `count` products of one shape: c [m, n] from a [m, k], or transposed [k, m], and b [k, n] or [n, k].
struct product_shape {
  transpose ta, tb;
  std::int64_t m, n, k, count;
  auto operator<=>(product_shape const&) const = default;
};
/// The matrices of one operand: rows lie `row` apart, the next matrix `step` further on.
template <class T>
struct batched_matrix {
  T* data;
  std::int64_t row, step;
  batched_matrix(T* data, std::int64_t row, std::int64_t step) : data(data), row(row), step(step) {}
  template <class U>
  requires std::is_same_v<T, U const> batched_matrix(batched_matrix<U> const& m)
      : data(m.data), row(m.row), step(m.step) {}
};

/// All that an algorithm is chosen by: products of one form run through one algorithm.
struct product_form {
  struct operand {
    std::int64_t row, step;
    std::uint32_t alignment;
    auto operator<=>(operand const&) const = default;
  };
  product_shape shape;
  cudaDataType_t element;  // of a and b; c is f32
  cublasComputeType_t compute;
  operand a, b, c;
  auto operator<=>(product_form const&) const = default;
};

/// A cuBLASLt handle, and the algorithm of every form seen so far. It allocates nothing on the GPU.
class matmul {
 public:
  matmul();
  ~matmul();
  matmul(matmul const&) = delete;
  matmul& operator=(matmul const&) = delete;

  /// What the algorithms may use from now on; none before the first call. room outlives this.
  void give_room(void* room, std::size_t bytes);

  /// c = alpha a b + beta c, row-major, queued on stream.
  template <class T>
  void run(cudaStream_t stream, product_shape const& s, cublasComputeType_t compute, float alpha,
           batched_matrix<T const> a, batched_matrix<T const> b, float beta, batched_matrix<float> c) {
    cudaDataType_t const element = std::is_same_v<T, float> ? CUDA_R_32F : CUDA_R_16BF;
    run(stream, {s, element, compute, form_of(a), form_of(b), form_of(c)}, alpha, a.data, b.data, beta, c.data);
  }

  /// The forms seen so far, each of which cost one search.
  std::size_t searches() const { return plans_.size(); }

 private:
  struct plan {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
  };

  /// What every row of every matrix is aligned to. No algorithm reads more than 16 bytes at once; more alignment would
  /// only tell apart what runs alike.
  template <class T>
  static product_form::operand form_of(batched_matrix<T> const& m) {
    std::uint64_t const starts =
        reinterpret_cast<std::uintptr_t>(m.data) | std::uint64_t(m.row) * sizeof(T) | std::uint64_t(m.step) * sizeof(T);
    std::uint32_t alignment = 16;
    while (starts % alignment != 0) alignment /= 2;
    return {m.row, m.step, alignment};
  }
  void run(cudaStream_t stream, product_form const& form, float alpha, void const* a, void const* b, float beta,
           float* c);
  plan search(product_form const& form) const;

  cublasLtHandle_t handle_ = nullptr;
  void* room_ = nullptr;
  std::size_t room_bytes_ = 0;
  std::map<product_form, plan> plans_;
};

}  // namespace trainer
