// Views: addresses by hand-written index arithmetic.
#include <doctest/doctest.h>

#include <cstdint>
#include <type_traits>

#include <lanewise/attention.hpp>
#include <lanewise/tensor.hpp>

using lanewise::extents, lanewise::parameter_view, lanewise::strides, lanewise::view;

TEST_CASE("dense strides are those of a C array [B][S][H][D]") {
  static float a[2][3][5][8];
  view<float> const v(&a[0][0][0][0], extents{2, 3, 5, 8});
  for (int b = 0; b < 2; ++b)
    for (int s = 0; s < 3; ++s)
      for (int h = 0; h < 5; ++h) CHECK(v.row(b, s, h) == &a[b][s][h][0]);
  CHECK(v.size.count() == 240);
  CHECK(v.stride == strides{120, 40, 8, 1});
}

TEST_CASE("own strides: head-major storage, and a broadcast batch") {
  static float a[5][3][8];  // [H][S][D]
  view<float const> const v(&a[0][0][0], {2, 3, 5, 8}, {0, 8, 24, 1});
  for (int h = 0; h < 5; ++h)
    for (int s = 0; s < 3; ++s) {
      CHECK(v.row(0, s, h) == &a[h][s][0]);
      CHECK(v.row(1, s, h) == &a[h][s][0]);
    }
}

TEST_CASE("offsets beyond 2^31 elements") {
  view<char> const v(nullptr, {3, 2, 1, 8}, {std::int64_t(1) << 33, 8, 8, 1});
  CHECK(reinterpret_cast<std::uintptr_t>(v.row(2, 1, 0)) == (std::uintptr_t(1) << 34) + 8);
}

TEST_CASE("a view that is not given is false; a writable one reads as const") {
  float x[8] = {};
  view<float> const v(x, {1, 1, 1, 8});
  CHECK(!view<float>{});
  CHECK(bool(v));
  view<float const> const c = v;
  CHECK(c.data == x);
  CHECK(c.size == v.size);
  CHECK(c.stride == v.stride);
  static_assert(std::is_same_v<decltype(c.row(0, 0, 0)), float const*>);
}

TEST_CASE("a parameter broadcasts every extent of 1, whatever its stride says") {
  static float a[2][1][3][4];
  parameter_view<float> const p(&a[0][0][0][0], 2, 1, 3, 4);
  for (int b = 0; b < 2; ++b)
    for (int h = 0; h < 6; ++h)
      for (int q = 0; q < 3; ++q)
        for (int k = 0; k < 4; ++k) CHECK(&p.at(b, h, q, k) == &a[b][0][q][k]);
  static float one;
  parameter_view<float const> const shared(&one, {1, 1, 1, 1}, {7, 7, 7, 7});
  CHECK(&shared.at(3, 2, 1, 9) == &one);
}

TEST_CASE("a parameter's strides are free: transposed, reversed, zero") {
  static float a[4][3];
  parameter_view<float const> const transposed(&a[0][0], {1, 1, 3, 4}, {0, 0, 1, 3});
  CHECK(&transposed.at(0, 0, 2, 3) == &a[3][2]);
  parameter_view<float const> const reversed(&a[3][2], {1, 1, 4, 3}, {0, 0, -3, -1});
  CHECK(&reversed.at(0, 0, 0, 0) == &a[3][2]);
  CHECK(&reversed.at(0, 0, 3, 2) == &a[0][0]);
  parameter_view<float const> const still(&a[0][0], {1, 1, 4, 3}, {0, 0, 0, 1});
  CHECK(&still.at(0, 0, 3, 2) == &a[0][2]);
  CHECK(!parameter_view<float>{});
}

TEST_CASE("arguments convert as promised") {
  static_assert(std::is_convertible_v<view<float>, view<float const>>);
  static_assert(std::is_convertible_v<parameter_view<float>, parameter_view<float const>>);
  static_assert(!std::is_convertible_v<parameter_view<float const>, parameter_view<float>>);
}
