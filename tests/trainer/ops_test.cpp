// Every layer against its formula written out, its backward against finite differences, and its f32 against its f64.
#include "ops.hpp"

#include <array>

#include "support.hpp"

using namespace trainer;
using test::check_gradient, test::dot, test::normal;

namespace {

/// Rows that are no multiple of the piece size, so that the last piece is short.
constexpr std::int64_t rows = row_grain + 5;

struct fixture {
  lanewise::thread_pool pool{2};
  cpu_ops<double> op{workers(pool)};
  cpu_ops<float> op32{workers(pool)};
};

template <class T>
std::vector<float> to_float(std::vector<T> const& x) {
  return {x.begin(), x.end()};
}

/// f32 results have errors of a few roundings of 6e-8 each, growing with the root of the number of terms, at most 1,000
/// here: 6e-8 * 4 * sqrt(1000) = 8e-6.
constexpr double f32_bar = 8e-6;

}  // namespace

TEST_CASE_FIXTURE(fixture, "linear: y = x W^T + residual, with its gradients") {
  for (auto [in, out] : {std::array{7, 3}, std::array{5, 200}, std::array{150, 4}}) {
    CAPTURE(in);
    CAPTURE(out);
    std::vector<double> x = normal<double>(rows * in, 1), w = normal<double>(out * in, 2),
                        residual = normal<double>(rows * out, 3);
    std::vector<double> const weight = normal<double>(rows * out, 4);
    std::vector<double> y(rows * out), d_x(rows * in), d_w(out * in, 0.5);
    op.linear(rows, in, out, x.data(), w.data(), residual.data(), y.data());
    for (std::int64_t r : {std::int64_t(0), row_grain - 1, row_grain, rows - 1})
      for (int o = 0; o < out; ++o) {
        double sum = residual[r * out + o];
        for (int i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
        REQUIRE(y[r * out + o] == doctest::Approx(sum).epsilon(1e-12));
      }
    auto const loss = [&] {
      op.linear(rows, in, out, x.data(), w.data(), nullptr, y.data());
      return dot(y, weight);
    };
    op.linear_backward(rows, in, out, x.data(), w.data(), weight.data(), d_x.data(), d_w.data());
    for (double& g : d_w) g -= 0.5;  // added to, not overwritten
    check_gradient("x", x, d_x, loss, 97);
    check_gradient("w", w, d_w, loss, 13);

    std::vector<float> const x32 = to_float(x), w32 = to_float(w), weight32 = to_float(weight);
    std::vector<float> d_x32(rows * in), d_w32(out * in);
    op32.linear_backward(rows, in, out, x32.data(), w32.data(), weight32.data(), d_x32.data(), d_w32.data());
    CHECK(test::relative_error(d_x32, d_x) < f32_bar);
    CHECK(test::relative_error(d_w32, d_w) < f32_bar);
  }
}

TEST_CASE_FIXTURE(fixture, "rms_norm: y = g x / sqrt(mean(x^2) + epsilon), with its gradients") {
  constexpr double epsilon = 0.02;
  for (std::int64_t n : {5, 64}) {
    CAPTURE(n);
    std::vector<double> x = normal<double>(rows * n, 1), gain = normal<double>(n, 2);
    std::vector<double> const weight = normal<double>(rows * n, 3);
    std::vector<double> y(rows * n), inverse(rows), partial(partial_count(rows, n));
    op.rms_norm(rows, n, epsilon, x.data(), gain.data(), y.data(), inverse.data());
    for (std::int64_t r : {std::int64_t(0), rows - 1}) {
      double sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += x[r * n + i] * x[r * n + i];
      for (std::int64_t i = 0; i < n; ++i)
        REQUIRE(y[r * n + i] ==
                doctest::Approx(gain[i] * x[r * n + i] / std::sqrt(sum / double(n) + epsilon)).epsilon(1e-12));
    }
    auto const loss = [&] {
      std::vector<double> scale(rows);
      op.rms_norm(rows, n, epsilon, x.data(), gain.data(), y.data(), scale.data());
      return dot(y, weight);
    };
    std::vector<double> d_x(rows * n, 2.0), d_gain(n, 3.0);
    op.rms_norm_backward(rows, n, x.data(), gain.data(), inverse.data(), weight.data(), d_x.data(), d_gain.data(),
                         partial.data());
    for (double& g : d_x) g -= 2.0;
    for (double& g : d_gain) g -= 3.0;
    check_gradient("x", x, d_x, loss, 31);
    check_gradient("gain", gain, d_gain, loss);

    std::vector<float> const x32 = to_float(x), gain32 = to_float(gain), inverse32 = to_float(inverse),
                             weight32 = to_float(weight);
    std::vector<float> d_x32(rows * n), d_gain32(n), partial32(partial.size());
    op32.rms_norm_backward(rows, n, x32.data(), gain32.data(), inverse32.data(), weight32.data(), d_x32.data(),
                           d_gain32.data(), partial32.data());
    CHECK(test::relative_error(d_x32, d_x) < f32_bar);
    CHECK(test::relative_error(d_gain32, d_gain) < f32_bar);
  }
}

TEST_CASE_FIXTURE(fixture, "head_norm: the norm comes before the rotation, on contiguous heads") {
  head_shape const s{.tokens = rows + rows % 7, .sequence = 7, .q_heads = 4, .kv_heads = 2, .n = 6, .epsilon = 0.03};
  std::size_t const qkv_count = std::size_t(s.tokens * s.all_heads() * s.n),
                    qk_count = std::size_t(s.tokens * s.normed_heads() * s.n);
  std::vector<double> qkv = normal<double>(qkv_count, 1), q_gain = normal<double>(6, 2), k_gain = normal<double>(6, 3);
  std::vector<double> const weight = normal<double>(qk_count, 4);
  std::vector<double> rotary(7 * 6), qk(qk_count), inverse(std::size_t(s.tokens * s.normed_heads()));
  fill_rotary_table(7, 6, 100.0, rotary.data());
  op.head_norm(s, qkv.data(), q_gain.data(), k_gain.data(), rotary.data(), qk.data(), inverse.data());

  for (std::int64_t t : {std::int64_t(3), s.tokens - 1})
    for (std::int64_t h = 0; h < 6; ++h) {
      double const* const x = &qkv[(t * 8 + h) * 6];
      double sum = 0, normed[6];
      for (int i = 0; i < 6; ++i) sum += x[i] * x[i];
      for (int i = 0; i < 6; ++i) normed[i] = (h < 4 ? q_gain : k_gain)[i] * x[i] / std::sqrt(sum / 6 + s.epsilon);
      for (int i = 0; i < 3; ++i) {  // pairs (i, i + 3) turn by position * theta^(-2 i / 6)
        double const angle = double(t % 7) * std::pow(100.0, -2.0 * i / 6);
        REQUIRE(qk[(t * 6 + h) * 6 + i] ==
                doctest::Approx(normed[i] * std::cos(angle) - normed[i + 3] * std::sin(angle)).epsilon(1e-10));
        REQUIRE(qk[(t * 6 + h) * 6 + i + 3] ==
                doctest::Approx(normed[i + 3] * std::cos(angle) + normed[i] * std::sin(angle)).epsilon(1e-10));
      }
    }

  auto const loss = [&] {
    std::vector<double> scale(inverse.size());
    op.head_norm(s, qkv.data(), q_gain.data(), k_gain.data(), rotary.data(), qk.data(), scale.data());
    return dot(qk, weight);
  };
  constexpr double untouched = 7.0;
  std::vector<double> d_qkv(qkv_count, untouched), d_q_gain(6), d_k_gain(6),
      partial(std::size_t(partial_count(s.tokens, 12)));
  op.head_norm_backward(s, qkv.data(), q_gain.data(), k_gain.data(), rotary.data(), inverse.data(), weight.data(),
                        d_qkv.data(), d_q_gain.data(), d_k_gain.data(), partial.data());
  for (std::int64_t t = 0; t < s.tokens; ++t)
    for (std::int64_t i = 6 * 6; i < 8 * 6; ++i) {
      REQUIRE(d_qkv[t * 48 + i] == untouched);  // the values' part belongs to attention
      d_qkv[t * 48 + i] = 0;
    }
  check_gradient("qkv", qkv, d_qkv, loss, 37);
  check_gradient("q_gain", q_gain, d_q_gain, loss);
  check_gradient("k_gain", k_gain, d_k_gain, loss);
}

TEST_CASE_FIXTURE(fixture,
                  "head_norm without a table equals position 0, which turns nothing; queries or keys may be alone") {
  for (auto [q_heads, kv_heads] : {std::array{2, 1}, std::array{3, 0}, std::array{0, 2}}) {
    head_shape const s{.tokens = rows, .sequence = 1, .q_heads = q_heads, .kv_heads = kv_heads, .n = 6};
    std::size_t const wide = std::size_t(s.tokens * s.all_heads() * s.n),
                      normed = std::size_t(s.tokens * s.normed_heads() * s.n);
    std::vector<double> const qkv = normal<double>(wide, 1), q_gain = normal<double>(6, 2),
                              k_gain = normal<double>(6, 3), d_qk = normal<double>(normed, 4);
    std::vector<double> table(6);
    fill_rotary_table(1, 6, 100.0, table.data());
    auto const run = [&](double const* rotary) {
      std::vector<double> qk(normed), inverse(normed / 6), d_qkv(wide), d_q(6), d_k(6),
          partial(std::size_t(partial_count(rows, 12)));
      op.head_norm(s, qkv.data(), q_gain.data(), k_gain.data(), rotary, qk.data(), inverse.data());
      op.head_norm_backward(s, qkv.data(), q_gain.data(), k_gain.data(), rotary, inverse.data(), d_qk.data(),
                            d_qkv.data(), d_q.data(), d_k.data(), partial.data());
      qk.insert(qk.end(), d_qkv.begin(), d_qkv.end());
      qk.insert(qk.end(), d_q.begin(), d_q.end());
      qk.insert(qk.end(), d_k.begin(), d_k.end());
      return qk;
    };
    std::vector<double> const with = run(table.data());
    CHECK(std::any_of(with.begin(), with.end(), [](double x) { return x != 0; }));
    CHECK(run(nullptr) == with);
  }
}

TEST_CASE_FIXTURE(fixture, "swiglu: y = up * gate / (1 + exp(-gate)), with its gradient") {
  constexpr std::int64_t n = 9;
  std::vector<double> gate_up = normal<double>(rows * 2 * n, 1, 3.0);
  std::vector<double> const weight = normal<double>(rows * n, 2);
  std::vector<double> y(rows * n), d_gate_up(gate_up.size());
  auto const loss = [&] {
    op.swiglu(rows, n, gate_up.data(), y.data());
    return dot(y, weight);
  };
  loss();
  for (std::int64_t i = 0; i < n; ++i) {
    double const *const gate = &gate_up[(rows - 1) * 2 * n], *const up = gate + n;
    REQUIRE(y[(rows - 1) * n + i] == doctest::Approx(up[i] * gate[i] / (1 + std::exp(-gate[i]))).epsilon(1e-12));
  }
  op.swiglu_backward(rows, n, gate_up.data(), weight.data(), d_gate_up.data());
  check_gradient("gate_up", gate_up, d_gate_up, loss, 7);

  std::vector<float> const gate_up32 = to_float(gate_up), weight32 = to_float(weight);
  std::vector<float> y32(y.size()), d32(d_gate_up.size());
  op32.swiglu(rows, n, gate_up32.data(), y32.data());
  op32.swiglu_backward(rows, n, gate_up32.data(), weight32.data(), d32.data());
  CHECK(test::relative_error(y32, y) < f32_bar);
  CHECK(test::relative_error(d32, d_gate_up) < f32_bar);
}

TEST_CASE_FIXTURE(fixture, "swiglu in f32 stays finite where exp would overflow") {
  std::vector<float> const gate_up{-1000.f, -89.f, 89.f, 1000.f, 1.f, 1.f, 1.f, 1.f};
  std::vector<float> y(4), d(8);
  std::vector<float> const d_y(4, 1.f);
  op32.swiglu(1, 4, gate_up.data(), y.data());
  op32.swiglu_backward(1, 4, gate_up.data(), d_y.data(), d.data());
  CHECK(std::abs(y[0]) < 1e-30f);
  CHECK(std::abs(y[1]) < 1e-30f);
  CHECK(y[2] == 89.f);
  CHECK(y[3] == 1000.f);
  for (float g : d) CHECK(std::isfinite(g));
}

TEST_CASE_FIXTURE(fixture, "embed copies rows, its backward sums them") {
  constexpr std::int64_t n = 37, entries = 5;
  std::vector<std::int32_t> tokens(rows);
  for (std::int64_t r = 0; r < rows; ++r) tokens[std::size_t(r)] = std::int32_t(r * 3 % 4);  // entry 4 is never used
  std::vector<double> const table = normal<double>(entries * n, 1), d_x = normal<double>(rows * n, 2);
  std::vector<double> x(rows * n), d_table(entries * n, 1.0), expected(entries * n, 1.0);
  op.embed(rows, n, tokens.data(), table.data(), x.data());
  op.embed_backward(rows, n, tokens.data(), d_x.data(), d_table.data());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < n; ++i) {
      REQUIRE(x[r * n + i] == table[tokens[std::size_t(r)] * n + i]);
      expected[tokens[std::size_t(r)] * n + i] += d_x[r * n + i];
    }
  CHECK(d_table == expected);
}

TEST_CASE_FIXTURE(fixture, "cross_entropy: -log softmax, its gradient, and rows without a target") {
  for (std::int64_t n : {5, 256}) {
    CAPTURE(n);
    std::vector<double> logits = normal<double>(rows * n, 1, 4.0);
    std::vector<std::int32_t> targets(rows);
    for (std::int64_t r = 0; r < rows; ++r) targets[std::size_t(r)] = r % 3 == 2 ? no_target : std::int32_t(r * 7 % n);
    double const weight = 0.25;
    std::vector<double> loss(rows), d = logits;
    op.cross_entropy(rows, n, targets.data(), weight, d.data(), loss.data());
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += std::exp(logits[r * n + i]);
      double const expected =
          targets[std::size_t(r)] == no_target ? 0 : std::log(sum) - logits[r * n + targets[std::size_t(r)]];
      REQUIRE(loss[std::size_t(r)] == doctest::Approx(expected).epsilon(1e-12));
      if (targets[std::size_t(r)] == no_target)
        for (std::int64_t i = 0; i < n; ++i) REQUIRE(d[r * n + i] == 0.0);
    }
    check_gradient(
        "logits", logits, d,
        [&] {
          std::vector<double> copy = logits, each(rows);
          op.cross_entropy(rows, n, targets.data(), weight, copy.data(), each.data());
          double sum = 0;
          for (double l : each) sum += weight * l;
          return sum;
        },
        41);

    std::vector<float> d32 = to_float(logits), loss32(rows);
    op32.cross_entropy(rows, n, targets.data(), float(weight), d32.data(), loss32.data());
    CHECK(test::relative_error(d32, d) < f32_bar);
    CHECK(test::relative_error(loss32, loss) < f32_bar);
  }
}

TEST_CASE_FIXTURE(fixture, "a frozen weight costs no gradient and changes no other") {
  constexpr std::int64_t n = 24, in = 3 * n, out = n;  // 24: four heads of 6, queries, keys and values
  std::vector<float> const x = normal<float>(rows * in, 1), w = normal<float>(out * in, 2), gain = normal<float>(in, 3),
                           d_y = normal<float>(rows * in, 4), inverse(rows * 4, 0.7f);
  head_shape const s{.tokens = rows, .sequence = rows, .q_heads = 2, .kv_heads = 2, .n = 12};
  std::vector<float> rotary(rows * 12), partial(std::size_t(partial_count(rows, in)));
  fill_rotary_table(rows, 12, 100.0, rotary.data());
  auto const run = [&](bool frozen) {
    std::vector<float> d_linear(rows * in), d_norm(rows * in), d_heads(rows * in), d_w(out * in), d_gain(in);
    auto const unless_frozen = [&](std::vector<float>& v) { return frozen ? nullptr : v.data(); };
    op32.linear_backward(rows, in, out, x.data(), w.data(), d_y.data(), d_linear.data(), unless_frozen(d_w));
    op32.rms_norm_backward(rows, in, x.data(), gain.data(), inverse.data(), d_y.data(), d_norm.data(),
                           unless_frozen(d_gain), unless_frozen(partial));
    op32.head_norm_backward(s, x.data(), gain.data(), gain.data(), rotary.data(), inverse.data(), d_y.data(),
                            d_heads.data(), unless_frozen(d_gain), unless_frozen(d_gain), unless_frozen(partial));
    d_linear.insert(d_linear.end(), d_norm.begin(), d_norm.end());
    d_linear.insert(d_linear.end(), d_heads.begin(), d_heads.end());
    return d_linear;
  };
  CHECK(run(true) == run(false));
  std::vector<float> d_w(out * in), both(out * in), d_x(rows * in);
  op32.linear_backward(rows, in, out, x.data(), w.data(), d_y.data(), nullptr, d_w.data());
  op32.linear_backward(rows, in, out, x.data(), w.data(), d_y.data(), d_x.data(), both.data());
  CHECK(d_w == both);
}

TEST_CASE("every layer gives the same bits on one thread and on four") {
  constexpr std::int64_t n = 160;
  std::vector<float> const x = normal<float>(rows * n, 1), w = normal<float>(n * n, 2), gain = normal<float>(n, 3),
                           d_y = normal<float>(rows * n, 4);
  auto const all = [&](int threads) {
    lanewise::thread_pool pool(threads);
    cpu_ops<float> const op{workers(pool)};
    std::vector<float> y(rows * n), inverse(rows), d_x(rows * n), d_gain(n),
        partial(std::size_t(partial_count(rows, n))), d_w(n * n), e(rows * n);
    op.rms_norm(rows, n, norm_epsilon, x.data(), gain.data(), y.data(), inverse.data());
    op.rms_norm_backward(rows, n, x.data(), gain.data(), inverse.data(), d_y.data(), d_x.data(), d_gain.data(),
                         partial.data());
    op.linear(rows, n, n, x.data(), w.data(), y.data(), e.data());
    op.linear_backward(rows, n, n, e.data(), w.data(), d_y.data(), y.data(), d_w.data());
    std::vector<float> bits;
    for (auto const* v : {&y, &d_x, &d_gain, &d_w, &e}) bits.insert(bits.end(), v->begin(), v->end());
    return bits;
  };
  CHECK(all(1) == all(4));
}
