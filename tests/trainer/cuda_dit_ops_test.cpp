// The diffusion transformer's own layers on the GPU against cpu_dit_ops<double> on the same f32 numbers; ops_bench.hpp
// says how near they must be.
#include "ops_bench.hpp"

using namespace trainer;
using test::numbers;

namespace {

/// Batch elements of more than one piece, the last short; their vectors lie further apart than they are long.
constexpr sequence_shape shapes[] = {{3, row_grain + 9, 300, 310}, {1, 7, 40, 0}, {2, 2 * row_grain, 64, 64}};

std::int64_t vectors(sequence_shape s) { return s.batch * std::max(s.stride, s.n); }

}  // namespace

TEST_CASE_FIXTURE(test::ops_fixture, "adaptive_norm and its backward") {
  for (sequence_shape const s : shapes)
    compare([&](auto& b) {
      std::int64_t const count = s.rows() * s.n;
      auto *const x = b.put(numbers(count, 1)), *const gain = b.put(numbers(s.n, 2)),
                  *const shift = b.put(numbers(vectors(s), 3)), *const scale = b.put(numbers(vectors(s), 4)),
                  *const y = b.room(count), *const inverse = b.room(s.rows()), *const d_x = b.put(numbers(count, 5)),
                  *const d_gain = b.put(numbers(s.n, 6)), *const d_shift = b.put(numbers(vectors(s), 7)),
                  *const d_scale = b.put(numbers(vectors(s), 8)), *const d_y = b.put(numbers(count, 9)),
                  *const partial = b.room(s.partial_count(3));
      b.dit.adaptive_norm(s, 0.02, x, gain, shift, scale, y, inverse);
      b.dit.adaptive_norm_backward(s, x, gain, scale, inverse, d_y, d_x, d_gain, d_shift, d_scale, partial);
      b.dit.adaptive_norm_backward(s, x, gain, scale, inverse, d_y, d_x, nullptr, d_shift, d_scale, partial);
      b.keep(y, count), b.keep(inverse, s.rows()), b.keep(d_x, count), b.keep(d_gain, s.n);
      b.keep(d_shift, vectors(s)), b.keep(d_scale, vectors(s));
    });
}

TEST_CASE_FIXTURE(test::ops_fixture, "gated_add and its backward") {
  for (sequence_shape const s : shapes)
    compare([&](auto& b) {
      std::int64_t const count = s.rows() * s.n;
      auto *const a = b.put(numbers(count, 1)), *const gate = b.put(numbers(vectors(s), 2)), *const y = b.room(count),
                  *const d_a = b.room(count), *const d_gate = b.put(numbers(vectors(s), 3));
      b.dit.gated_add(s, b.put(numbers(count, 4)), a, gate, y);
      b.dit.gated_add_backward(s, a, gate, b.put(numbers(count, 5)), d_a, d_gate, b.room(s.partial_count(1)));
      b.keep(y, count), b.keep(d_a, count), b.keep(d_gate, vectors(s));
    });
}

TEST_CASE_FIXTURE(test::ops_fixture, "layer_norm and its backward, rows added and summed") {
  constexpr std::int64_t rows = 2 * row_grain + 5;
  for (std::int64_t n : {7, 300})
    compare([&](auto& b) {
      auto *const x = b.put(numbers(rows * n, 1)), *const gain = b.put(numbers(n, 2)), *const y = b.room(rows * n),
                  *const statistics = b.room(2 * rows), *const d_x = b.put(numbers(rows * n, 4)),
                  *const d_gain = b.put(numbers(n, 5)), *const d_bias = b.put(numbers(n, 6)),
                  *const d_row = b.put(numbers(n, 8)), *const d_y = b.put(numbers(rows * n, 7)),
                  *const partial = b.room(partial_count(rows, 2 * n));
      b.dit.layer_norm(rows, n, 0.02, x, gain, b.put(numbers(n, 3)), y, statistics);
      b.dit.layer_norm_backward(rows, n, x, gain, statistics, d_y, d_x, d_gain, d_bias, partial);
      b.dit.layer_norm_backward(rows, n, x, gain, statistics, d_y, d_x, nullptr, nullptr, nullptr);
      b.dit.add_row(rows, n, gain, y);
      b.dit.sum_rows(rows, n, d_y, d_row, partial);
      b.keep(y, rows * n), b.keep(statistics, 2 * rows), b.keep(d_x, rows * n), b.keep(d_gain, n), b.keep(d_bias, n);
      b.keep(d_row, n);
    });
}

TEST_CASE_FIXTURE(test::ops_fixture, "silu and its backward, finite where exp would overflow") {
  compare([&](auto& b) {
    std::vector<double> x = numbers(5000, 1, 3);
    x[0] = -1000, x[1] = 1000;
    auto *const in = b.put(x), *const y = b.room(5000), *const d_x = b.room(5000);
    b.dit.silu(5000, in, y);
    b.dit.silu_backward(5000, in, b.put(numbers(5000, 2)), d_x);
    b.keep(y, 5000), b.keep(d_x, 5000);
  });
}

TEST_CASE_FIXTURE(test::ops_fixture, "rotate turns part of each query and key head, and back") {
  for (head_shape const s : {head_shape{50, 19, 4, 2, 64}, head_shape{50, 50, 3, 0, 10}})
    for (bool backwards : {false, true})
      compare([&](auto& b) {
        std::int64_t const rotated = s.n / 4 * 2, count = s.tokens * s.all_heads() * s.n;
        std::vector<double> table(std::size_t(s.sequence * rotated));
        fill_rotary_table(s.sequence, rotated, 100.0, table.data());
        auto* const qkv = b.put(numbers(count, 1));
        b.dit.rotate(s, rotated, b.put(table), backwards, qkv);
        b.keep(qkv, count);
      });
}

TEST_CASE_FIXTURE(test::ops_fixture, "squared_error and its gradient; a row of weight 0 counts nothing, even NaN") {
  compare([&](auto& b) {
    constexpr std::int64_t rows = 40, n = 300;
    std::vector<double> prediction = numbers(rows * n, 1), weight = numbers(rows, 2), channel = numbers(n, 3);
    weight[3] = 0, prediction[3 * n + 5] = NAN;
    for (double& c : channel) c = std::abs(c);
    auto *const p = b.put(prediction), *const loss = b.room(rows);
    b.dit.squared_error(rows, n, b.put(numbers(rows * n, 4)), b.put(weight), b.put(channel), p, loss);
    b.keep(p, rows * n), b.keep(loss, rows);
  });
}
