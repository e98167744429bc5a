// The diffusion transformer's layers: each against its formula written out, its backward against finite differences,
// its f32 against its f64, and its bits on one thread and on four.
#include "dit_ops.hpp"

#include "support.hpp"

using namespace trainer;
using test::check_gradient, test::dot, test::normal;

namespace {

/// Two batch elements whose rows are no multiple of the piece size; the vectors of an element lie 5 apart beyond n.
constexpr sequence_shape shape{.batch = 2, .sequence = row_grain + 3, .n = 9, .stride = 14};
constexpr std::size_t count = std::size_t(shape.rows() * shape.n), vectors = std::size_t(shape.batch * shape.stride);

struct fixture {
  lanewise::thread_pool pool{2};
  cpu_dit_ops<double> op{workers(pool)};
};

/// The part of every element's vector that the layer reads; the rest must stay as it is.
bool only_vectors_written(std::vector<double> const& x, double untouched) {
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t i = shape.n; i < shape.stride; ++i)
      if (x[std::size_t(b * shape.stride + i)] != untouched) return false;
  return true;
}

void forget_gaps(std::vector<double>& x) {
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t i = shape.n; i < shape.stride; ++i) x[std::size_t(b * shape.stride + i)] = 0;
}

}  // namespace

TEST_CASE_FIXTURE(fixture, "adaptive_norm: y = (1 + scale) g x / sqrt(mean(x^2) + eps) + shift, with its gradients") {
  std::vector<double> x = normal<double>(count, 1), gain = normal<double>(9, 2), shift = normal<double>(vectors, 3),
                      scale = normal<double>(vectors, 4);
  std::vector<double> const weight = normal<double>(count, 5);
  std::vector<double> y(count), inverse(std::size_t(shape.rows()));
  op.adaptive_norm(shape, 1e-3, x.data(), gain.data(), shift.data(), scale.data(), y.data(), inverse.data());
  for (std::int64_t r : {std::int64_t(0), shape.sequence - 1, shape.sequence, shape.rows() - 1}) {
    std::int64_t const b = r / shape.sequence;
    double square = 0;
    for (int i = 0; i < 9; ++i) square += x[std::size_t(r * 9 + i)] * x[std::size_t(r * 9 + i)];
    for (int i = 0; i < 9; ++i) {
      auto const at = std::size_t(b * shape.stride + i);
      REQUIRE(y[std::size_t(r * 9 + i)] ==
              doctest::Approx((1 + scale[at]) * gain[std::size_t(i)] * x[std::size_t(r * 9 + i)] /
                                  std::sqrt(square / 9 + 1e-3) +
                              shift[at])
                  .epsilon(1e-12));
    }
  }
  auto const loss = [&] {
    std::vector<double> factors(inverse.size());
    op.adaptive_norm(shape, 1e-3, x.data(), gain.data(), shift.data(), scale.data(), y.data(), factors.data());
    return dot(y, weight);
  };
  std::vector<double> d_x(count, 2.0), d_gain(9, 3.0), d_shift(vectors, 7.0), d_scale(vectors, 7.0),
      partial(std::size_t(shape.partial_count(3)));
  op.adaptive_norm_backward(shape, x.data(), gain.data(), scale.data(), inverse.data(), weight.data(), d_x.data(),
                            d_gain.data(), d_shift.data(), d_scale.data(), partial.data());
  for (double& g : d_x) g -= 2.0;
  for (double& g : d_gain) g -= 3.0;
  CHECK(only_vectors_written(d_shift, 7.0));
  CHECK(only_vectors_written(d_scale, 7.0));
  forget_gaps(d_shift);
  forget_gaps(d_scale);
  check_gradient("x", x, d_x, loss, 31);
  check_gradient("gain", gain, d_gain, loss);
  check_gradient("shift", shift, d_shift, loss);
  check_gradient("scale", scale, d_scale, loss);

  std::vector<double> frozen(count, 2.0);
  op.adaptive_norm_backward(shape, x.data(), gain.data(), scale.data(), inverse.data(), weight.data(), frozen.data(),
                            nullptr, d_shift.data(), d_scale.data(), partial.data());
  for (std::size_t i = 0; i < count; ++i) REQUIRE(frozen[i] - 2.0 == d_x[i]);
}

TEST_CASE_FIXTURE(fixture, "gated_add: y = x + gate a, with its gradients") {
  std::vector<double> x = normal<double>(count, 1), a = normal<double>(count, 2), gate = normal<double>(vectors, 3);
  std::vector<double> const weight = normal<double>(count, 4);
  std::vector<double> y(count), d_a(count), d_gate(vectors, 7.0), partial(std::size_t(shape.partial_count(1)));
  auto const loss = [&] {
    op.gated_add(shape, x.data(), a.data(), gate.data(), y.data());
    return dot(y, weight);
  };
  loss();
  std::size_t const last = count - 1, in_gate = std::size_t(shape.stride + 8);
  CHECK(y[last] == doctest::Approx(x[last] + gate[in_gate] * a[last]).epsilon(1e-14));
  op.gated_add_backward(shape, a.data(), gate.data(), weight.data(), d_a.data(), d_gate.data(), partial.data());
  CHECK(only_vectors_written(d_gate, 7.0));
  forget_gaps(d_gate);
  check_gradient("x", x, weight, loss, 97);
  check_gradient("a", a, d_a, loss, 31);
  check_gradient("gate", gate, d_gate, loss);
}

TEST_CASE_FIXTURE(fixture, "layer_norm: y = g (x - mean) / sqrt(variance + eps) + bias, with its gradients") {
  constexpr std::int64_t rows = row_grain + 3, n = 9;
  std::vector<double> x = normal<double>(rows * n, 1), gain = normal<double>(n, 2), bias = normal<double>(n, 3);
  for (double& v : x) v += 3;
  std::vector<double> const weight = normal<double>(rows * n, 4);
  std::vector<double> y(rows * n), statistics(2 * rows), partial(std::size_t(partial_count(rows, 2 * n)));
  op.layer_norm(rows, n, 1e-3, x.data(), gain.data(), bias.data(), y.data(), statistics.data());
  double const* const last = &x[(rows - 1) * n];
  double mean = 0, variance = 0;
  for (int i = 0; i < n; ++i) mean += last[i] / n;
  for (int i = 0; i < n; ++i) variance += (last[i] - mean) * (last[i] - mean) / n;
  for (std::size_t i = 0; i < n; ++i)
    CHECK(y[(rows - 1) * n + i] ==
          doctest::Approx(gain[i] * (last[i] - mean) / std::sqrt(variance + 1e-3) + bias[i]).epsilon(1e-11));
  auto const loss = [&] {
    std::vector<double> other(statistics.size());
    op.layer_norm(rows, n, 1e-3, x.data(), gain.data(), bias.data(), y.data(), other.data());
    return dot(y, weight);
  };
  std::vector<double> d_x(rows * n, 2.0), d_gain(n, 3.0), d_bias(n, 4.0);
  op.layer_norm_backward(rows, n, x.data(), gain.data(), statistics.data(), weight.data(), d_x.data(), d_gain.data(),
                         d_bias.data(), partial.data());
  for (double& g : d_x) g -= 2.0;
  for (double& g : d_gain) g -= 3.0;
  for (double& g : d_bias) g -= 4.0;
  check_gradient("x", x, d_x, loss, 31);
  check_gradient("gain", gain, d_gain, loss);
  check_gradient("bias", bias, d_bias, loss);

  std::vector<double> frozen(rows * n, 2.0);
  op.layer_norm_backward(rows, n, x.data(), gain.data(), statistics.data(), weight.data(), frozen.data(), nullptr,
                         nullptr, nullptr);
  for (std::size_t i = 0; i < frozen.size(); ++i) REQUIRE(frozen[i] - 2.0 == d_x[i]);
}

TEST_CASE_FIXTURE(fixture, "add_row and sum_rows are each other's gradient") {
  constexpr std::int64_t rows = row_grain + 3, n = 5;
  std::vector<double> row = normal<double>(n, 1);
  std::vector<double> const x = normal<double>(rows * n, 2), weight = normal<double>(rows * n, 3);
  std::vector<double> d_row(n, 2.0), partial(std::size_t(partial_count(rows, n)));
  op.sum_rows(rows, n, weight.data(), d_row.data(), partial.data());
  for (double& g : d_row) g -= 2.0;
  check_gradient("row", row, d_row, [&] {
    std::vector<double> y = x;
    op.add_row(rows, n, row.data(), y.data());
    return dot(y, weight);
  });
}

TEST_CASE_FIXTURE(fixture, "silu: y = x / (1 + exp(-x)), with its gradient; finite where exp would overflow in f32") {
  std::vector<double> x = normal<double>(5000, 1, 3.0);
  std::vector<double> const weight = normal<double>(5000, 2);
  std::vector<double> y(5000), d_x(5000);
  auto const loss = [&] {
    op.silu(5000, x.data(), y.data());
    return dot(y, weight);
  };
  loss();
  CHECK(y[4999] == doctest::Approx(x[4999] / (1 + std::exp(-x[4999]))).epsilon(1e-13));
  op.silu_backward(5000, x.data(), weight.data(), d_x.data());
  check_gradient("x", x, d_x, loss, 97);

  cpu_dit_ops<float> const op32{workers(pool)};
  std::vector<float> const far{-1000.f, 1000.f}, one{1.f, 1.f};
  std::vector<float> z(2), d_far(2);
  op32.silu(2, far.data(), z.data());
  op32.silu_backward(2, far.data(), one.data(), d_far.data());
  CHECK(std::abs(z[0]) < 1e-30f);
  CHECK(z[1] == 1000.f);
  CHECK(std::abs(d_far[0]) < 1e-30f);
  CHECK(d_far[1] == 1.f);
}

TEST_CASE_FIXTURE(fixture, "rotate turns the first numbers of query and key heads, and undoes itself") {
  head_shape const s{.tokens = 2 * row_grain + 6, .sequence = row_grain + 3, .q_heads = 2, .kv_heads = 1, .n = 6};
  std::vector<double> const x = normal<double>(std::size_t(s.tokens * s.all_heads() * s.n), 1);
  std::vector<double> rotary(std::size_t(s.sequence * 4)), y = x;
  fill_rotary_table(s.sequence, 4, 100.0, rotary.data());
  op.rotate(s, 4, rotary.data(), false, y.data());
  std::int64_t const t = s.tokens - 1;
  for (std::int64_t h = 0; h < s.all_heads(); ++h) {
    double const *const a = &x[std::size_t((t * 4 + h) * 6)], *const b = &y[std::size_t((t * 4 + h) * 6)];
    for (int i = 0; i < 2; ++i) {
      double const angle = h == 3 ? 0 : double(t % s.sequence) * std::pow(100.0, -2.0 * i / 4);
      CHECK(b[i] == doctest::Approx(a[i] * std::cos(angle) - a[i + 2] * std::sin(angle)).epsilon(1e-11));
      CHECK(b[i + 2] == doctest::Approx(a[i + 2] * std::cos(angle) + a[i] * std::sin(angle)).epsilon(1e-11));
    }
    CHECK(b[4] == a[4]);
    CHECK(b[5] == a[5]);
  }
  op.rotate(s, 4, rotary.data(), true, y.data());
  CHECK(test::relative_error(y, x) < 1e-15);
}

TEST_CASE_FIXTURE(fixture,
                  "squared_error: the weighted mean, its gradient, and rows of weight 0 that may hold anything") {
  constexpr std::int64_t rows = row_grain + 3, n = 9;
  std::vector<double> prediction = normal<double>(rows * n, 1);
  std::vector<double> const target = normal<double>(rows * n, 2);
  std::vector<double> channel(n), row_weight(rows), loss(rows);
  for (std::size_t i = 0; i < n; ++i) channel[i] = 0.5 + double(i);
  for (std::size_t r = 0; r < rows; ++r) row_weight[r] = r % 3 == 1 ? 0 : 0.25 + double(r) / rows;
  for (std::size_t i = n; i < 2 * n; ++i) prediction[i] = NAN;  // row 1 has weight 0
  std::vector<double> d = prediction;
  op.squared_error(rows, n, target.data(), row_weight.data(), channel.data(), d.data(), loss.data());
  for (std::size_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i)
      sum += channel[i] * (prediction[r * n + i] - target[r * n + i]) * (prediction[r * n + i] - target[r * n + i]) / n;
    if (row_weight[r] == 0) {
      REQUIRE(loss[r] == 0.0);
      for (std::size_t i = 0; i < n; ++i) REQUIRE(d[r * n + i] == 0.0);
    } else {
      REQUIRE(loss[r] == doctest::Approx(sum).epsilon(1e-12));
    }
  }
  for (std::size_t i = n; i < 2 * n; ++i) prediction[i] = 0;
  check_gradient(
      "prediction", prediction, d,
      [&] {
        std::vector<double> copy = prediction, each(rows);
        op.squared_error(rows, n, target.data(), row_weight.data(), channel.data(), copy.data(), each.data());
        return dot(each, row_weight);
      },
      31);
}

TEST_CASE("the layers in f32 have f32's error, and the same bits on one thread and on four") {
  auto const all = [&]<class T>(T, int threads) {
    lanewise::thread_pool pool(threads);
    cpu_dit_ops<T> const op{workers(pool)};
    std::vector<float> const x32 = normal<float>(count, 1), d32 = normal<float>(count, 2),
                             v32 = normal<float>(vectors, 3);
    std::vector<T> const x(x32.begin(), x32.end()), d(d32.begin(), d32.end()), v(v32.begin(), v32.end());
    std::vector<T> y(count), inverse(std::size_t(shape.rows())), d_x(count), d_gain(9), d_shift(vectors),
        d_scale(vectors), partial(std::size_t(shape.partial_count(3))), normed(count), statistics(2 * inverse.size()),
        d_normed(count), d_norm(18), row_weight(inverse.size(), T(0.5)), loss(inverse.size()), error = x;
    op.adaptive_norm(shape, 1e-6, x.data(), v.data(), v.data(), v.data(), y.data(), inverse.data());
    op.adaptive_norm_backward(shape, x.data(), v.data(), v.data(), inverse.data(), d.data(), d_x.data(), d_gain.data(),
                              d_shift.data(), d_scale.data(), partial.data());
    op.layer_norm(shape.rows(), 9, 1e-5, x.data(), v.data(), v.data(), normed.data(), statistics.data());
    op.layer_norm_backward(shape.rows(), 9, x.data(), v.data(), statistics.data(), d.data(), d_normed.data(),
                           d_norm.data(), d_norm.data() + 9, partial.data());
    op.squared_error(shape.rows(), 9, d.data(), row_weight.data(), v.data(), error.data(), loss.data());
    std::vector<T> bits;
    for (auto const* part : {&y, &d_x, &d_gain, &d_shift, &d_scale, &normed, &d_normed, &d_norm, &error, &loss})
      bits.insert(bits.end(), part->begin(), part->end());
    return bits;
  };
  std::vector<float> const one = all(float(), 1);
  CHECK(one == all(float(), 4));
  // Sums of some 130 terms: 6e-8 * 4 * sqrt(130).
  CHECK(test::relative_error(one, all(double(), 1)) < 3e-6);
}
