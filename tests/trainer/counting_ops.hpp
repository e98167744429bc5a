// The CPU's ops, counting the products and the mixing passes that go through them.
#pragma once

#include "ops.hpp"

namespace test {

template <class T>
class counting_ops final : public trainer::cpu_ops<T> {
 public:
  using base = trainer::cpu_ops<T>;
  using base::base;
  mutable int products = 0, mixes = 0;

  void product(trainer::transpose ta, trainer::transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, T alpha,
               T const* a, std::int64_t lda, T const* b, std::int64_t ldb, T beta, T* c,
               std::int64_t ldc) const override {
    ++products;
    base::product(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
  void grouped_product(trainer::group_steps s, trainer::transpose ta, trainer::transpose tb, std::int64_t m,
                       std::int64_t n, std::int64_t k, T alpha, T const* a, std::int64_t lda, T const* b,
                       std::int64_t ldb, T beta, T* c, std::int64_t ldc) const override {
    ++products;
    base::grouped_product(s, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
  void mix(trainer::mix_shape s, trainer::transpose t, T alpha, T const* w, T const* x, std::int64_t x_stride, T beta,
           T* y, std::int64_t y_stride) const override {
    ++mixes;
    base::mix(s, t, alpha, w, x, x_stride, beta, y, y_stride);
  }
};

}  // namespace test
