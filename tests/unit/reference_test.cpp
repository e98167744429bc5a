// The f64 reference against what does not depend on it: a hand-computed example, central differences of its own
// forward, and a second way of handling grouped heads. What the kernels are compared with must be right itself.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <lanewise/reference.hpp>
#include <lanewise/variants/causal.hpp>
#include <lanewise/variants/documents.hpp>
#include <lanewise/variants/key_padding.hpp>
#include <lanewise/variants/sink.hpp>
#include <lanewise/variants/window.hpp>
#include <limits>
#include <random>
#include <vector>

using namespace lanewise;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Multiples of 1/256 in [-2, 2]: steps of 1/256 from them are exact in f32.
template <class T>
std::vector<T> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<T> r(count);
  for (T& x : r) x = T((std::int64_t(engine() % 1025) - 512) / 256.0);
  return r;
}

/// Inputs of one call, in f64, with the weights of the loss sum(o * w) + sum(lse * w_lse).
struct call {
  extents q_size, k_size;
  std::vector<double> q = random_values<double>(q_size.count(), 1), k = random_values<double>(k_size.count(), 2),
                      v = random_values<double>(k_size.count(), 3), w = random_values<double>(q_size.count(), 4);
  std::vector<float> w_lse = random_values<float>(q_size.count() / q_size.head_dim, 5);
  double scale = 0.4;

  reference::problem<double> problem(bool gradients) const {
    reference::problem<double> p{
        .q = {q.data(), q_size}, .k = {k.data(), k_size}, .v = {v.data(), k_size}, .scale = scale};
    if (gradients) {
      p.d_o = {w.data(), q_size};
      p.d_lse = {w_lse.data(), {q_size.batch, q_size.sequence, q_size.heads, 1}};
    }
    return p;
  }
};

/// Grouped heads, more keys than queries, two batch elements.
call small() { return {.q_size = {2, 3, 4, 4}, .k_size = {2, 5, 2, 4}}; }

template <class F>
double loss(call const& c, F const& f) {
  auto const r = reference::attention(c.problem(false), f);
  double sum = 0;
  for (std::size_t i = 0; i < r.o.size(); ++i) sum += r.o[i] * c.w[i];
  for (std::size_t i = 0; i < r.lse.size(); ++i) sum += r.lse[i] * c.w_lse[i];
  return sum;
}

/// Fourth-order central difference in the step h.
template <class T, class Loss>
double derivative(T& x, T h, Loss const& value) {
  T const kept = x;
  auto const slope = [&](T step) {
    x = kept + step;
    double const above = value();
    x = kept - step;
    double const below = value();
    x = kept;
    return (above - below) / (2.0 * double(step));
  };
  return (4 * slope(h / 2) - slope(h)) / 3;
}

void compare(std::vector<double> const& got, std::vector<double> const& expected, double tolerance) {
  REQUIRE(got.size() == expected.size());
  double largest = 0, worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    double const error = std::abs(got[i] - expected[i]);
    if (!(error <= worst)) worst = error, where = i;
  }
  CAPTURE(where);
  CHECK(largest > 1e-3);
  CHECK(worst <= tolerance * std::max(1.0, largest));
}

/// d_q, d_k, d_v of the reference against differences of its forward: truncation at the step 1/256 is h^4/480 of the
/// fifth derivative, about 1e-9 here.
template <class F>
void check_inputs(F const& f, call c = small()) {
  auto const r = reference::attention(c.problem(true), f);
  auto const numeric = [&](std::vector<double>& x) {
    std::vector<double> d;
    for (double& e : x) d.push_back(derivative(e, 1.0 / 1024, [&] { return loss(c, f); }));
    return d;
  };
  SUBCASE("d_q") { compare(r.d_q, numeric(c.q), 1e-8); }
  SUBCASE("d_k") { compare(r.d_k, numeric(c.k), 1e-8); }
  SUBCASE("d_v") { compare(r.d_v, numeric(c.v), 1e-8); }
}

/// The gradient of parameter I, whose values `x` the variant reads.
template <int I, class F>
void check_parameter(F const& f, std::vector<float>& x, double tolerance = 1e-7) {
  call const c = small();
  auto const r = reference::attention(c.problem(true), f);
  std::vector<double> d;
  for (float& e : x) d.push_back(derivative(e, 1.f / 256, [&] { return loss(c, f); }));
  compare(r.parameters.at(I), d, tolerance);
}

/// A user's variant, as the head of variant.hpp has it.
struct capped_window {
  float cap;
  int width;
  bool operator()(position at) const { return at.k <= at.q + 2 && at.q + 2 - at.k < width; }
  float operator()(float s, position) const { return cap * std::tanh(s / cap); }
  float grad(float s, position) const {
    float const t = std::tanh(s / cap);
    return 1 - t * t;
  }
};

/// The same in f64 as well, and with a parameter: the cap of each head.
struct capped_window_f64 : capped_window {
  parameter_view<float const> caps;
  parameter_view<float> d_caps;
  double cap_of(position at) const { return caps.at(at.batch, at.head, at.q, at.k); }
  using capped_window::operator();
  using capped_window::grad;
  double operator()(double s, position at) const { return cap_of(at) * std::tanh(s / cap_of(at)); }
  double grad(double s, position at) const {
    double const t = std::tanh(s / cap_of(at));
    return 1 - t * t;
  }
  parameter_view<float> parameter_gradient() const { return d_caps; }
  double parameter_factor(double s, position at) const {
    double const t = std::tanh(s / cap_of(at));
    return t - s / cap_of(at) * (1 - t * t);
  }
};

template <class T>
struct gqa {
  std::int64_t ratio;
  extents full;
  /// [B, S, Hkv, D] -> [B, S, Hq, D]
  std::vector<T> expand(std::vector<T> const& x) const {
    std::vector<T> r(full.count());
    for (std::int64_t i = 0; i < full.count(); ++i) {
      std::int64_t const c = i % full.head_dim, h = i / full.head_dim % full.heads,
                         rest = i / full.head_dim / full.heads;
      r[i] = x[(rest * (full.heads / ratio) + h / ratio) * full.head_dim + c];
    }
    return r;
  }
  /// The gradient of the heads that were expanded: the sum over those that share one.
  std::vector<T> fold(std::vector<T> const& x) const {
    std::vector<T> r(full.count() / ratio);
    for (std::int64_t i = 0; i < full.count(); ++i) {
      std::int64_t const c = i % full.head_dim, h = i / full.head_dim % full.heads,
                         rest = i / full.head_dim / full.heads;
      r[(rest * (full.heads / ratio) + h / ratio) * full.head_dim + c] += x[i];
    }
    return r;
  }
};

double distance(std::vector<double> const& x, std::vector<double> const& y) {
  REQUIRE(x.size() == y.size());
  double d = 0;
  for (std::size_t i = 0; i < x.size(); ++i) d = std::max(d, std::abs(x[i] - y[i]));
  return d;
}

}  // namespace

TEST_CASE("two queries, two keys, by hand") {
  // scores (0, log 3) and (0, 0): p = (1/4, 3/4) and (1/2, 1/2)
  call c{.q_size = {1, 2, 1, 2}, .k_size = {1, 2, 1, 2}};
  double const log3 = std::log(3.0);
  c.q = {1, 0, 0, 1}, c.k = {0, 0, log3, 0}, c.v = {4, 0, 0, 4}, c.w = {1, 0, 0, 0}, c.w_lse = {0, 2}, c.scale = 1;
  auto const r = reference::attention(c.problem(true), full{});
  CHECK(distance(r.o, {1, 3, 2, 2}) < 1e-15);
  CHECK(distance(r.lse, {std::log(4.0), std::log(2.0)}) < 1e-15);
  // row 0: dP = (4, 0), delta = 1, dS = (3/4, -3/4); row 1: dS = p dLSE = (1, 1)
  CHECK(distance(r.d_v, {0.25, 0, 0.75, 0}) < 1e-15);
  CHECK(distance(r.d_q, {-0.75 * log3, 0, log3, 0}) < 1e-15);
  CHECK(distance(r.d_k, {0.75, 1, -0.75, 1}) < 1e-15);
}

TEST_CASE("gradients are the derivatives of the forward: masks") {
  std::int32_t const lengths[] = {4, 2}, cu_q[] = {0, 1, 3}, cu_k[] = {0, 3, 5};
  std::uint32_t const words[] = {0b10110, 0b01101};
  call const square{.q_size = {2, 4, 2, 4}, .k_size = {2, 4, 2, 4}};
  SUBCASE("full") { check_inputs(full{}); }
  SUBCASE("causal_top_left") { check_inputs(causal_top_left{}); }
  SUBCASE("causal_bottom_right") { check_inputs(causal_bottom_right{}); }
  SUBCASE("causal_bottom_right, empty rows") {
    check_inputs(causal_bottom_right{}, {.q_size = {1, 5, 2, 4}, .k_size = {1, 3, 2, 4}});
  }
  SUBCASE("causal_offset") { check_inputs(causal_offset{1}); }
  SUBCASE("window") { check_inputs(window{1, 1}); }
  SUBCASE("window_bottom_right") { check_inputs(window_bottom_right{1, 0}); }
  SUBCASE("key_padding") { check_inputs(key_padding{lengths}); }
  SUBCASE("key_padding_bits") { check_inputs(key_padding_bits{words, 1}); }
  SUBCASE("self_padding") { check_inputs(self_padding{lengths}, square); }
  SUBCASE("documents") { check_inputs(documents{cu_q, cu_k, 2}); }
  SUBCASE("documents, each causal") { check_inputs(documents{cu_q, cu_k, 2, causal_bottom_right{}}); }
}

TEST_CASE("gradients are the derivatives of the forward: scores and sinks") {
  std::vector<float> b = random_values<float>(2 * 3 * 5, 7), shared = random_values<float>(4 * 5, 8);
  std::vector<float> slope = {0.5f, 0.25f, 0.125f, 1.f}, logit = {0.5f, -1.f, 2.f, 0.f};
  std::vector<float> d_b(b.size()), d_shared(shared.size()), d_slope(4), d_logit(4);
  bias const over_heads{.b = {b.data(), 2, 1, 3, 5}, .d_b = {d_b.data(), 2, 1, 3, 5}};
  bias const over_batch_and_q{.b = {shared.data(), 1, 4, 1, 5}, .d_b = {d_shared.data(), 1, 4, 1, 5}};
  alibi const slopes{.slope = {slope.data(), 1, 4, 1, 1}, .d_slope = {d_slope.data(), 1, 4, 1, 1}};
  alibi const slopes_right{.slope = slopes.slope, .d_slope = slopes.d_slope, .offset = 2};
  sink const logits{.logit = {logit.data(), 1, 4, 1, 1}, .d_logit = {d_logit.data(), 1, 4, 1, 1}};
  SUBCASE("softcap") { check_inputs(softcap{1.5f}); }
  SUBCASE("bias") { check_inputs(over_heads); }
  SUBCASE("bias, its own, shared by heads") { check_parameter<0>(over_heads, b); }
  SUBCASE("bias, its own, shared by batch and queries") { check_parameter<0>(over_batch_and_q, shared); }
  SUBCASE("alibi") { check_inputs(slopes); }
  SUBCASE("alibi, slopes") { check_parameter<0>(slopes, slope); }
  SUBCASE("alibi_bottom_right") { check_inputs(alibi_bottom_right{slopes.slope, slopes.d_slope}); }
  SUBCASE("alibi with an offset") { check_inputs(slopes_right); }
  SUBCASE("alibi with an offset, slopes") { check_parameter<0>(slopes_right, slope); }
  SUBCASE("sink") { check_inputs(logits); }
  SUBCASE("sink, logits") { check_parameter<0>(logits, logit); }
  SUBCASE("sink with empty rows, logits") { check_parameter<0>(combine{logits, causal_offset{-1}}, logit); }

  // a score after a score, so that each grad must be taken where the one before it has led
  combine const all{softcap{1.5f}, window{2, 1}, over_heads, slopes, softcap{2.5f}, logits};
  SUBCASE("combine") { check_inputs(all); }
  SUBCASE("combine, bias") { check_parameter<0>(all, b); }
  SUBCASE("combine, slopes") { check_parameter<1>(all, slope); }
  SUBCASE("combine, logits") { check_parameter<2>(all, logit); }
}

TEST_CASE("a bias in bf16 enters as the number it is") {
  call const c = small();
  std::vector<float> wide(15);
  std::vector<bf16> narrow(15);
  for (int i = 0; i < 15; ++i) wide[i] = to_float(narrow[i] = from_float<bf16>(0.37f * float(i % 7) - 1.f));
  auto const from_f32 = reference::attention(c.problem(true), bias{.b = {wide.data(), 1, 1, 3, 5}});
  auto const from_bf16 = reference::attention(c.problem(true), basic_bias<bf16>{.b = {narrow.data(), 1, 1, 3, 5}});
  CHECK(distance(from_f32.o, from_bf16.o) == 0);
}

TEST_CASE("gradients are the derivatives of the forward: a variant of the user's") {
  std::vector<float> caps = {1.f, 1.5f, 2.f, 0.75f}, d_caps(4);
  capped_window_f64 const mine{{1.5f, 4}, {caps.data(), 1, 4, 1, 1}, {d_caps.data(), 1, 4, 1, 1}};
  SUBCASE("inputs") { check_inputs(mine); }
  SUBCASE("parameter") { check_parameter<0>(mine, caps); }
  SUBCASE("where it has only f32, its rounding is all that differs") {
    for (float& x : caps) x = 1.5f;
    call const c = small();
    auto const coarse = reference::attention(c.problem(true), capped_window{1.5f, 4});
    auto const fine = reference::attention(c.problem(true), mine);
    CHECK(distance(coarse.o, fine.o) < 1e-6);
    CHECK(distance(coarse.d_q, fine.d_q) < 2e-6);
    CHECK(distance(coarse.d_q, fine.d_q) > 0);
  }
}

TEST_CASE("grouped heads: the direct way, and expanding the heads then folding the gradients") {
  for (std::int64_t batch : {1, 2, 3})
    for (std::int64_t ratio : {1, 2, 4, 8}) {
      CAPTURE(batch);
      CAPTURE(ratio);
      call c{.q_size = {batch, 4, 8, 4}, .k_size = {batch, 6, 8 / ratio, 4}};
      auto const direct = reference::attention(c.problem(true), causal_bottom_right{});
      gqa<double> const heads{ratio, {batch, 6, 8, 4}};
      call wide = c;
      wide.k_size = heads.full, wide.k = heads.expand(c.k), wide.v = heads.expand(c.v);
      auto const expanded = reference::attention(wide.problem(true), causal_bottom_right{});
      CHECK(distance(direct.o, expanded.o) == 0);
      CHECK(distance(direct.lse, expanded.lse) == 0);
      CHECK(distance(direct.d_q, expanded.d_q) == 0);
      CHECK(distance(direct.d_k, heads.fold(expanded.d_k)) < 1e-13);
      CHECK(distance(direct.d_v, heads.fold(expanded.d_v)) < 1e-13);
    }
}

TEST_CASE("threads change nothing, strides change nothing") {
  call c{.q_size = {2, 5, 6, 4}, .k_size = {2, 7, 3, 4}};
  auto problem = c.problem(true);
  auto const one = reference::attention(problem, causal_bottom_right{});
  problem.threads = 3;
  auto const three = reference::attention(problem, causal_bottom_right{});
  CHECK(distance(one.d_k, three.d_k) == 0);
  CHECK(distance(one.o, three.o) == 0);

  std::vector<double> turned(c.k.size());  // k as [B, H, S, D]
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t s = 0; s < 7; ++s)
      for (std::int64_t h = 0; h < 3; ++h)
        for (std::int64_t x = 0; x < 4; ++x) turned[((b * 3 + h) * 7 + s) * 4 + x] = c.k[((b * 7 + s) * 3 + h) * 4 + x];
  problem.k = {turned.data(), c.k_size, {84, 4, 28}};
  CHECK(distance(one.d_q, reference::attention(problem, causal_bottom_right{}).d_q) == 0);
}

TEST_CASE("rows without keys, keys without rows") {
  call c{.q_size = {1, 5, 1, 4}, .k_size = {1, 3, 1, 4}};
  auto const clean = reference::attention(c.problem(true), causal_bottom_right{});
  for (int i = 0; i < 8; ++i) {  // rows 0 and 1 see nothing
    CHECK(clean.o[i] == 0);
    CHECK(clean.d_q[i] == 0);
    c.q[i] = c.w[i] = not_a_number;
  }
  CHECK(clean.lse[0] == 0);
  CHECK(clean.lse[1] == 0);
  CHECK(clean.lse[2] != 0);
  auto const poisoned = reference::attention(c.problem(true), causal_bottom_right{});
  CHECK(distance(clean.d_k, poisoned.d_k) == 0);
  CHECK(distance(clean.d_v, poisoned.d_v) == 0);
  auto problem = c.problem(true);
  problem.empty_lse = empty_lse::minus_infinity;
  auto const mergeable = reference::attention(problem, causal_bottom_right{});
  CHECK(mergeable.lse[1] == -std::numeric_limits<double>::infinity());
  CHECK(distance(mergeable.d_k, clean.d_k) == 0);

  call columns{.q_size = {1, 2, 1, 4}, .k_size = {1, 4, 1, 4}};  // keys 2 and 3 are seen by no row
  auto const before = reference::attention(columns.problem(true), causal_top_left{});
  for (int i = 8; i < 16; ++i) {
    CHECK(before.d_k[i] == 0);
    CHECK(before.d_v[i] == 0);
    columns.k[i] = columns.v[i] = not_a_number;
  }
  CHECK(distance(before.d_q, reference::attention(columns.problem(true), causal_top_left{}).d_q) == 0);
}

TEST_CASE("a score of minus infinity is a key of weight zero; a row of nothing else is empty") {
  call c{.q_size = {1, 2, 1, 4}, .k_size = {1, 3, 1, 4}};
  std::vector<float> b(6, 0.f);
  b[1] = b[3] = b[4] = b[5] = -infinity;
  auto const r = reference::attention(c.problem(true), bias{.b = {b.data(), 1, 1, 2, 3}});
  CHECK(r.lse[1] == 0);
  for (int i = 4; i < 8; ++i) CHECK(r.o[i] == 0);
  for (int i = 4; i < 8; ++i) CHECK(r.d_v[i] == 0);
  CHECK(distance(r.d_q, r.d_q) == 0);  // no NaN
}

TEST_CASE("zero lengths are legal, sizes that do not fit are refused with the numbers") {
  call no_keys{.q_size = {2, 3, 2, 4}, .k_size = {2, 0, 1, 4}};
  auto const r = reference::attention(no_keys.problem(true), full{});
  CHECK(r.o == std::vector<double>(48, 0.0));
  CHECK(r.d_k.empty());
  call nothing{.q_size = {0, 3, 2, 4}, .k_size = {0, 3, 1, 4}};
  CHECK(reference::attention(nothing.problem(true), full{}).o.empty());
  call odd{.q_size = {1, 2, 3, 4}, .k_size = {1, 2, 2, 4}};
  CHECK_THROWS_WITH(reference::attention(odd.problem(true), full{}),
                    "reference: q [1, 2, 3, 4] and k [1, 2, 2, 4], v or d_o do not fit");
}

TEST_CASE("same_precision rounds P, dS and outputs, and nothing more coarsely") {
  extents const size{1, 40, 2, 16};
  auto const values = [&](unsigned seed) {
    std::vector<bf16> r;
    for (double x : random_values<double>(size.count(), seed)) r.push_back(from_float<bf16>(float(x)));
    return r;
  };
  auto const q = values(1), k = values(2), v = values(3), w = values(4);
  reference::problem<bf16> const p{
      .q = {q.data(), size}, .k = {k.data(), size}, .v = {v.data(), size}, .d_o = {w.data(), size}, .scale = 0.25};
  auto const r = reference::attention(p, full{});
  constexpr config storage_out{.head_dim = 16, .precision = precision::bf16};
  constexpr config f32_out{.head_dim = 16, .precision = precision::bf16, .gradient = gradient_type::f32};
  auto const low = reference::attention(p, full{}, reference::same_precision<storage_out>);
  auto const wide = reference::attention(p, full{}, reference::same_precision<f32_out>);
  auto const single = reference::attention(p, full{},
                                           reference::arithmetic{reference::number::f32, reference::number::f32,
                                                                 reference::number::f32, reference::number::f32});
  auto const relative = [](std::vector<double> const& x, std::vector<double> const& y) {
    double d = 0, n = 0;
    for (std::size_t i = 0; i < x.size(); ++i) d += (x[i] - y[i]) * (x[i] - y[i]), n += y[i] * y[i];
    return std::sqrt(d / n);
  };
  // the unit roundoff is 2^-9 for bf16 and 2^-24 for f32; a rounding to nearest leaves some 0.4 of it in this norm
  for (auto const& [x, y] : {std::pair{&low.o, &r.o}, {&low.d_v, &r.d_v}}) {
    CHECK(relative(*x, *y) > 0x1p-11);
    CHECK(relative(*x, *y) < 0x1p-8);
  }
  CHECK(relative(low.d_q, r.d_q) > 0x1p-11);
  CHECK(relative(low.d_q, r.d_q) < 0x1p-7);
  CHECK(relative(wide.d_q, r.d_q) > 0x1p-12);  // dS and o are still rounded
  CHECK(relative(wide.d_q, r.d_q) < relative(low.d_q, r.d_q));
  CHECK(relative(single.d_q, r.d_q) < 1e-6);
  CHECK(relative(single.d_q, r.d_q) > 1e-9);
  for (double x : low.d_k) CHECK(x == to_float(from_float<bf16>(float(x))));
  for (double x : low.o) CHECK(x == to_float(from_float<bf16>(float(x))));
  CHECK(std::any_of(wide.d_k.begin(), wide.d_k.end(),
                    [](double x) { return x != to_float(from_float<bf16>(float(x))); }));
}
