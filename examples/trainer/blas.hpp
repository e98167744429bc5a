// Matrix products through CBLAS. OpenBLAS itself is kept at one thread: every product of a step is cut into pieces
// whose number depends on its shape alone (workers.hpp), and a piece is one call. So a result does not depend on how
// many threads ran it, which OpenBLAS's own threading does not promise.
#pragma once

#include <cblas.h>

#include <cstdint>

namespace trainer {

/// Before the first product; costs nothing when it is so already.
inline void keep_blas_single_threaded() { openblas_set_num_threads(1); }

enum class transpose : bool { no, yes };

/// c[m, n] = alpha a b + beta c, all row-major; a is [m, k] or, transposed, [k, m]; b is [k, n] or [n, k]. ld* is the
/// distance between rows as they lie in memory.
inline void gemm(transpose ta, transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                 float const* a, std::int64_t lda, float const* b, std::int64_t ldb, float beta, float* c,
                 std::int64_t ldc) {
  cblas_sgemm(CblasRowMajor, ta == transpose::yes ? CblasTrans : CblasNoTrans,
              tb == transpose::yes ? CblasTrans : CblasNoTrans, blasint(m), blasint(n), blasint(k), alpha, a,
              blasint(lda), b, blasint(ldb), beta, c, blasint(ldc));
}
inline void gemm(transpose ta, transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
                 double const* a, std::int64_t lda, double const* b, std::int64_t ldb, double beta, double* c,
                 std::int64_t ldc) {
  cblas_dgemm(CblasRowMajor, ta == transpose::yes ? CblasTrans : CblasNoTrans,
              tb == transpose::yes ? CblasTrans : CblasNoTrans, blasint(m), blasint(n), blasint(k), alpha, a,
              blasint(lda), b, blasint(ldb), beta, c, blasint(ldc));
}

}  // namespace trainer
