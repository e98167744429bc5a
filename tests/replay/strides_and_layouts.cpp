// Inputs with strides and offsets that broke other libraries. Each call must agree in every bit with the same call on
// dense tensors, and must not write between its outputs' elements.
#include "replay_case.hpp"

using namespace testing;

namespace {

constexpr config f32_32{.head_dim = 32};
constexpr config f32_64{.head_dim = 64};
constexpr config f16_96{.head_dim = 96, .precision = precision::f16};
constexpr config f16_128{.head_dim = 128, .precision = precision::f16};
constexpr config bf16_128{.head_dim = 128, .precision = precision::bf16};
constexpr std::int64_t beyond = std::int64_t(1) << 31;  // elements

}  // namespace

// flash-attention issue 2260: [8300, 1, 16, 128] bf16; row offsets of the batch overflowed 32 bits and gradients were
// not finite. Here rows are also 2^18 elements apart, so that the last batch element begins past 2^31.
TEST_CASE("8300 batch elements of one token: finite, o = v and d_v = d_o, wherever the rows lie") {
  attention_case<bf16_128> x({.batch = 83, .q = 1, .k = 1, .q_heads = 16, .kv_heads = 16});
  x.with_d_lse = false;
  x.run(on_cpu{}, full{});
  CHECK(all_finite(x));
  CHECK(same_bits(x.o, x.v));
  CHECK(same_bits(x.d_v, x.d_o));
  for (auto const* d : {&x.d_q, &x.d_k})
    CHECK(
        std::all_of(d->begin(), d->end(), [](bf16 e) { return std::abs(to_float(e)) < 1e-4f; }));  // 0 but for rounding
  extents const e{8300, 1, 16, 128};
  strides const s{std::int64_t(1) << 18, 16 * 128, 128};
  REQUIRE((e.batch - 1) * s.batch > beyond);
  layout l = dense_layout(e, e);
  check_same(on_cpu{}, x, full{}, e, e, l);
  l.q = l.k = l.v = l.o = l.d_o = l.d_q = l.d_k = l.d_v = s;
  check_same(on_cpu{}, x, full{}, e, e, l);
}

// flash-attention issue 2611: packed documents, d_o a slice of a wider tensor, token * stride past 2^31. There 410,923
// tokens were 9,728 elements apart; here 4,096 tokens are 534,016 apart, the same offset on fewer pages.
TEST_CASE("packed documents: d_o as a slice whose offsets pass 2^31 elements") {
  attention_case<f16_96> x({.batch = 1, .q = 4096, .k = 4096, .q_heads = 4, .kv_heads = 4});
  std::vector<std::int32_t> cu;
  for (std::int32_t at = 0; at < 4096; at += 100 + at % 37) cu.push_back(at);
  cu.push_back(4096);
  documents const f{cu.data(), cu.data(), std::int32_t(cu.size()) - 1};
  x.run(on_cpu{}, f);
  layout l = dense_layout(x.q_size, x.k_size);
  l.d_o = {0, (std::int64_t(1) << 19) + 9728, 96};
  REQUIRE(4000 * l.d_o.sequence > std::int64_t(2'000'000'000));
  REQUIRE(4095 * l.d_o.sequence > beyond);
  check_same(on_cpu{}, x, f, l);
}

// flash-attention issue 355: one key/value head for four query heads, q [2, 32, 4, 128]; gradients were wrong until d_o
// was made contiguous. d_o is given head-major, as a slice, and, as the gradient of a sum, with every stride 0.
TEST_CASE("one key/value head and a d_o that is not contiguous") {
  attention_case<f16_128> x({.batch = 2, .q = 32, .k = 32, .q_heads = 4, .kv_heads = 1});
  compare_with_reference(on_cpu{}, x, full{});
  layout l = dense_layout(x.q_size, x.k_size);
  l.d_o = head_major(x.q_size);
  check_same(on_cpu{}, x, full{}, l);
  l.d_o = {32 * 5 * 200, 5 * 200, 200};
  check_same(on_cpu{}, x, full{}, l);
  std::fill(x.d_o.begin(), x.d_o.end(), from_float<f16>(1.f));
  compare_with_reference(on_cpu{}, x, full{});
  l.d_o = {0, 0, 0};
  check_same(on_cpu{}, x, full{}, l);
}

// PyTorch issue 133671: CPU, [2, 2, 49, 32] (batch, heads, sequence, head dim), o with strides (3136, 32, 64, 1) but
// d_o with plain ones; gradients differed from the unfused computation.
TEST_CASE("o and d_o of different strides") {
  attention_case<f32_32> x({.batch = 2, .q = 49, .k = 49, .q_heads = 2, .kv_heads = 2});
  compare_with_reference(on_cpu{}, x, full{});
  strides const plain = head_major(x.q_size);
  REQUIRE(plain == strides{3136, 32, 1568});
  layout l{plain, plain, plain, {3136, 64, 32}, plain, plain, plain, plain, {98, 1, 49}};
  check_same(on_cpu{}, x, full{}, l);
}

// PyTorch issue 146377: k and v are the first 3968 of 4096 keys, as a view; d_k was garbage, and not 0 for inputs that
// are all 0. What lies behind the view is NaN here. Two heads of the sixteen.
TEST_CASE("keys and values as a view of longer buffers: nothing behind them is read") {
  attention_case<f32_64> x({.batch = 1, .q = 4096, .k = 3968, .q_heads = 2, .kv_heads = 2});
  for (auto* t : {&x.q, &x.k, &x.v}) std::fill(t->begin(), t->end(), 0.f);
  std::fill(x.d_o.begin(), x.d_o.end(), 1.f);
  x.with_d_lse = false;
  x.run(on_cpu{}, full{});
  layout l = dense_layout(x.q_size, x.k_size);
  l.k = l.v = {0, 64, 4096 * 64};
  check_same(on_cpu{}, x, full{}, l);
  CHECK(all_equal(x.d_k.data(), x.k_size.count(), 0.f));
  CHECK(all_equal(x.d_q.data(), x.q_size.count(), 0.f));
  // Each d_v is a sum of 4096 equal terms, which a plain f32 sum rounds the same way again and again.
  float plain = 0.f;
  for (int i = 0; i < 4096; ++i) plain += 1.f / 3968;
  double const exact = 4096. / 3968;
  std::vector<double> const d_v(x.d_v.size(), exact);
  CHECK(relative_error(x.d_v, d_v) < 2 * std::abs(plain - exact) / exact + 5e-6);

  attention_case<f32_64> y({.batch = 2, .q = 300, .k = 200, .q_heads = 4, .kv_heads = 2});
  compare_with_reference(on_cpu{}, y, full{});
  l = dense_layout(y.q_size, y.k_size);
  l.k = l.v = {2 * 256 * 64, 64, 256 * 64};
  check_same(on_cpu{}, y, full{}, l);
}

// PyTorch issue 119500: q, v and d_o are [2, 513, 16, 64] in memory while k is [2, 16, 513, 64]; strides of gradients
// were mixed up. d_v has v's layout, d_k has k's.
TEST_CASE("k laid out differently from v: each gradient has its own tensor's layout") {
  attention_case<f32_64> x({.batch = 2, .q = 513, .k = 513, .q_heads = 16, .kv_heads = 16});
  x.run(on_cpu{}, full{});
  layout l = dense_layout(x.q_size, x.k_size);
  l.k = l.d_k = head_major(x.k_size);
  check_same(on_cpu{}, x, full{}, l);
}

// flash-attention issues 1500, 1311 and 2214, PyTorch issue 190857: 32-bit products of an index and a stride.
TEST_CASE("a batch, sequence or heads stride past 2^31 elements, in every tensor") {
  attention_case<f32_64> x({.batch = 3, .q = 70, .k = 150, .q_heads = 4, .kv_heads = 2});
  compare_with_reference(on_cpu{}, x, full{});
  auto const each = [&](auto const& widen) {
    layout l = dense_layout(x.q_size, x.k_size);
    std::int64_t step = beyond;
    for (strides* s : {&l.q, &l.k, &l.v, &l.o, &l.d_o, &l.d_q, &l.d_k, &l.d_v, &l.lse}) widen(*s, step += 12'352);
    check_same(on_cpu{}, x, full{}, l);
  };
  SUBCASE("batch") {
    each([](strides& s, std::int64_t step) { s.batch = step; });
  }
  SUBCASE("sequence") {
    each([](strides& s, std::int64_t step) { s.sequence = step, s.batch = 151 * step; });
  }
  SUBCASE("heads") {
    each([](strides& s, std::int64_t step) { s.heads = step, s.batch = 5 * step; });
  }
}

TEST_CASE("a batch stride past 2^31 elements, bf16") {
  attention_case<bf16_128> x({.batch = 2, .q = 70, .k = 90, .q_heads = 2, .kv_heads = 1});
  compare_with_reference(on_cpu{}, x, full{});
  layout l = dense_layout(x.q_size, x.k_size);
  for (strides* s : {&l.q, &l.k, &l.v, &l.o, &l.d_o, &l.d_q, &l.d_k, &l.d_v, &l.lse}) s->batch = beyond + 128;
  check_same(on_cpu{}, x, full{}, l);
}
