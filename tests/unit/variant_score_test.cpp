// Scores of stock variants and of combine: values and derivatives against f64 definitions written out here, and against
// central differences of the score itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <lanewise/variants.hpp>

using namespace lanewise;

namespace {

constexpr double unit = 0x1p-24;  // f32 unit roundoff
constexpr float scores[] = {-30.f, -4.5f, -1.f, -0.125f, 0.f, 0.03125f, 0.75f, 2.f, 11.f};
constexpr shape lengths{2, 3, 4, 5};

template <class Each>
void at_every_position(Each const& each) {
  for (std::int32_t b = 0; b < lengths.batch; ++b)
    for (std::int32_t h = 0; h < lengths.heads; ++h)
      for (std::int32_t q = 0; q < lengths.q; ++q)
        for (std::int32_t k = 0; k < lengths.k; ++k) each(position{b, h, q, k});
}

/// |got - want| <= bound, reported with the numbers.
void near(double got, double want, double bound) {
  INFO("got ", got, ", want ", want, ", bound ", bound);
  CHECK(std::abs(got - want) <= bound);
}

/// grad is the slope of the score. A central difference of f32 values errs by their rounding, `ulps` units of the
/// largest intermediate value (at most `largest`), over h, and by h^2/6 times the third derivative.
template <class F>
void check_grad(F const& f, double largest, double third_derivative, double ulps = 2) {
  constexpr float h = 0x1p-6f;
  at_every_position([&](position at) {
    for (float s : scores) {
      double const slope = (double(score(f, s + h, at)) - double(score(f, s - h, at))) / (2.0 * h);
      near(score_grad(f, s, at), slope, ulps * unit * largest / h + h * h / 6 * third_derivative + 4 * unit);
    }
  });
}

/// Parameters of a test: each element differs, and one can be shifted.
struct parameter {
  std::int64_t size[4];
  std::vector<float> values, gradient;
  parameter(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) : size{b, h, q, k} {
    for (std::int64_t i = 0; i < b * h * q * k; ++i) values.push_back(0.25f + 0.0625f * float(i % 13));
    gradient.resize(values.size());
  }
  parameter_view<float const> view() const { return {values.data(), size[0], size[1], size[2], size[3]}; }
  parameter_view<float> d_view() { return {gradient.data(), size[0], size[1], size[2], size[3]}; }
  /// The element a position shares, by its dense index.
  float& shared_by(position at) {
    std::int64_t const index[] = {at.batch, at.head, at.q, at.k};
    std::int64_t i = 0;
    for (int x = 0; x < 4; ++x) i = i * size[x] + (size[x] == 1 ? 0 : index[x]);
    return values[std::size_t(i)];
  }
};

/// parameter_factor<I> is the slope of the final score in the parameter's own element; make() builds the variant anew.
template <int I, class Make>
void check_parameter_factor(Make const& make, parameter& p, double largest, double third_derivative) {
  constexpr float h = 0x1p-6f;
  at_every_position([&](position at) {
    for (float s : scores) {
      float& x = p.shared_by(at);
      float const x0 = x;
      x = x0 + h;
      double const above = score(make(), s, at);
      x = x0 - h;
      double const below = score(make(), s, at);
      x = x0;
      near(parameter_factor<I>(make(), s, at), (above - below) / (2.0 * h),
           4 * unit * largest / h + h * h / 6 * third_derivative + 4 * unit);
    }
  });
}

}  // namespace

TEST_CASE("softcap is cap tanh(s / cap) with derivative 1 - tanh^2") {
  for (float cap : {0.5f, 1.f, 20.f, 50.f}) {
    softcap const f{cap};
    for (float s : scores) {
      double const t = std::tanh(double(s) / cap);
      near(score(f, s, {}), cap * t, 4 * unit * cap);   // division, tanh to an ulp or two, product
      near(score_grad(f, s, {}), 1 - t * t, 8 * unit);  // 2 |t| times the error of t, and its own roundings
    }
    check_grad(f, std::max(cap, 30.f), 2 / (double(cap) * cap));  // |tanh'''| <= 2
  }
}

TEST_CASE("bias adds the element that a position shares, over every broadcast") {
  for (int bits = 0; bits < 16; ++bits) {
    parameter p(bits & 1 ? 2 : 1, bits & 2 ? 3 : 1, bits & 4 ? 4 : 1, bits & 8 ? 5 : 1);
    bias const f{p.view(), p.d_view()};
    at_every_position([&](position at) { CHECK(score(f, 1.5f, at) == 1.5f + p.shared_by(at)); });
    CHECK(parameter_gradient<0>(f).data == p.gradient.data());
    check_grad(f, 32, 0);
    check_parameter_factor<0>([&] { return bias{p.view()}; }, p, 32, 0);
    CHECK(bool(validate(f, lengths)));
  }
}

TEST_CASE("bias in 16 bits and with strides of its own") {
  std::vector<bf16> b16;
  std::vector<f16> h16;
  for (int i = 0; i < 20; ++i)
    b16.push_back(from_float<bf16>(float(i) / 8)), h16.push_back(from_float<f16>(float(i) / 8));
  bias_bf16 const f{.b = {b16.data(), {1, 1, 4, 5}, {0, 0, 1, 4}}};        // transposed
  bias_f16 const g{.b = {h16.data() + 19, {1, 1, 4, 5}, {0, 0, -5, -1}}};  // reversed
  for (std::int32_t q = 0; q < 4; ++q)
    for (std::int32_t k = 0; k < 5; ++k) {
      CHECK(score(f, 0.f, {0, 0, q, k}) == float(k * 4 + q) / 8);
      CHECK(score(g, 0.f, {0, 0, q, k}) == float(19 - q * 5 - k) / 8);
    }
  CHECK(!parameter_gradient<0>(f));
}

TEST_CASE("alibi subtracts slope |q + offset - k|") {
  parameter slope(2, 3, 1, 1);
  for (std::int32_t offset : {0, 2, -3}) {
    alibi const f{slope.view(), slope.d_view(), offset};
    at_every_position([&](position at) {
      double const distance = std::abs(at.q + offset - at.k);
      for (float s : scores) near(score(f, s, at), s - slope.shared_by(at) * distance, 2 * unit * 40);
      CHECK(parameter_factor<0>(f, 1.f, at) == -distance);
    });
    check_grad(f, 40, 0);
    check_parameter_factor<0>([&] { return alibi{slope.view(), {}, offset}; }, slope, 40, 0);
  }
  auto const bound = lanewise::bind(alibi_bottom_right{slope.view(), slope.d_view()}, lengths);
  at_every_position(
      [&](position at) { CHECK(score(bound, 0.f, at) == -slope.shared_by(at) * float(std::abs(at.q + 1 - at.k))); });
  CHECK(parameter_gradient<0>(bound).data == slope.gradient.data());
  CHECK(parameter_gradient<0>(alibi_bottom_right{slope.view(), slope.d_view()}).data == slope.gradient.data());
}

TEST_CASE("sink gives each row its logit and leaves the scores alone") {
  parameter logit(1, 3, 1, 1);
  sink const f{logit.view(), logit.d_view()};
  static_assert(has_sink<sink> && !has_score<sink> && !has_mask<sink> && differentiable<sink>);
  static_assert(parameter_count<sink> == 1 && parameter_is_sink<0, sink>);
  for (std::int32_t h = 0; h < 3; ++h) CHECK(f(row{1, h, 2}) == logit.values[std::size_t(h)]);
  CHECK(score(f, 2.f, {}) == 2.f);
  CHECK(cover_of(f, {0, 0, 0, 4, 0, 4}) == cover::full);
  CHECK(parameter_gradient<0>(f).data == logit.gradient.data());
}

TEST_CASE("the hooks that a variant lacks") {
  auto const mask = [](position at) { return at.k <= at.q; };
  CHECK(score(mask, 3.f, {}) == 3.f);
  CHECK(score_grad(mask, 3.f, {}) == 1.f);
  CHECK(keep(softcap{1.f}, {}));
  CHECK(cover_of(softcap{1.f}, {0, 0, 0, 1, 0, 1}) == cover::full);
  static_assert(parameter_count<softcap> == 0 && parameter_count<full> == 0);
  static_assert(variant<full> && variant<decltype(mask)> && variant<sink> && variant<causal_bottom_right>);
  static_assert(!variant<int> && !variant<shape>);
  struct no_grad {
    float operator()(float s, position) const { return 2 * s; }
  };
  static_assert(variant<no_grad> && !differentiable<no_grad>);
}

TEST_CASE("combine: masks AND, covers meet") {
  auto const f = combine{causal_top_left{}, window{5, unbounded}, [](position at) { return at.k % 3 != 0; }};
  for (std::int32_t q = 0; q < 20; ++q)
    for (std::int32_t k = 0; k < 20; ++k) CHECK(keep(f, {0, 0, q, k}) == (k <= q && k >= q - 5 && k % 3 != 0));
  for (std::int32_t tile : {1, 3, 8}) CHECK(verify_cover(f, {1, 1, 20, 20}, tile, tile));
  auto const two = combine{causal_top_left{}, window{5, unbounded}};
  CHECK(cover_of(two, {0, 0, 8, 10, 5, 8}) == cover::full);
  CHECK(cover_of(two, {0, 0, 8, 10, 10, 12}) == cover::empty);  // by the first
  CHECK(cover_of(two, {0, 0, 8, 10, 0, 3}) == cover::empty);    // by the second
  CHECK(cover_of(two, {0, 0, 8, 10, 2, 12}) == cover::partial);
  CHECK(cover_of(combine{full{}, softcap{1.f}}, {0, 0, 0, 4, 0, 4}) == cover::full);
}

TEST_CASE("combine: scores left to right, grad by the chain rule") {
  parameter b(1, 1, 4, 5);
  auto const capped_after = combine{bias{b.view()}, softcap{2.f}};
  auto const capped_before = combine{softcap{2.f}, bias{b.view()}};
  at_every_position([&](position at) {
    double const x = b.shared_by(at);
    for (float s : scores) {
      near(score(capped_after, s, at), 2 * std::tanh((s + x) / 2), 2 * unit * 34);
      near(score(capped_before, s, at), 2 * std::tanh(s / 2.0) + x, 2 * unit * 8);
      double const t = std::tanh((s + x) / 2);
      near(score_grad(capped_after, s, at), 1 - t * t, 8 * unit + 2 * unit * 34);
    }
  });
  check_grad(capped_after, 34, 0.5);
  check_grad(capped_before, 34, 0.5);
  check_grad(combine{softcap{3.f}, bias{b.view()}, softcap{2.f}, causal_top_left{}}, 34, 2);
}

TEST_CASE("combine: parameters in order, each through the scores after it") {
  parameter slope(1, 3, 1, 1), b(2, 1, 4, 1), logit(1, 3, 1, 1), tail(1, 1, 1, 5);
  auto const make = [&] {
    return combine{alibi{slope.view(), slope.d_view()},
                   causal_top_left{},
                   softcap{4.f},
                   bias{b.view(), b.d_view()},
                   sink{logit.view(), logit.d_view()},
                   softcap{3.f},
                   bias{tail.view(), tail.d_view()}};
  };
  auto const f = make();
  using F = std::remove_const_t<decltype(f)>;
  static_assert(parameter_count<F> == 4);
  static_assert(!parameter_is_sink<0, F> && !parameter_is_sink<1, F> && parameter_is_sink<2, F> &&
                !parameter_is_sink<3, F>);
  CHECK(parameter_gradient<0>(f).data == slope.gradient.data());
  CHECK(parameter_gradient<1>(f).data == b.gradient.data());
  CHECK(parameter_gradient<2>(f).data == logit.gradient.data());
  CHECK(parameter_gradient<3>(f).data == tail.gradient.data());
  CHECK(f(row{0, 1, 0}) == logit.values[1]);
  check_grad(f, 40, 2);
  check_parameter_factor<0>(make, slope, 40, 200);  // third derivative times distance^3, at most 4^3
  check_parameter_factor<1>(make, b, 40, 2);
  check_parameter_factor<3>(make, tail, 40, 0);
  at_every_position([&](position at) { CHECK(parameter_factor<2>(f, 1.f, at) == 0.f); });
}

TEST_CASE("combine: bind reaches every part, nested ones too") {
  shape const s{1, 1, 5, 8};
  auto const f = combine{causal_bottom_right{}, softcap{2.f}, combine{window_bottom_right{2, 1}, full{}}};
  static_assert(has_bind<decltype(f)>);
  auto const g = lanewise::bind(f, s);
  for (std::int32_t q = 0; q < 5; ++q)
    for (std::int32_t k = 0; k < 8; ++k) CHECK(keep(g, {0, 0, q, k}) == (k <= q + 3 && k >= q + 1));
  near(score(g, 1.f, {}), 2 * std::tanh(0.5), 8 * unit);
  for (std::int32_t tile : {1, 2, 4}) CHECK(verify_cover(f, s, tile, tile));
  static_assert(!has_bind<decltype(combine{causal_top_left{}, window{1, 1}})>);
  auto const last = lanewise::bind(combine{softcap{2.f}, alibi{}, causal_bottom_right{}}, s);
  CHECK(keep(last, {0, 0, 0, 3}));
  CHECK(!keep(last, {0, 0, 0, 4}));
}

TEST_CASE("combine: what is wrong with the first wrong part") {
  shape const s{1, 1, 5, 8};
  CHECK(bool(validate(combine{causal_top_left{}, softcap{1.f}, window{1, 1}}, s)));
  CHECK(std::string(validate(combine{causal_top_left{}, softcap{0.f}, window{-1, 1}}, s).message()) ==
        "softcap: cap is 0, it must be a finite number above 0");
  CHECK(std::string(validate(combine{full{}, combine{full{}, key_padding{}}}, s).message()) ==
        "key_padding: lengths is null, 1 batch elements need one each");
}

TEST_CASE("validation names the numbers: scores and parameters") {
  auto const refused = [](status const& s, status_code code, std::string const& sentence) {
    CHECK(std::string(name_of(s.code)) == name_of(code));
    CHECK(s.message() == sentence);
  };
  CHECK(bool(validate(softcap{30.f}, lengths)));
  refused(validate(softcap{-2.5f}, lengths), status_code::bad_argument,
          "softcap: cap is -2.5, it must be a finite number above 0");
  refused(validate(softcap{infinity}, lengths), status_code::bad_argument,
          "softcap: cap is inf, it must be a finite number above 0");
  refused(validate(softcap{std::nanf("")}, lengths), status_code::bad_argument,
          "softcap: cap is nan, it must be a finite number above 0");
  static float x[2 * 3 * 4 * 5];
  refused(validate(bias{}, lengths), status_code::null_view, "bias: b is null");
  CHECK(bool(validate(bias{}, {2, 3, 0, 5})));
  CHECK(bool(validate(bias{{x, 2, 3, 4, 5}, {x, 2, 3, 4, 5}}, lengths)));
  refused(validate(bias{{x, 2, 3, 5, 4}}, lengths), status_code::bad_extent,
          "bias: b: extent 5 along q is neither 1 nor 4");
  refused(validate(bias{{x, 2, 3, 4, 4}}, lengths), status_code::bad_extent,
          "bias: b: extent 4 along k is neither 1 nor 5");
  refused(validate(bias{{x, 1, 3, 4, 5}, {x, 2, 3, 4, 5}}, lengths), status_code::bad_extent,
          "bias: d_b is [2, 3, 4, 5], its parameter is [1, 3, 4, 5]");
  refused(validate(bias{{x, 1, 1, 4, 5}, {x, {1, 1, 4, 5}, {0, 0, 0, 1}}}, lengths), status_code::bad_stride,
          "bias: d_b: stride 0 along dimension 2 of extent 4 must be positive");
  refused(validate(alibi{}, lengths), status_code::null_view, "alibi: slope is null");
  CHECK(bool(validate(alibi{{x, 2, 3, 1, 1}, {x, 2, 3, 1, 1}}, lengths)));
  refused(validate(alibi{{x, 1, 4, 1, 1}}, lengths), status_code::bad_extent,
          "alibi: slope: extent 4 along head is neither 1 nor 3");
  refused(validate(alibi{{x, 1, 3, 4, 1}}, lengths), status_code::bad_extent,
          "alibi: slope: extent 4 along q must be 1");
  refused(validate(alibi{{x, 1, 3, 1, 1}, {x, 1, 1, 1, 1}}, lengths), status_code::bad_extent,
          "alibi: d_slope is [1, 1, 1, 1], its parameter is [1, 3, 1, 1]");
  refused(validate(alibi{{x, 1, 3, 1, 1}, {}, 2147483644}, lengths), status_code::bad_argument,
          "alibi: offset 2147483644 leaves 32 bits with 4 queries and 5 keys");
  refused(validate(alibi_bottom_right{}, lengths), status_code::null_view, "alibi: slope is null");
  refused(validate(sink{}, lengths), status_code::null_view, "sink: logit is null");
  CHECK(bool(validate(sink{{x, 2, 1, 1, 1}}, lengths)));
  refused(validate(sink{{x, 3, 1, 1, 1}}, lengths), status_code::bad_extent,
          "sink: logit: extent 3 along batch is neither 1 nor 2");
  refused(validate(sink{{x, 1, 3, 1, 1}, {x, 2, 3, 1, 1}}, lengths), status_code::bad_extent,
          "sink: d_logit is [2, 3, 1, 1], its parameter is [1, 3, 1, 1]");
}
