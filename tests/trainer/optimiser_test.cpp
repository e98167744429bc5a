// AdamW against its equations in f64, the learning rate's schedule, the random numbers.
#include "adamw.hpp"

#include "model.hpp"
#include "random.hpp"
#include "support.hpp"

using namespace trainer;

namespace {
model_shape const shape{.vocabulary = 300,
                        .layers = 1,
                        .hidden = 64,
                        .q_heads = 2,
                        .kv_heads = 1,
                        .head_dim = 32,
                        .ffn = 64,
                        .rope_theta = 100};
}

TEST_CASE("three steps equal the equations in f64; gains are not decayed; the norm is clipped") {
  parameter_layout const layout(shape);
  std::size_t const n = std::size_t(layout.full().count());
  REQUIRE(layout.full().all()[0].count > 1 << 14);  // a weight of more than one piece
  adamw_settings const s{.beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-6, .weight_decay = 0.3, .clip = 2.0};
  adamw const optimiser(s, layout.full());
  lanewise::thread_pool pool(3);
  cpu_ops<float> const op{workers(pool)};
  std::vector<float> w = test::normal<float>(n, 1), m(n), v(n);
  std::vector<double> squares(std::size_t(optimiser.segment_count()));
  double norm = 0;
  std::vector<double> w64(w.begin(), w.end()), m64(n), v64(n);
  std::vector<bool> decays(n);
  for (parameter const& p : layout.full().all())
    for (std::int64_t i = 0; i < p.count; ++i) decays[std::size_t(p.offset + i)] = p.is_matrix;
  for (int t = 1; t <= 3; ++t) {
    // The first two norms are far above the clip, the third is below it.
    std::vector<float> const g = test::normal<float>(n, unsigned(10 + t), t < 3 ? 1.0 : 1e-3);
    double square = 0;
    for (float e : g) square += double(e) * double(e);
    double const rate = 0.01 * t;
    optimiser.update(op, t, rate,
                     {optimiser.segments().data(), g.data(), w.data(), m.data(), v.data(), squares.data(), &norm});
    CHECK(norm == doctest::Approx(std::sqrt(square)).epsilon(1e-12));
    CHECK((norm > s.clip) == (t < 3));
    for (std::size_t i = 0; i < n; ++i) {
      double const c = double(g[i]) * std::min(1.0, s.clip / norm);
      m64[i] = s.beta1 * m64[i] + (1 - s.beta1) * c;
      v64[i] = s.beta2 * v64[i] + (1 - s.beta2) * c * c;
      w64[i] -=
          rate * (m64[i] / (1 - std::pow(s.beta1, t)) / (std::sqrt(v64[i] / (1 - std::pow(s.beta2, t))) + s.epsilon) +
                  (decays[i] ? s.weight_decay * w64[i] : 0));
    }
  }
  CHECK(test::relative_error(w, w64) < 1e-6);
  CHECK(test::relative_error(m, m64) < 1e-6);
  CHECK(test::relative_error(v, v64) < 1e-6);
}

TEST_CASE("a gradient that is not finite changes nothing") {
  parameter_layout const layout(shape);
  std::size_t const n = std::size_t(layout.full().count());
  adamw const optimiser({}, layout.full());
  lanewise::thread_pool pool(2);
  cpu_ops<float> const op{workers(pool)};
  std::vector<float> w = test::normal<float>(n, 1), g = test::normal<float>(n, 2), m(n), v(n);
  std::vector<double> squares(std::size_t(optimiser.segment_count()));
  double norm = 0;
  g[n / 2] = NAN;
  std::vector<float> const before = w;
  optimiser.update(op, 1, 0.1,
                   {optimiser.segments().data(), g.data(), w.data(), m.data(), v.data(), squares.data(), &norm});
  CHECK(std::isnan(norm));
  CHECK(w == before);
  CHECK(m == std::vector<float>(n));
}

TEST_CASE("the learning rate rises linearly, then falls by a cosine to a tenth") {
  CHECK(learning_rate_at(1, 10, 110, 2.0) == doctest::Approx(0.2));
  CHECK(learning_rate_at(10, 10, 110, 2.0) == doctest::Approx(2.0));
  CHECK(learning_rate_at(60, 10, 110, 2.0) == doctest::Approx(2.0 * 0.55));
  CHECK(learning_rate_at(110, 10, 110, 2.0) == doctest::Approx(0.2));
  CHECK(learning_rate_at(1, 0, 1, 2.0) == doctest::Approx(0.2));
}

TEST_CASE("random numbers: a function of seed, use and position, with the right moments") {
  CHECK(random_numbers(1, stream::weights, 2).bits() == random_numbers(1, stream::weights, 2).bits());
  CHECK(random_numbers(1, stream::weights, 2).bits() != random_numbers(1, stream::weights, 3).bits());
  CHECK(random_numbers(1, stream::weights, 2).bits() != random_numbers(1, stream::split, 2).bits());
  CHECK(random_numbers(2, stream::weights, 2).bits() != random_numbers(1, stream::weights, 2).bits());
  random_numbers draw(7, stream::sampling);
  constexpr int n = 200000;  // standard errors: mean 0.0022, variance 0.0032, share of one bucket 0.0007
  double sum = 0, square = 0;
  std::vector<int> buckets(10);
  for (int i = 0; i < n; ++i) {
    double const x = draw.normal();
    sum += x;
    square += x * x;
    ++buckets[draw.below(10)];
  }
  CHECK(std::abs(sum / n) < 0.01);
  CHECK(std::abs(square / n - 1) < 0.015);
  for (int b : buckets) CHECK(std::abs(b / double(n) - 0.1) < 0.003);
}
