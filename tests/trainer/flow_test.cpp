// Rectified flow: the path and its velocity, the times, and the yardstick against normal equations.
#include "flow.hpp"

#include <array>

#include "support.hpp"

using namespace trainer;

TEST_CASE("x_t is noise at 1 and data at 0, and the target is its derivative by t") {
  std::vector<float> const data = test::normal<float>(40, 1), noise = test::normal<float>(40, 2);
  std::vector<float> at(40), velocity(40), before(40), after(40), unused(40);
  noise_data(40, 1, data.data(), noise.data(), at.data(), velocity.data());
  CHECK(at == noise);
  noise_data(40, 0, data.data(), noise.data(), at.data(), velocity.data());
  CHECK(at == data);
  for (double const t : {0.25, 0.5, 0.8125}) {
    noise_data(40, t, data.data(), noise.data(), at.data(), velocity.data());
    noise_data(40, t - 0.125, data.data(), noise.data(), before.data(), unused.data());
    noise_data(40, t + 0.125, data.data(), noise.data(), after.data(), unused.data());
    for (std::size_t i = 0; i < 40; ++i) {
      CHECK(std::abs(double(at[i]) - (t * double(noise[i]) + (1 - t) * double(data[i]))) < 1e-6);
      // The path is a straight line, so that the central difference is exact but for rounding.
      CHECK(std::abs((double(after[i]) - double(before[i])) / 0.25 - double(velocity[i])) < 1e-5);
    }
  }
}

TEST_CASE("times: the logit has the mean and deviation that are asked for, and no time is 0 or 1") {
  random_numbers draw(5, stream::noise);
  double sum = 0, square = 0;
  constexpr int count = 40'000;
  for (int i = 0; i < count; ++i) {
    double const t = draw_time(draw, {-0.4, 1.5}), logit = std::log(t / (1 - t));
    sum += logit;
    square += logit * logit;
  }
  double const mean = sum / count;
  CHECK(std::abs(mean + 0.4) < 4 * 1.5 / std::sqrt(count));  // four standard errors
  CHECK(std::abs(std::sqrt(square / count - mean * mean) - 1.5) < 4 * 1.5 / std::sqrt(2.0 * count));
  for (int i = 0; i < 1000; ++i) {
    double const t = draw_time(draw, {0, 100});
    CHECK((t >= 1e-5 && t <= 1 - 1e-5));
  }
}

TEST_CASE("the features of a time: cosines and sines of falling frequencies") {
  std::vector<float> f(time_features);
  fill_time_features(0.3, f.data());
  for (int const i : {0, 1, 64, 127}) {
    double const angle = 300 * std::exp(-std::log(10000.0) * i / 128);
    CHECK(double(f[std::size_t(i)]) == doctest::Approx(std::cos(angle)).epsilon(1e-5));
    CHECK(double(f[std::size_t(128 + i)]) == doctest::Approx(std::sin(angle)).epsilon(1e-5));
  }
  fill_time_features(0, f.data());
  CHECK(f.front() == 1.f);
  CHECK(f.back() == 0.f);
}

TEST_CASE("the linear predictor solves the normal equations of velocity on x_t and 1") {
  // Noise that is 1 and -1 equally often beside every datum has mean 0, variance 1 and no correlation with the data,
  // all exactly, so that the equations of this sample have the coefficients of the formula.
  std::vector<double> const data = test::normal<double>(500, 7, 1.7);
  double mean = 0, variance = 0;
  for (double x : data) mean += x / 500;
  for (double x : data) variance += (x - mean) * (x - mean) / 500;
  linear_predictor const predictor({mean}, {variance});
  for (double const t : {1e-5, 0.1, 0.4, 0.77, 1 - 1e-5}) {
    std::array<double, 5> s{};  // sums of 1, x, x^2, v, x v
    for (double x0 : data)
      for (double noise : {1.0, -1.0}) {
        double const x = t * noise + (1 - t) * x0, v = noise - x0;
        s[0] += 1, s[1] += x, s[2] += x * x, s[3] += v, s[4] += x * v;
      }
    double const determinant = s[0] * s[2] - s[1] * s[1];
    double const slope = (s[0] * s[4] - s[1] * s[3]) / determinant, offset = (s[2] * s[3] - s[1] * s[4]) / determinant;
    CAPTURE(t);
    CHECK(predictor.slope(t, 0) == doctest::Approx(slope).epsilon(1e-10));
    for (double const x : {-2.0, 0.0, 3.5})
      CHECK(predictor.predict(t, 0, x) == doctest::Approx(offset + slope * x).epsilon(1e-9));
  }
}

TEST_CASE("its squared error is the sum over frames and channels, each with its own coefficients") {
  linear_predictor const predictor({0.5, -1}, {2, 0.25});
  std::vector<float> const noised = test::normal<float>(6, 1), velocity = test::normal<float>(6, 2);
  double sum = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    double const m = i % 2 ? -1 : 0.5, v = i % 2 ? 0.25 : 2;
    double const p = (0.3 - 0.7 * v) / (0.09 + 0.49 * v) * (double(noised[i]) - 0.7 * m) - m;
    sum += (p - double(velocity[i])) * (p - double(velocity[i]));
  }
  CHECK(predictor.squared_error(0.3, 3, noised.data(), velocity.data()) == doctest::Approx(sum));
}
