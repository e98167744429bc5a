// AdamW and Muon against their equations in f64, the learning rate's schedule, the random numbers.
#include "adamw.hpp"

#include "model.hpp"
#include "muon.hpp"
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

namespace {

using matrix = std::vector<double>;
matrix product(matrix const& a, matrix const& b, std::size_t inner) {
  std::size_t const m = a.size() / inner, n = b.size() / inner;
  matrix c(m * n);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t l = 0; l < inner; ++l)
      for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[i * inner + l] * b[l * n + j];
  return c;
}
matrix transposed(matrix const& a, std::size_t columns) {
  std::size_t const rows = a.size() / columns;
  matrix t(a.size());
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) t[j * rows + i] = a[i * columns + j];
  return t;
}
/// Five Newton-Schulz steps, always on X X^T, whichever side is the shorter.
matrix orthogonalised(matrix x, std::size_t columns) {
  double square = 0;
  for (double e : x) square += e * e;
  for (double& e : x) e /= std::sqrt(square) + 1e-7;
  for (int i = 0; i < 5; ++i) {
    std::size_t const rows = x.size() / columns;
    matrix const a = product(x, transposed(x, columns), columns), aa = product(a, a, rows);
    matrix b(a.size());
    for (std::size_t j = 0; j < b.size(); ++j) b[j] = -4.7750 * a[j] + 2.0315 * aa[j];
    matrix const bx = product(b, x, rows);
    for (std::size_t j = 0; j < x.size(); ++j) x[j] = 3.4445 * x[j] + bx[j];
  }
  return x;
}

}  // namespace

TEST_CASE("Muon: matrices of 16 and more by its equations, every other tensor by AdamW's") {
  parameter_list list;
  list.add("narrow", {15, 40});
  list.add("wide", {16, 40});
  list.add("gain", {40});
  list.add("tall", {70, 20});
  std::size_t const n = std::size_t(list.count());
  adamw_settings const s{.weight_decay = 0.3, .clip = 2.0};
  muon const optimiser(s, list);
  adamw const plain(s, list);
  CHECK_FALSE(muon::takes(list.all()[0]));
  CHECK(muon::takes(list.all()[1]));
  lanewise::thread_pool pool(3);
  cpu_ops<float> const op{workers(pool)}, planning(workers::planning_for(3));
  step_memory memory;
  memory.graph(0);
  optimiser.update(planning, memory, 1, 0, {}, nullptr);
  memory.plan();
  memory.bind();
  memory.poison_released(true);
  std::vector<float> w = test::normal<float>(n, 1), m(n), v(n), w_plain = w, m_plain(n), v_plain(n);
  std::vector<double> squares(std::size_t(plain.segment_count())), w64(w.begin(), w.end()), m64(n);
  double norm = 0;
  for (int t = 1; t <= 3; ++t) {
    std::vector<float> g = test::normal<float>(n, unsigned(10 + t), t < 3 ? 1.0 : 1e-3);
    matrix const g64(g.begin(), g.end());
    double const rate = 0.01 * t;
    plain.update(
        op, t, rate,
        {plain.segments().data(), g.data(), w_plain.data(), m_plain.data(), v_plain.data(), squares.data(), &norm});
    double const clip = std::min(1.0, s.clip / norm);
    memory.graph(0);
    CHECK(optimiser.update(
              op, memory, t, rate,
              {optimiser.rest().segments().data(), g.data(), w.data(), m.data(), v.data(), squares.data(), &norm},
              g.data()) == doctest::Approx(std::sqrt(test::dot(g64, g64))).epsilon(1e-12));
    for (parameter const& p : list.all())
      if (muon::takes(p)) {
        matrix u(std::size_t(p.count));
        for (std::size_t i = 0; i < u.size(); ++i) {
          std::size_t const at = std::size_t(p.offset) + i;
          m64[at] = 0.95 * m64[at] + clip * g64[at];
          u[i] = clip * g64[at] + 0.95 * m64[at];
        }
        u = orthogonalised(u, std::size_t(p.shape[1]));
        double const scale = 20 * rate * std::sqrt(std::max(1.0, double(p.shape[0]) / double(p.shape[1])));
        for (std::size_t i = 0; i < u.size(); ++i) {
          double& e = w64[std::size_t(p.offset) + i];
          e = (1 - rate * s.weight_decay) * e - scale * u[i];
        }
      }
  }
  for (parameter const& p : list.all()) {
    CAPTURE(p.name);
    auto const begin = p.offset, end = p.offset + p.count;
    std::vector<float> const ours(w.begin() + begin, w.begin() + end);
    if (muon::takes(p)) CHECK(test::relative_error(ours, matrix(w64.begin() + begin, w64.begin() + end)) < 1e-5);
    else CHECK(ours == std::vector<float>(w_plain.begin() + begin, w_plain.begin() + end));
  }
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
