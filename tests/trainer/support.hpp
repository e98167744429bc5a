// What the trainer's tests share: seeded numbers, and derivatives by finite differences.
//
// A function is reduced to one number, L = sum(output * weight) with fixed random weights, so that every output counts.
// Central differences in f64 with h = 1e-5 are off by h^2 |L'''| / 6 ~ 1e-10 and by rounding, 1e-16 |L| / h ~ 1e-10 for
// |L| ~ 10; the bar is 1e-7 of the largest derivative, and the derivatives must not all be zero.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "error.hpp"

namespace test {

inline bool has(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

/// "name: sentence" of the named error that f ends in, or "no error".
template <class F>
std::string error_of(F const& f) {
  try {
    f();
  } catch (trainer::named_error const& e) {
    return e.name + ": " + e.what();
  }
  return "no error";
}

template <class T>
std::vector<T> normal(std::size_t n, unsigned seed, double deviation = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> draw(0, deviation);
  std::vector<T> x(n);
  for (T& e : x) e = T(draw(engine));
  return x;
}

inline double dot(std::vector<double> const& a, std::vector<double> const& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline constexpr double difference_bar = 1e-7;

/// Compares `analytic` with the derivative of loss() by each element of x (every `stride`-th).
template <class Loss>
void check_gradient(std::string const& name, std::vector<double>& x, std::vector<double> const& analytic,
                    Loss const& loss, std::size_t stride = 1) {
  INFO("gradient of ", name);
  REQUIRE(x.size() == analytic.size());
  double largest = 0;
  for (double g : analytic) largest = std::max(largest, std::abs(g));
  REQUIRE(largest > 0);
  constexpr double h = 1e-5;
  for (std::size_t i = 0; i < x.size(); i += stride) {
    double const at = x[i];
    x[i] = at + h;
    double const above = loss();
    x[i] = at - h;
    double const below = loss();
    x[i] = at;
    INFO("element ", i, ": ", analytic[i], " against ", (above - below) / (2 * h));
    REQUIRE(std::abs(analytic[i] - (above - below) / (2 * h)) <= difference_bar * std::max(1.0, largest));
  }
}

/// ||x - r|| / ||r||; the reference must not be zero.
template <class T>
double relative_error(std::vector<T> const& x, std::vector<double> const& r) {
  REQUIRE(x.size() == r.size());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += (double(x[i]) - r[i]) * (double(x[i]) - r[i]);
    norm += r[i] * r[i];
  }
  REQUIRE(norm > 0);
  return std::sqrt(error / norm);
}

/// A file or folder of tests/trainer/data, which the build names in TRAINER_TEST_DATA.
inline std::filesystem::path data(std::string const& name) {
  char const* const folder = std::getenv("TRAINER_TEST_DATA");
  return std::filesystem::path(folder ? folder : "tests/trainer/data") / name;
}

/// A directory of its own, removed at the end.
struct scratch {
  std::filesystem::path path = [] {
    std::string name = (std::filesystem::temp_directory_path() / "trainer_test.XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    return std::filesystem::path(name);
  }();
  ~scratch() { std::filesystem::remove_all(path); }
  std::filesystem::path write(std::string const& name, std::string const& text) const {
    std::ofstream(path / name, std::ios::binary) << text;
    return path / name;
  }
};

}  // namespace test
