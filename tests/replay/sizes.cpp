// Counts and lengths that broke other libraries: many batch elements, heads or documents; windows as long as the
// sequence; the same call over and over. Two threads where the work allows.
#include "replay_case.hpp"

using namespace testing;

namespace {

constexpr config f32_16{.head_dim = 16};
constexpr config f16_64{.head_dim = 64, .precision = precision::f16};
constexpr config f16_128{.head_dim = 128, .precision = precision::f16};

}  // namespace

// PyTorch issue 146704: 65,536 batch elements, invalid launch configuration. Two heads of the eight.
TEST_CASE("65,536 batch elements: each as in a batch of 127") {
  thread_pool pool(2);
  attention_case<f16_64> x({.batch = 127, .q = 4, .k = 4, .q_heads = 2, .kv_heads = 2});
  compare_with_reference(on_cpu(pool), x, full{});
  extents const e{65536, 4, 2, 64};
  check_same(on_cpu(pool), x, full{}, e, e, dense_layout(e, e));
}

// flash-attention issue 1786: 80,000 sequences of length 16.
TEST_CASE("80,000 sequences of length 16: each as in a batch of 125") {
  thread_pool pool(2);
  attention_case<f32_16> x({.batch = 125, .q = 16, .k = 16, .q_heads = 1, .kv_heads = 1});
  compare_with_reference(on_cpu(pool), x, full{});
  extents const e{80000, 16, 1, 16};
  check_same(on_cpu(pool), x, full{}, e, e, dense_layout(e, e));
}

// The same issue's packed form: 80,000 documents, of lengths 0, 1 and 2 in turn, in one sequence.
TEST_CASE("80,000 packed documents") {
  constexpr std::int32_t count = 80000, triples = count / 3, n = 3 * triples + 1;
  std::vector<std::int32_t> cu{0};
  for (int i = 0; i < count; ++i) cu.push_back(cu.back() + i % 3);
  REQUIRE(cu.back() == n);
  thread_pool pool(2);
  attention_case<f16_64> x({.batch = 1, .q = n, .k = n, .q_heads = 1, .kv_heads = 1});
  documents const f{cu.data(), cu.data(), count};
  x.run(on_cpu(pool), f);
  // Tokens 3 i are documents of one, tokens 3 i + 1 and 3 i + 2 one of two.
  for (std::int64_t i = 0; i < n; i += 3) {
    REQUIRE(std::memcmp(&x.o[i * 64], &x.v[i * 64], 128) == 0);
    REQUIRE(std::memcmp(&x.d_v[i * 64], &x.d_o[i * 64], 128) == 0);
  }
  extents const pairs{triples, 2, 1, 64};
  strides const apart{3 * 64, 64, 64};
  auto const in = [&](std::vector<f16> const& t) { return view<f16 const>(t.data() + 64, pairs, apart); };
  auto const two_of_three = [](auto const& t, std::int64_t row) {
    std::decay_t<decltype(t)> y;
    for (std::int64_t i = 0; i < triples; ++i)
      y.insert(y.end(), t.begin() + (3 * i + 1) * row, t.begin() + (3 * i + 3) * row);
    return y;
  };
  reference::problem<f16> const p{.q = in(x.q),
                                  .k = in(x.k),
                                  .v = in(x.v),
                                  .d_o = in(x.d_o),
                                  .d_lse = {x.d_lse.data() + 1, {triples, 2, 1, 1}, {3, 1, 1}},
                                  .scale = x.scale};
  auto const exact = reference::attention(p, full{}),
             rounded = reference::attention(p, full{}, reference::same_precision<f16_64>);
  CHECK(relative_error(two_of_three(x.o, 64), exact.o) <= tolerance<f16>(false, rounded.o, exact.o));
  CHECK(relative_error(two_of_three(x.lse, 1), exact.lse) <= 5e-6);
  CHECK(relative_error(two_of_three(x.d_q, 64), exact.d_q) <= tolerance<f16>(false, rounded.d_q, exact.d_q));
  CHECK(relative_error(two_of_three(x.d_k, 64), exact.d_k) <= tolerance<f16>(false, rounded.d_k, exact.d_k));
  CHECK(relative_error(two_of_three(x.d_v, 64), exact.d_v) <= tolerance<f16>(false, rounded.d_v, exact.d_v));
}

// PyTorch issue 142228: [1, 65536, 10, 16] f32 with 65,536 heads, invalid launch configuration.
TEST_CASE("65,536 heads: each as among 64") {
  thread_pool pool(2);
  attention_case<f32_16> x({.batch = 1, .q = 10, .k = 10, .q_heads = 64, .kv_heads = 64});
  compare_with_reference(on_cpu(pool), x, full{});
  extents const e{1, 10, 65536, 16};
  layout l = dense_layout(e, e);
  l.q = l.k = l.v = l.o = l.d_o = l.d_q = l.d_k = l.d_v = head_major(e);
  check_same(on_cpu(pool), x, full{}, e, e, l);
}

// flash-attention issue 1133: at sequence length 16,384 the window (S - 1, 0) differed from causal. One head of eight,
// head dim 16: what mattered is the window's width against the length.
TEST_CASE("a window at least as long as the sequence is causal") {
  constexpr std::int32_t n = 16384;
  thread_pool pool(2);
  attention_case<f32_16> x({.batch = 1, .q = n, .k = n, .q_heads = 1, .kv_heads = 1});
  x.run(on_cpu(pool), causal_bottom_right{});
  for (std::int32_t left : {n - 1, n, unbounded}) {
    auto y = x;
    y.clear();
    y.run(on_cpu(pool), window{left, 0});
    CHECK(same_bits(x.o, y.o));
    CHECK(same_bits(x.lse, y.lse));
    CHECK(same_bits(x.d_q, y.d_q));
    CHECK(same_bits(x.d_k, y.d_k));
    CHECK(same_bits(x.d_v, y.d_v));
  }
  auto y = x;
  y.run(on_cpu(pool), window{n - 2, 0});  // the last row loses key 0 and nothing else changes
  CHECK(std::memcmp(y.o.data(), x.o.data(), std::size_t(n - 1) * 16 * 4) == 0);
  CHECK(!same_bits(x.o, y.o));
}

// flash-attention issue 2244: d_q of a backward that was said to be deterministic differed in 29 of 30 runs.
TEST_CASE("30 backwards of one call on three threads are equal in every bit") {
  thread_pool pool(3);
  attention_case<f16_128> x({.batch = 1, .q = 500, .k = 500, .q_heads = 4, .kv_heads = 2});
  x.run(on_cpu(pool), causal_top_left{});
  for (int i = 0; i < 30; ++i) {
    auto y = x;
    y.clear();
    y.run(on_cpu(pool), causal_top_left{});
    CHECK(same_bits(x.d_q, y.d_q));
    CHECK(same_bits(x.d_k, y.d_k));
    CHECK(same_bits(x.d_v, y.d_v));
  }
}
