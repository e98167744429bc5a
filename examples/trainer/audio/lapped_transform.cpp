#include "lapped_transform.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trainer {

lapped_transform::lapped_transform(std::int64_t bands) : bands_(bands), basis_(std::size_t(2 * bands * bands)) {
  double const n_bands = double(bands), pi = std::numbers::pi;
  for (std::int64_t k = 0; k < bands; ++k)
    for (std::int64_t n = 0; n < 2 * bands; ++n)
      basis_[std::size_t(k * 2 * bands + n)] =
          float(std::sqrt(2 / n_bands) * std::sin(pi * (double(n) + 0.5) / (2 * n_bands)) *
                std::cos(pi / n_bands * (double(n) + 0.5 + n_bands / 2) * (double(k) + 0.5)));
}

std::vector<float> lapped_transform::forward(std::vector<float> const& samples) const {
  std::int64_t const n = bands_, count = frames(std::int64_t(samples.size()));
  std::vector<float> padded(std::size_t((count + 1) * n), 0.f), out(std::size_t(count * n));
  std::copy(samples.begin(), samples.end(), padded.begin() + n);
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t k = 0; k < n; ++k) {
      float const *const x = &padded[std::size_t(t * n)], *const b = &basis_[std::size_t(k * 2 * n)];
      double sum = 0;
      for (std::int64_t i = 0; i < 2 * n; ++i) sum += double(x[i]) * double(b[i]);
      out[std::size_t(t * n + k)] = float(sum);
    }
  return out;
}

std::vector<float> lapped_transform::inverse(std::vector<float> const& coefficients) const {
  std::int64_t const n = bands_, count = std::int64_t(coefficients.size()) / n;
  std::vector<double> sum(std::size_t((count + 1) * n), 0.0);
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t k = 0; k < n; ++k) {
      double const c = double(coefficients[std::size_t(t * n + k)]);
      float const* const b = &basis_[std::size_t(k * 2 * n)];
      for (std::int64_t i = 0; i < 2 * n; ++i) sum[std::size_t(t * n + i)] += c * double(b[i]);
    }
  return {sum.begin() + n, sum.end() - n};
}

}  // namespace trainer
