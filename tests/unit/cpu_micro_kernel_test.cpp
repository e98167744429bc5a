// The five operations of each instruction set against scalar f64 loops.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "../support/attention_case.hpp"

using namespace testing;
using namespace lanewise::cpu;

TEST_CASE("the portable instruction set is always there, and an unknown one is refused") {
  CHECK(kernels_for(cpu_isa::portable) == &portable_kernels);
  CHECK(kernels_for(cpu_isa::automatic) != nullptr);
  for (cpu_isa isa : {cpu_isa::avx2, cpu_isa::avx512}) CHECK((kernels_for(isa) != nullptr) == supports(isa));
}

TEST_CASE("multiply: every block shape, both orders of A, every start") {
  for (cpu_isa isa : instruction_sets()) {
    micro_kernels const& run = *kernels_for(isa);
    CAPTURE(run.forward_name);
    for (int m : {1, 2, 3, 4, 5, 6, 7, 11, 13, 64})
      for (int n : {16, 32, 48, 64, 80, 256})
        for (int k : {0, 1, 7, 64})
          for (bool transposed : {false, true})
            for (start from : {start::zero, start::add, start::scale_columns}) {
              auto const a = normal(std::int64_t(m) * k, 1), b = normal(std::int64_t(k) * n, 2),
                         c0 = normal(std::int64_t(m) * (n + 3), 3), factors = normal(n, 4);
              auto c = c0;
              run.multiply(product<float>{m, n, k, a.data(), transposed ? 1 : k, transposed ? m : 1, b.data(), n,
                                          c.data(), n + 3, from, factors.data()});
              double worst = 0;
              for (int i = 0; i < m; ++i)
                for (int j = 0; j < n; ++j) {
                  double sum =
                      from == start::zero ? 0 : c0[i * (n + 3) + j] * (from == start::add ? 1. : double(factors[j]));
                  double magnitude = std::abs(sum);
                  for (int x = 0; x < k; ++x) {
                    double const term = double(transposed ? a[x * m + i] : a[i * k + x]) * b[x * n + j];
                    sum += term, magnitude += std::abs(term);
                  }
                  // each of k + 1 operations rounds a partial sum by at most 2^-24 of the sum of magnitudes
                  worst = std::max(worst, std::abs(sum - c[i * (n + 3) + j]) - (2 * k + 1) * 0x1p-24 * magnitude);
                }
              CHECK(worst <= 0);
              for (int i = 0; i < m; ++i)
                for (int j = n; j < n + 3; ++j)
                  CHECK(c[i * (n + 3) + j] == c0[i * (n + 3) + j]);  // beyond the row: untouched
            }
  }
}

TEST_CASE("softmax step: running maximum, sum and correction over two key tiles, columns of minus infinity included") {
  for (cpu_isa isa : instruction_sets()) {
    micro_kernels const& run = *kernels_for(isa);
    CAPTURE(run.forward_name);
    for (int keys : {1, 2, 3, 5, 64}) {
      int const columns = 32, row = 48;
      std::vector<float> maximum(columns, -infinity), sum(columns, 0.f), correction(columns);
      std::vector<double> m(columns, -INFINITY), l(columns, 0);
      for (int step = 0; step < 2; ++step) {
        auto s = normal(keys * row, 7 + step, 20.f);
        for (int x = 0; x < keys; ++x) s[x * row + 3] = -infinity;  // sees nothing
        if (step == 0)
          for (int x = 0; x < keys; ++x) s[x * row + 4] = -infinity;  // sees nothing at first
        auto p = s;
        run.softmax({keys, columns, p.data(), row, maximum.data(), sum.data(), correction.data()});
        for (int c = 0; c < columns; ++c) {
          double raised = m[c];
          for (int x = 0; x < keys; ++x) raised = std::max(raised, double(s[x * row + c]));
          CHECK(maximum[c] == raised);
          double const scale = m[c] == -INFINITY ? 0 : std::exp2(m[c] - raised);
          // 3e-7 of 2^x itself, and the rounding of its argument to f32: half a spacing times ln 2
          auto const bar = [](double exponent) { return 3e-7 - std::max(exponent, -200.) * 0x1p-24; };
          CHECK(std::abs(correction[c] - scale) <= bar(scale > 0 ? m[c] - raised : 0) * scale);
          l[c] *= scale;
          for (int x = 0; x < keys; ++x) {
            double const exponent = raised == -INFINITY ? 0 : double(s[x * row + c]) - raised;
            double const expected = s[x * row + c] == -infinity ? 0 : std::exp2(exponent);
            CHECK(std::abs(p[x * row + c] - expected) <= bar(exponent) * expected + 0x1p-126);
            l[c] += expected;
          }
          m[c] = raised;
          CHECK(std::abs(sum[c] - l[c]) <= 1e-6 * l[c]);
        }
      }
      CHECK(sum[3] == 0.f);
    }
  }
}

TEST_CASE("2^x over the whole range: 3e-7 relative, 0 below 2^-126, infinity from 2^127.5 on, NaN stays") {
  for (cpu_isa isa : instruction_sets()) {
    micro_kernels const& run = *kernels_for(isa);
    CAPTURE(run.forward_name);
    auto const power = [&](float x) {
      std::vector<float> s(16, x), d_p(16, 1.f), zero(16, 0.f);
      run.differentiate({1, 16, s.data(), d_p.data(), 16, zero.data(), zero.data(), 1.f});
      for (float e : s) CHECK(std::memcmp(&e, &s[0], 4) == 0);
      return s[0];
    };
    double worst = 0;
    for (float x = -125.99f; x < 127.49f; x += 0.00371f)
      worst = std::max(worst, std::abs(double(power(x)) / std::exp2(double(x)) - 1));
    CHECK(worst < 3e-7);
    CHECK(power(0.f) == 1.f);
    CHECK(power(-126.5f) == 0.f);
    CHECK(power(-infinity) == 0.f);
    CHECK(power(-1e30f) == 0.f);
    CHECK(power(127.6f) == infinity);
    CHECK(power(infinity) == infinity);
    CHECK(std::isnan(power(NAN)));
  }
}

TEST_CASE("dS: p (dP - delta), and exactly zero where P is zero, whatever dP holds") {
  for (cpu_isa isa : instruction_sets()) {
    micro_kernels const& run = *kernels_for(isa);
    CAPTURE(run.forward_name);
    int const keys = 5, columns = 32;
    auto const s0 = normal(keys * columns, 1), d0 = normal(keys * columns, 2), base = normal(columns, 3),
               delta = normal(columns, 4);
    auto s = s0, d = d0;
    s[7] = -infinity, d[7] = NAN;
    run.differentiate({keys, columns, s.data(), d.data(), columns, base.data(), delta.data(), 0.25f});
    CHECK(s[7] == 0.f);
    CHECK(d[7] == 0.f);
    for (int i = 0; i < keys * columns; ++i) {
      if (i == 7) continue;
      double const p = std::exp2(double(s0[i]) - base[i % columns]),
                   d_s = 0.25 * p * (double(d0[i]) - delta[i % columns]);
      CHECK(std::abs(s[i] - p) <= 5e-7 * p);
      CHECK(std::abs(d[i] - d_s) <= 1e-6 * p);
    }
  }
}

TEST_CASE("transpose pads rows with zeros and multiplies by the factor") {
  for (cpu_isa isa : instruction_sets()) {
    micro_kernels const& run = *kernels_for(isa);
    for (int rows : {1, 3, 16, 17, 64})
      for (int columns : {8, 40, 128}) {
        auto const x = normal(rows * (columns + 5), 1);
        std::vector<float> y(columns * 64, NAN);
        run.transpose(transposition<float>{rows, columns, x.data(), columns + 5, y.data(), 64, 3.f});
        for (int c = 0; c < columns; ++c)
          for (int r = 0; r < padded(rows); ++r)
            CHECK(y[c * 64 + r] == (r < rows ? x[r * (columns + 5) + c] * 3.f : 0.f));
      }
  }
}

TEST_CASE_TEMPLATE("copies convert all 65,536 patterns exactly", T, bf16, f16) {
  std::vector<T> all(65536);
  for (int i = 0; i < 65536; ++i) all[i].bits = std::uint16_t(i);
  for (cpu_isa isa : instruction_sets()) {
    micro_kernels const& run = *kernels_for(isa);
    std::vector<float> wide(65536 / 8 * 16, -1.f);
    run.copy(copy_rows<T>{65536 / 8, 8, all.data(), 8, wide.data(), 16});
    int different = 0;
    for (int i = 0; i < 65536; ++i) {
      float const got = wide[i / 8 * 16 + i % 8], expected = to_float(all[i]);
      different += std::isnan(expected) ? !std::isnan(got) : std::memcmp(&got, &expected, 4) != 0;
      different += wide[i / 8 * 16 + 8 + i % 8] != 0.f;
    }
    CHECK(different == 0);
  }
}

TEST_CASE("bf16 pairs: products, rounding, interleaving and word transposition") {
  micro_kernels const* const table = bf16_kernels_for(cpu_isa::automatic);
  if (!table) {
    MESSAGE("this processor or compiler has no bf16 products");
    return;
  }
  micro_kernels const& run = *table;
  int const rows = 7, columns = 48;
  auto const x = normal(rows * columns, 1);
  auto const bits = [](float e) { return std::uint32_t(from_float<bf16>(e).bits); };

  std::vector<std::uint32_t> pairs(4 * columns, ~0u), words(rows * columns / 2, ~0u);
  auto special = x;
  special[0] = NAN, special[1] = infinity, special[2] = 0x1.01p0f, special[3] = 0x1.03p0f;  // ties to even, both ways
  run.round({rows, columns, special.data(), columns, pairs.data(), columns, words.data(), columns / 2});
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) {
      std::uint32_t const in_pair = pairs[r / 2 * columns + c] >> (r % 2 * 16) & 0xffff,
                          in_word = words[r * columns / 2 + c / 2] >> (c % 2 * 16) & 0xffff;
      if (std::isnan(special[r * columns + c])) CHECK((in_pair & 0x7fff) > 0x7f80);
      else CHECK(in_pair == bits(special[r * columns + c]));
      CHECK(in_word == in_pair);
    }
  for (int c = 0; c < columns; ++c) CHECK((pairs[3 * columns + c] >> 16) == 0);  // the odd last row

  auto const stored_rows = stored<bf16>(x);
  bool live[rows] = {true, true, false, true, true, true, true};
  std::vector<std::uint32_t> interleaved(4 * columns, ~0u);
  run.interleave({rows, 40, stored_rows.data(), columns, live, interleaved.data(), columns});
  for (int r = 0; r < 8; ++r)
    for (int c = 0; c < columns; ++c) {
      std::uint32_t const expected = r < rows && live[r] && c < 40 ? stored_rows[r * columns + c].bits : 0;
      CHECK((interleaved[r / 2 * columns + c] >> (r % 2 * 16) & 0xffff) == expected);
    }

  std::vector<std::uint32_t> source(rows * 12), turned(12 * 16, ~0u);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = std::uint32_t(i * 2654435761u);
  run.transpose(transposition<std::uint32_t>{rows, 12, source.data(), 12, turned.data(), 16});
  for (int c = 0; c < 12; ++c)
    for (int r = 0; r < 16; ++r) CHECK(turned[c * 16 + r] == (r < rows ? source[r * 12 + c] : 0));

  // A [5][k], B [k][48] of bf16 pairs; products of bf16 are exact in f32, each of 2k additions rounds once
  for (int k : {1, 3, 64}) {
    auto const a = stored<bf16>(normal(5 * 2 * k, 3)), b = stored<bf16>(normal(2 * k * columns, 4));
    std::vector<std::uint32_t> b_pairs(k * columns);
    run.interleave({2 * k, columns, b.data(), columns, nullptr, b_pairs.data(), columns});
    std::vector<std::uint32_t> a_words(5 * k);
    std::memcpy(a_words.data(), a.data(), a_words.size() * 4);
    std::vector<float> c(5 * columns, NAN);
    run.multiply(product<std::uint32_t>{5, columns, k, a_words.data(), k, 1, b_pairs.data(), columns, c.data(), columns,
                                        start::zero, nullptr, 0.5f});
    for (int i = 0; i < 5; ++i)
      for (int j = 0; j < columns; ++j) {
        double sum = 0, magnitude = 0;
        for (int e = 0; e < 2 * k; ++e) {
          double const term = double(to_float(a[i * 2 * k + e])) * to_float(b[e * columns + j]);
          sum += term, magnitude += std::abs(term);
        }
        CHECK(std::abs(c[i * columns + j] - 0.5 * sum) <= (2 * k + 1) * 0x1p-24 * magnitude);
      }
  }
}
