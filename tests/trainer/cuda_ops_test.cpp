// Every op on the GPU against cpu_ops<double> on the same f32 numbers (ops_bench.hpp says how), under every shape and
// null that models pass.
#include <array>
#include <type_traits>

#include "cuda/cuda_ops.hpp"
#include "ops_bench.hpp"

using namespace trainer;
using test::numbers;

namespace {

/// More than one piece, the last short.
constexpr std::int64_t rows = 2 * row_grain + 5;

/// Memory of the GPU's own, apart from any device and its plan.
struct gpu_numbers {
  float* data = nullptr;
  explicit gpu_numbers(std::vector<float> const& x) {
    require(cudaMalloc(&data, x.size() * sizeof(float)), "cudaMalloc");
    require(cudaMemcpy(data, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~gpu_numbers() { cudaFree(data); }
  gpu_numbers(gpu_numbers const&) = delete;
  std::vector<float> get(std::int64_t count) const {
    std::vector<float> x(static_cast<std::size_t>(count));
    require(cudaMemcpy(x.data(), data, x.size() * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return x;
  }
};

}  // namespace

TEST_CASE("a form of product is searched for once, and every handle takes the same algorithm") {
  constexpr std::int64_t m = 70, n = 45, k = 4099, count = 3, room_bytes = std::int64_t(4) << 20;  // a long sum is cut
  std::vector<float> const a = test::normal<float>(count * m * k, 1), b = test::normal<float>(k * n, 2),
                           c = test::normal<float>(count * m * n, 3);
  std::vector<double> right(c.begin(), c.end());
  std::vector<float> same = c;  // in the GPU's precision, one term after the other
  for (std::int64_t row = 0; row < count * m; ++row)
    for (std::int64_t column = 0; column < n; ++column) {
      double sum = 0;
      float same_sum = 0;
      for (std::int64_t i = 0; i < k; ++i) {
        float const x = a[std::size_t(row * k + i)], y = b[std::size_t(i * n + column)];
        sum += double(x) * double(y);
        same_sum += x * y;
      }
      std::size_t const at = std::size_t(row * n + column);
      right[at] = 0.25 * sum - 2 * double(c[at]);
      same[at] = 0.25f * same_sum - 2 * c[at];
    }
  double const tolerance = 2 * test::relative_error(same, right) + 2e-7;
  gpu_numbers const left(a), shared(b), room(std::vector<float>(room_bytes / sizeof(float)));
  auto const product = [&](matmul& by) {
    gpu_numbers const sum(c);
    by.run<float>(nullptr, {transpose::no, transpose::no, m, n, k, count}, CUBLAS_COMPUTE_32F, 0.25f,
                  {left.data, k, m * k}, {shared.data, n, 0}, -2, {sum.data, n, m * n});
    return sum.get(count * m * n);
  };
  matmul first, other;
  std::vector<float> const roomless = product(first);
  CHECK(test::relative_error(roomless, right) <= tolerance);
  CHECK(first.searches() == 1);
  first.give_room(room.data, room_bytes);
  other.give_room(room.data, room_bytes);
  CHECK(first.searches() == 0);  // what was chosen without a room is forgotten
  std::vector<float> const y = product(first);
  CHECK(test::relative_error(y, right) <= tolerance);
  CHECK(product(first) == y);
  CHECK(first.searches() == 1);
  CHECK(product(other) == y);
  first.give_room(room.data, room_bytes);
  CHECK(first.searches() == 1);
  gpu_numbers const sum(c);
  first.run<float>(nullptr, {transpose::no, transpose::no, m, n, k, 1}, CUBLAS_COMPUTE_32F, 1, {left.data, k, 0},
                   {shared.data, n, 0}, 0, {sum.data, n, 0});
  CHECK(first.searches() == 2);
}

TEST_CASE_FIXTURE(test::ops_fixture, "linear and its backward; a weight's gradient is added to") {
  for (auto [in, out] : {std::array{96, 160}, std::array{33, 7}, std::array{512, 64}})
    compare([&](auto& b) {
      auto *const x = b.put(numbers(rows * in, 1)), *const w = b.put(numbers(out * in, 2)),
                  *const d_y = b.put(numbers(rows * out, 4)), *const y = b.room(rows * out),
                  *const z = b.room(rows * out), *const d_x = b.room(rows * in),
                  *const d_w = b.put(numbers(out * in, 5));
      b.op.linear(rows, in, out, x, w, b.put(numbers(rows * out, 3)), y);
      b.op.linear(rows, in, out, x, w, nullptr, z);
      b.op.linear_backward(rows, in, out, x, w, d_y, d_x, d_w);
      b.op.linear_backward(rows, in, out, x, w, d_y, d_x, nullptr);
      b.keep(y, rows * out), b.keep(z, rows * out), b.keep(d_x, rows * in), b.keep(d_w, out * in);
    });
}

TEST_CASE_FIXTURE(test::ops_fixture, "product under every transposition, inside wider rows") {
  constexpr std::int64_t m = 70, n = 45, k = 33, ld = 80;
  for (transpose ta : {transpose::no, transpose::yes})
    for (transpose tb : {transpose::no, transpose::yes})
      compare([&](auto& b) {
        auto *const x = b.put(numbers(ld * ld, 1)), *const y = b.put(numbers(ld * ld, 2)),
                    *const c = b.put(numbers(ld * ld, 3)), *const fresh = b.room(m * n);
        b.op.product(ta, tb, m, n, k, 0.5f, x, ld, y, ld, 2, c, ld);
        b.op.product(ta, tb, m, n, k, 1, x, ld, y, ld, 0, fresh, n);
        b.keep(c, ld * ld), b.keep(fresh, m * n);
      });
}

TEST_CASE_FIXTURE(test::ops_fixture, "grouped_product: apart in wider rows, and added up") {
  constexpr std::int64_t groups = 3, m = rows, n = 40, k = 24, a_row = groups * k + 5, c_row = groups * n + 3;
  compare([&](auto& b) {
    auto *const a = b.put(numbers(m * a_row, 1)), *const w = b.put(numbers(n * k, 2)),
                *const c = b.put(numbers(m * c_row, 3)), *const sum = b.put(numbers(n * k, 4)),
                *const back = b.put(numbers(m * a_row, 5));
    b.op.grouped_product({groups, k, 0, n}, transpose::no, transpose::yes, m, n, k, 0.5f, a, a_row, w, k, 2, c, c_row);
    b.op.grouped_product({groups, n, k, 0}, transpose::yes, transpose::no, n, k, m, 0.1f, c, c_row, a, a_row, 1, sum,
                         k);
    b.op.grouped_product({groups, n, 0, k}, transpose::no, transpose::no, m, k, n, 0.5f, c, c_row, w, k, 1, back,
                         a_row);
    b.keep(c, m * c_row), b.keep(sum, n * k), b.keep(back, m * a_row);
  });
}

TEST_CASE_FIXTURE(test::ops_fixture, "rms_norm and its backward") {
  for (std::int64_t n : {7, 128, 1000})
    compare([&](auto& b) {
      auto *const x = b.put(numbers(rows * n, 1)), *const gain = b.put(numbers(n, 2)), *const y = b.room(rows * n),
                  *const inverse = b.room(rows), *const d_x = b.put(numbers(rows * n, 4)),
                  *const d_gain = b.put(numbers(n, 5)), *const d_y = b.put(numbers(rows * n, 3));
      b.op.rms_norm(rows, n, 0.02, x, gain, y, inverse);
      b.op.rms_norm_backward(rows, n, x, gain, inverse, d_y, d_x, d_gain, b.room(partial_count(rows, n)));
      b.op.rms_norm_backward(rows, n, x, gain, inverse, d_y, d_x, nullptr, nullptr);
      b.keep(y, rows * n), b.keep(inverse, rows), b.keep(d_x, rows * n), b.keep(d_gain, n);
    });
}

TEST_CASE_FIXTURE(test::ops_fixture, "head_norm and its backward, rotated or not, queries or keys alone") {
  for (head_shape const s : {head_shape{rows, 19, 4, 2, 64}, head_shape{rows, rows, 3, 3, 6, 0.03},
                             head_shape{rows, 7, 2, 0, 128}, head_shape{rows, 7, 0, 2, 80}})
    for (bool rotated : {true, false})
      compare([&](auto& b) {
        std::int64_t const wide = s.tokens * s.all_heads() * s.n, normed = s.tokens * s.normed_heads() * s.n;
        std::vector<double> table(std::size_t(s.sequence * s.n));
        fill_rotary_table(s.sequence, s.n, 100.0, table.data());
        auto* const rotary = rotated ? b.put(table) : nullptr;
        auto *const qkv = b.put(numbers(wide, 1)), *const q_gain = b.put(numbers(s.n, 2)),
                    *const k_gain = b.put(numbers(s.n, 3)), *const qk = b.room(normed),
                    *const inverse = b.room(s.tokens * s.normed_heads()), *const d_qk = b.put(numbers(normed, 4)),
                    *const d_qkv = b.put(numbers(wide, 5)), *const d_q = b.put(numbers(s.n, 6)),
                    *const d_k = b.put(numbers(s.n, 7)), *const partial = b.room(partial_count(s.tokens, 2 * s.n));
        b.op.head_norm(s, qkv, q_gain, k_gain, rotary, qk, inverse);
        b.op.head_norm_backward(s, qkv, q_gain, k_gain, rotary, inverse, d_qk, d_qkv, d_q, d_k, partial);
        b.keep(qk, normed), b.keep(inverse, s.tokens * s.normed_heads()), b.keep(d_qkv, wide), b.keep(d_q, s.n),
            b.keep(d_k, s.n);
        b.op.head_norm_backward(s, qkv, q_gain, k_gain, rotary, inverse, d_qk, d_qkv, nullptr, nullptr, nullptr);
        b.keep(d_qkv, wide);
      });
}

TEST_CASE_FIXTURE(test::ops_fixture, "swiglu and its backward, finite where exp would overflow") {
  compare([&](auto& b) {
    constexpr std::int64_t n = 300;
    std::vector<double> gate_up = numbers(rows * 2 * n, 1, 3);
    gate_up[0] = -1000, gate_up[1] = 1000, gate_up[2] = -89;
    auto *const x = b.put(gate_up), *const y = b.room(rows * n), *const d = b.room(rows * 2 * n);
    b.op.swiglu(rows, n, x, y);
    b.op.swiglu_backward(rows, n, x, b.put(numbers(rows * n, 2)), d);
    b.keep(y, rows * n), b.keep(d, rows * 2 * n);
  });
}

TEST_CASE_FIXTURE(test::ops_fixture, "embed copies rows, its backward adds every row of a token") {
  constexpr std::int64_t many = 1700, entries = 700;
  for (std::int64_t apart : {1, 37, 600})  // rows until a token comes again; a block looks at 256 at once
    compare([&](auto& b) {
      constexpr std::int64_t n = 300;
      std::vector<std::int32_t> tokens(many);
      for (std::int64_t r = 0; r < many; ++r) tokens[std::size_t(r)] = std::int32_t(r % apart);
      auto* const t = b.put_as(tokens);
      auto *const x = b.room(many * n), *const d_table = b.put(numbers(entries * n, 3));
      b.op.embed(many, n, t, b.put(numbers(entries * n, 1)), x);
      b.op.embed_backward(many, n, t, b.put(numbers(many * n, 2)), d_table);
      b.keep(x, many * n), b.keep(d_table, entries * n);
    });
}

TEST_CASE_FIXTURE(test::ops_fixture, "cross_entropy, its gradient, and rows without a target") {
  for (std::int64_t n : {5, 256, 20000})
    compare([&](auto& b) {
      constexpr std::int64_t few = 40;
      std::vector<std::int32_t> targets(few);
      for (std::int64_t r = 0; r < few; ++r) targets[std::size_t(r)] = r % 3 == 2 ? no_target : std::int32_t(r * 7 % n);
      auto *const logits = b.put(numbers(few * n, 1, 4)), *const loss = b.room(few);
      b.op.cross_entropy(few, n, b.put_as(targets), 0.25f, logits, loss);
      b.keep(logits, few * n), b.keep(loss, few);
    });
}

TEST_CASE_FIXTURE(test::ops_fixture, "the gradient's norm and AdamW; a norm that is not finite changes nothing") {
  std::vector<segment> const table{{0, 9000, true}, {9000, 9001, false}, {9001, 25000, true}};
  for (double scale : {1.0, 1e-4, double(NAN)})
    compare([&](auto& b) {
      std::vector<double> g = numbers(25000, 1, std::isfinite(scale) ? scale : 1.0);
      if (!std::isfinite(scale)) g[12345] = NAN;
      auto *const gradients = b.put(g), *const w = b.put(numbers(25000, 2)), *const m = b.put(numbers(25000, 3)),
                  *const v = b.put(std::vector<double>(25000, 0.25));
      segment const* const segments = b.put_as(table);
      double *const squares = b.template take<double>(3), *const norm = b.template take<double>(1);
      b.op.norm(3, segments, gradients, squares, norm);
      b.op.adamw_update(3, segments, {2.0, 0.9f, 0.99f, 1e-6f, 0.01f, 1.5f, 0.97f}, norm, gradients, w, m, v);
      if (std::isfinite(scale)) b.keep(norm, 1);
      b.keep(w, 25000), b.keep(m, 25000), b.keep(v, 25000);
    });
}

TEST_CASE_FIXTURE(test::ops_fixture, "mix, its weight's gradient, and columns that are added") {
  for (mix_shape const s : {mix_shape{rows, 5, 4, 100}, mix_shape{rows, 3, 9, 300}, mix_shape{7, 8, 6, 40}}) {
    std::int64_t const in = s.in_groups * s.channels, out = s.out_groups * s.channels, x_stride = in + 3,
                       y_stride = out + 1;
    for (transpose t : {transpose::no, transpose::yes})
      compare([&](auto& b) {
        bool const back = t == transpose::yes;
        auto *const w = b.put(numbers(s.pairs(), 1)), *const wide = b.put(numbers(s.rows * x_stride, 2)),
                    *const narrow = b.put(numbers(s.rows * y_stride, 3));
        b.op.mix(s, t, 0.5f, w, back ? narrow : wide, back ? y_stride : x_stride, 2, back ? wide : narrow,
                 back ? x_stride : y_stride);
        auto* const fresh = b.room(s.rows * (back ? in : out));
        b.op.mix(s, t, 0.5f, w, back ? narrow : wide, back ? y_stride : x_stride, 0, fresh, back ? in : out);
        b.keep(wide, s.rows * x_stride), b.keep(narrow, s.rows * y_stride), b.keep(fresh, s.rows * (back ? in : out));
      });
    compare([&](auto& b) {
      auto *const d_w = b.put(numbers(s.pairs(), 4)), *const x = b.put(numbers(s.rows * x_stride, 2)),
                  *const y = b.put(numbers(s.rows * y_stride, 3)), *const fresh = b.room(s.rows * 7);
      b.op.mix_weight_backward(s, 0.5f, y, y_stride, x, x_stride, d_w, b.room(s.partial_count()));
      b.op.add_columns(s.rows, 7, 3, x, x_stride, 0, fresh, 7);
      b.op.add_columns(s.rows, 7, 3, x, x_stride, 0.5f, y, y_stride);
      b.keep(d_w, s.pairs()), b.keep(fresh, s.rows * 7), b.keep(y, s.rows * y_stride);
    });
  }
}

namespace {

std::vector<lanewise::bf16> halves(std::int64_t count, unsigned seed) {
  std::vector<lanewise::bf16> x;
  for (double e : numbers(count, seed)) x.push_back(lanewise::from_float<lanewise::bf16>(float(e)));
  return x;
}

}  // namespace

TEST_CASE_FIXTURE(test::ops_fixture, "bf16 to f32 is exact") {
  compare([&](auto& b) {
    auto* const wide = b.room(3000);
    b.op.widen(3000, b.put_as(halves(3000, 1)), wide);
    b.keep(wide, 3000);
  });
}

TEST_CASE_FIXTURE(test::ops_fixture, "rounded_linear: both operands in bf16, products exact, sums in f32") {
  constexpr std::int64_t in = 264, out = 136;
  compare(
      [&](auto& b) {
        auto* const w = b.put_as(halves(out * in, 1));
        auto *const x = b.put(numbers(rows * in, 2)), *const d_y = b.put(numbers(rows * out, 3)),
                    *const plain = b.room(rows * out), *const y = b.room(rows * out), *const d_x = b.room(rows * in);
        rounded_needs const needs = b.op.needs_of_rounded(rows, in, out);
        std::byte* const scratch = b.scratch(std::max(needs.forward, needs.backward));
        b.op.rounded_linear(rows, in, out, x, w, nullptr, plain, scratch);
        b.op.rounded_linear(rows, in, out, x, w, d_y, y, scratch);
        b.op.rounded_linear_backward(rows, in, out, w, d_y, d_x, scratch);
        b.op.rounded_linear_backward(rows, in, out, w, d_y, nullptr, scratch);
        b.keep(plain, rows * out), b.keep(y, rows * out), b.keep(d_x, rows * in);
      },
      2e-6);  // tensor cores cut what they add, on each of some twenty additions; a bf16 rounding is 2e-3
}

namespace {

struct masked {
  attention_shape shape;
  std::vector<std::int32_t> lengths;
};
std::vector<masked> masks(std::int64_t head_dim) {
  return {{{2, 70, 70, 4, 2, head_dim, attention_mask::causal()}, {}},
          {{1, 200, 200, 2, 1, head_dim, attention_mask::window(9)}, {}},
          {{2, 33, 150, 2, 2, head_dim, attention_mask::none()}, {150, 40}},
          {{2, 90, 65, 4, 4, head_dim, attention_mask::none()}, {0, 65}},
          {{1, 300, 5, 4, 2, head_dim, attention_mask::none()}, {}},  // rows and matrices of scores at any alignment
          {{1, 33, 1877, 4, 4, head_dim, attention_mask::none()}, {}}};
}

/// Forward and backward of one site; queries, keys and values lie side by side in rows of all heads.
template <class B>
void attend(B& b, attention_kind kind, masked const& m) {
  attention_shape const& s = m.shape;
  attention_site const site{kind, s};
  attention_needs const needs = b.op.attention(site);
  auto const view = [&](auto* data, lanewise::extents size) {
    std::int64_t const stride = (size.heads + 1) * size.head_dim;  // a head's gap after each token
    return lanewise::view<std::remove_reference_t<decltype(*data)>>{
        data, size, {size.sequence * stride, stride, size.head_dim, 1}};
  };
  auto const count = [](lanewise::extents e) { return e.batch * e.sequence * (e.heads + 1) * e.head_dim; };
  auto *const q = b.put(numbers(count(s.q()), 1)), *const k = b.put(numbers(count(s.kv()), 2)),
              *const v = b.put(numbers(count(s.kv()), 3)), *const d_o = b.put(numbers(count(s.q()), 4)),
              *const o = b.put(numbers(count(s.q()), 5)), *const d_q = b.put(numbers(count(s.q()), 6)),
              *const d_k = b.put(numbers(count(s.kv()), 7)), *const d_v = b.put(numbers(count(s.kv()), 8)),
              *const saved = b.room(needs.saved);
  std::byte* const scratch = b.scratch(std::max(needs.forward_scratch, needs.backward_scratch));
  using T = std::remove_reference_t<decltype(*q)>;
  attention_inputs<T> const in{view(q, s.q()), view(k, s.kv()), view(v, s.kv()),
                               m.lengths.empty() ? nullptr : b.put_as(m.lengths)};
  b.op.attention_forward(site, in, view(o, s.q()), saved, scratch);
  b.op.attention_backward(site, in, view(o, s.q()), saved, view(d_o, s.q()),
                          {view(d_q, s.q()), view(d_k, s.kv()), view(d_v, s.kv())}, scratch);
  b.keep(o, count(s.q())), b.keep(d_q, count(s.q())), b.keep(d_k, count(s.kv())), b.keep(d_v, count(s.kv()));
}

}  // namespace

TEST_CASE_FIXTURE(test::ops_fixture, "attention under every mask, exact and ablated") {
  for (attention_kind kind : {attention_kind::exact, attention_kind::ablated})
    for (masked const& m : masks(40)) compare([&](auto& b) { attend(b, kind, m); });
}

TEST_CASE_FIXTURE(test::ops_fixture,
                  "flash in f32 and f32_split equals the exact chain in f64; in tf32 to ten bits, and no better") {
  std::unique_ptr<device> const tf32 = make_cuda_device(arithmetic::tf32),
                                split = make_cuda_device(arithmetic::f32_split);
  for (std::int64_t head_dim : {32, 64, 128})
    for (masked const& m : masks(head_dim)) {
      CAPTURE(head_dim);
      CAPTURE(m.shape.queries);
      auto const exact = [&](auto& b) { attend(b, attention_kind::exact, m); };
      auto const flash = [&](auto& b) { attend(b, attention_kind::flash, m); };
      auto const right = on_cpu<double>(exact), same = on_cpu<float>(exact), f32 = on_gpu(*gpu, flash),
                 limbs = on_gpu(*split, flash), rounded = on_gpu(*tf32, flash);
      for (std::size_t i = 0; i < right.size(); ++i) {
        CHECK(test::relative_error(f32[i], right[i]) <= 2 * test::relative_error(same[i], right[i]) + 2e-7);
        CHECK(test::relative_error(limbs[i], right[i]) <= 2e-6);  // the bar of f32_split in docs/precision.md
        double const error = test::relative_error(rounded[i], right[i]);
        CHECK(error <= 2e-3);
        CHECK(error > 1e-6);
      }
    }
}

TEST_CASE_FIXTURE(test::ops_fixture, "products in tf32 have the error of ten bits, in f32 they do not") {
  std::unique_ptr<device> const tf32 = make_cuda_device(arithmetic::tf32);
  auto const body = [&](auto& b) {
    auto* const y = b.room(rows * 128);
    b.op.linear(rows, 256, 128, b.put(numbers(rows * 256, 1)), b.put(numbers(256 * 128, 2)), nullptr, y);
    b.keep(y, rows * 128);
  };
  auto const right = on_cpu<double>(body)[0];
  CHECK(test::relative_error(on_gpu(*gpu, body)[0], right) < 1e-6);
  double const error = test::relative_error(on_gpu(*tf32, body)[0], right);
  CHECK(error > 1e-5);
  CHECK(error < 1e-3);
}

TEST_CASE_FIXTURE(test::ops_fixture, "a flash site without a kernel is refused by name") {
  CHECK_THROWS_WITH(static_cast<void>(gpu->op().attention({attention_kind::flash, {1, 8, 8, 2, 1, 48, {}}})),
                    doctest::Contains("48"));
}
