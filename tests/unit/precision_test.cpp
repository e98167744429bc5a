// bf16 and f16 against double arithmetic: every bit pattern to float, and to 16 bits at and around every boundary.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <lanewise/config.hpp>
#include <lanewise/precision.hpp>

namespace {

using lanewise::bf16, lanewise::f16;

/// A 16-bit format by its field widths; its definition in double, written without the library.
struct format {
  int mantissa_bits, bias;
  int exponent_bits() const { return 15 - mantissa_bits; }
  int exponent_mask() const { return (1 << exponent_bits()) - 1; }
  double largest() const { return std::ldexp(2 - std::ldexp(1, -mantissa_bits), exponent_mask() - 1 - bias); }

  double value(std::uint16_t bits) const {
    double const sign = bits & 0x8000 ? -1 : 1;
    int const exponent = bits >> mantissa_bits & exponent_mask(), mantissa = bits & ((1 << mantissa_bits) - 1);
    if (exponent == exponent_mask()) return mantissa ? std::nan("") : sign * HUGE_VAL;
    int const implicit = exponent != 0;
    return sign * std::ldexp(mantissa + (implicit << mantissa_bits), (implicit ? exponent : 1) - bias - mantissa_bits);
  }
  /// Nearest, ties to even: std::nearbyint in units of the last place.
  double rounded(double x) const {
    if (x == 0 || std::isinf(x)) return x;
    int const exponent = std::max(std::ilogb(x), 1 - bias);
    double const unit = std::ldexp(1, exponent - mantissa_bits), r = std::nearbyint(x / unit) * unit;
    return std::abs(r) > largest() ? std::copysign(HUGE_VAL, x) : r;
  }
};

constexpr format half{10, 15}, brain{7, 127};

bool same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); }

template <class T>
void every_pattern_widens(format const& f) {
  int wrong = 0;
  for (int bits = 0; bits < 0x10000; ++bits) {
    float const x = lanewise::to_float(T{std::uint16_t(bits)});
    wrong += !same(x, f.value(std::uint16_t(bits)));
  }
  CHECK(wrong == 0);
}

template <class T>
int narrows_wrongly(format const& f, float x) {
  double const got = f.value(lanewise::from_float<T>(x).bits);
  return !same(got, std::isnan(x) ? std::nan("") : f.rounded(x));
}

/// Every value, every midpoint to the next one, and the floats beside both.
template <class T>
void every_boundary_narrows(format const& f) {
  int wrong = 0;
  for (int bits = 0; bits < 0x10000; ++bits) {
    double const here = f.value(std::uint16_t(bits)), next = f.value(std::uint16_t(bits + 1));
    wrong += narrows_wrongly<T>(f, float(here));
    if (!std::isfinite(here)) continue;
    double const above = std::isfinite(next) ? next : here + (here - f.value(std::uint16_t(bits - 1)));
    float const middle = float((here + above) / 2);
    wrong += narrows_wrongly<T>(f, middle);
    wrong += narrows_wrongly<T>(f, std::nextafter(middle, HUGE_VALF));
    wrong += narrows_wrongly<T>(f, std::nextafter(middle, -HUGE_VALF));
    wrong += narrows_wrongly<T>(f, std::nextafter(float(here), HUGE_VALF));
    wrong += narrows_wrongly<T>(f, std::nextafter(float(here), -HUGE_VALF));
  }
  CHECK(wrong == 0);
}

/// A full-period walk over float patterns in steps of a prime.
template <class T>
void floats_of_every_size_narrow(format const& f) {
  int wrong = 0;
  for (std::uint64_t u = 0; u < (std::uint64_t(1) << 32); u += 65521 * 4 + 1)
    wrong += narrows_wrongly<T>(f, std::bit_cast<float>(std::uint32_t(u)));
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("f16 to float: all 65536 patterns") { every_pattern_widens<f16>(half); }
TEST_CASE("bf16 to float: all 65536 patterns") { every_pattern_widens<bf16>(brain); }

TEST_CASE("float to f16: round to nearest even at every boundary") {
  every_boundary_narrows<f16>(half);
  floats_of_every_size_narrow<f16>(half);
}
TEST_CASE("float to bf16: round to nearest even at every boundary") {
  every_boundary_narrows<bf16>(brain);
  floats_of_every_size_narrow<bf16>(brain);
}

TEST_CASE("16 bits survive a trip through float; NaN stays NaN") {
  for (int bits = 0; bits < 0x10000; ++bits) {
    f16 const h{std::uint16_t(bits)};
    bf16 const b{std::uint16_t(bits)};
    if (!std::isnan(lanewise::to_float(h))) CHECK(lanewise::from_float<f16>(lanewise::to_float(h)).bits == bits);
    else CHECK(std::isnan(lanewise::to_float(lanewise::from_float<f16>(lanewise::to_float(h)))));
    if (!std::isnan(lanewise::to_float(b))) CHECK(lanewise::from_float<bf16>(lanewise::to_float(b)).bits == bits);
    else CHECK(std::isnan(lanewise::to_float(lanewise::from_float<bf16>(lanewise::to_float(b)))));
  }
}

TEST_CASE("overflow of f16: 65519.996 is the last finite, 65520 is infinite") {
  CHECK(lanewise::from_float<f16>(std::nextafter(65520.f, 0.f)).bits == 0x7bff);
  CHECK(lanewise::from_float<f16>(65520.f).bits == 0x7c00);
  CHECK(lanewise::from_float<f16>(-65520.f).bits == 0xfc00);
}

TEST_CASE("conversions are constant expressions") {
  static_assert(lanewise::to_float(f16{0x3c00}) == 1.f);
  static_assert(lanewise::to_float(bf16{0x3f80}) == 1.f);
  static_assert(lanewise::from_float<f16>(1.f).bits == 0x3c00);
  static_assert(lanewise::from_float<bf16>(-2.f).bits == 0xc000);
  static_assert(lanewise::from_float<float>(0.1f) == 0.1f);
}

TEST_CASE("storage and names") {
  using lanewise::precision;
  static_assert(std::is_same_v<lanewise::storage<precision::f32>, float>);
  static_assert(std::is_same_v<lanewise::storage<precision::tf32>, float>);
  static_assert(std::is_same_v<lanewise::storage<precision::f16>, f16>);
  static_assert(std::is_same_v<lanewise::storage<precision::bf16>, bf16>);
  static_assert(std::is_same_v<lanewise::storage<precision::bf16_split>, bf16>);
  static_assert(std::is_same_v<lanewise::storage<precision::f32_split>, float>);
  static_assert(sizeof(f16) == 2 && sizeof(bf16) == 2 && alignof(bf16) == 2);
  char const* const names[] = {"f32", "tf32", "f16", "bf16", "bf16_split", "f32_split"};
  for (int i = 0; i < 6; ++i) CHECK(std::string(name_of(precision(i))) == names[i]);
  CHECK(std::string(name_of(precision(6))) == "unknown");
}

TEST_CASE("epsilon is the spacing above 1") {
  CHECK(lanewise::epsilon_of<float> == double(std::numeric_limits<float>::epsilon()));
  CHECK(lanewise::epsilon_of<f16> == half.value(0x3c01) - 1);
  CHECK(lanewise::epsilon_of<bf16> == brain.value(0x3f81) - 1);
}

TEST_CASE("default scale is 1/sqrt(head_dim) to the last bit for every head dim") {
  for (int d = 1; d <= 1024; ++d) CHECK(lanewise::default_scale(d) == float(1 / std::sqrt(double(d))));
}
