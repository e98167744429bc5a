// Packed documents that broke other libraries: documents without queries or without keys, gaps, sinks.
#include "replay_case.hpp"

using namespace testing;

namespace {

constexpr config f32_64{.head_dim = 64};
constexpr config f32_192{.head_dim = 192};
constexpr config f16_32{.head_dim = 32, .precision = precision::f16};
constexpr config bf16_120{.head_dim = 120, .precision = precision::bf16};
constexpr config bf16_256{.head_dim = 256, .precision = precision::bf16};

}  // namespace

// flash-attention issue 443: documents of 76, 34 and 146 queries with one key each, bottom-right causal, 3 randn, d_o =
// 1, f16: d_q NaN. Only the last query of each document sees its key.
TEST_CASE("documents with more queries than keys") {
  std::int32_t const cu_q[] = {0, 76, 110, 256}, cu_k[] = {0, 1, 2, 3};
  attention_case<f16_32> x({.batch = 1, .q = 256, .k = 3, .q_heads = 1, .kv_heads = 1}, 1, 3.f);
  for (f16& e : x.v) e = from_float<f16>(3 * to_float(e));
  std::fill(x.d_o.begin(), x.d_o.end(), from_float<f16>(1.f));
  x.run(on_cpu{}, documents{cu_q, cu_k, 3, causal_bottom_right{}});
  CHECK(all_finite(x));
  for (int d = 0; d < 3; ++d) {
    for (int q = cu_q[d]; q < cu_q[d + 1] - 1; ++q) {
      CHECK(all_equal(&x.o[q * 32], 32, 0.f));
      CHECK(all_equal(&x.d_q[q * 32], 32, 0.f));
      CHECK(x.lse[q] == 0.f);
    }
    CHECK(std::memcmp(&x.o[(cu_q[d + 1] - 1) * 32], &x.v[d * 32], 64) == 0);
  }
  CHECK(all_equal(x.d_v.data(), 3 * 32, 1.f));
}

// flash-attention issue 2562: CUDA error 700 in the backward. Documents 0 and 3 have keys but no queries: d_k and d_v
// of keys 0 to 2537 and 5120 to 8191 are 0. d_o is 0 but for every sixteenth query, so that the reference needs only
// those.
TEST_CASE("documents without queries at both ends, head dim 256, four query heads to a key head") {
  std::int32_t const cu_q[] = {0, 0, 1208, 2048, 2048}, cu_k[] = {0, 2538, 4280, 5120, 8192};
  constexpr std::int64_t d = 256, heads = 4, step = 16;
  thread_pool pool(2);
  attention_case<bf16_256> x({.batch = 1, .q = 2048, .k = 8192, .q_heads = heads, .kv_heads = 1});
  x.with_d_lse = false;
  for (std::int64_t q = 0; q < 2048; ++q)
    if (q % step != 0) std::fill_n(x.d_o.begin() + q * heads * d, heads * d, bf16{});
  x.run(on_cpu(pool), documents{cu_q, cu_k, 4});
  CHECK(all_finite(x));
  for (auto const* g : {&x.d_k, &x.d_v}) {
    CHECK(all_equal(g->data(), 2538 * d, 0.f));
    CHECK(all_equal(g->data() + 5120 * d, (8192 - 5120) * d, 0.f));
  }
  for (int i : {1, 2}) {
    std::int64_t const from = (cu_q[i] + step - 1) / step * step, queries = (cu_q[i + 1] - from + step - 1) / step;
    extents const q{1, queries, heads, d}, k{1, cu_k[i + 1] - cu_k[i], 1, d};
    strides const skip{0, step * heads * d, d};
    auto const of_q = [&](std::vector<bf16> const& t) {
      return view<bf16 const>(t.data() + from * heads * d, q, skip);
    };
    reference::problem<bf16> const p{.q = of_q(x.q),
                                     .k = {x.k.data() + cu_k[i] * d, k},
                                     .v = {x.v.data() + cu_k[i] * d, k},
                                     .d_o = of_q(x.d_o),
                                     .scale = x.scale};
    auto const exact = reference::attention(p, full{}),
               rounded = reference::attention(p, full{}, reference::same_precision<bf16_256>);
    CHECK(relative_error(every_row(x.o, heads * d, from, step, queries), exact.o) <=
          tolerance<bf16>(false, rounded.o, exact.o));
    CHECK(relative_error(every_row(x.d_q, heads * d, from, step, queries), exact.d_q) <=
          tolerance<bf16>(false, rounded.d_q, exact.d_q));
    CHECK(relative_error(every_row(x.d_k, d, cu_k[i], 1, k.sequence), exact.d_k) <=
          tolerance<bf16>(false, rounded.d_k, exact.d_k));
    CHECK(relative_error(every_row(x.d_v, d, cu_k[i], 1, k.sequence), exact.d_v) <=
          tolerance<bf16>(false, rounded.d_v, exact.d_v));
  }
}

// flash-attention issue 1619: a single token behind three empty documents, 21 query heads, 7 key heads, head dim 120,
// bf16: refused, as if lengths of 1 meant another layout.
TEST_CASE("one token behind empty documents, head dim 120") {
  std::int32_t const cu[] = {0, 0, 0, 0, 1};
  attention_case<bf16_120> x({.batch = 1, .q = 1, .k = 1, .q_heads = 21, .kv_heads = 7});
  x.with_d_lse = false;
  x.run(on_cpu{}, documents{cu, cu, 4});
  CHECK(all_finite(x));
  for (int h = 0; h < 21; ++h) CHECK(std::memcmp(&x.o[h * 120], &x.v[h / 3 * 120], 240) == 0);
  auto const exact = x.expected(full{}), rounded = x.expected(full{}, reference::same_precision<bf16_120>);
  CHECK(relative_error(x.d_v, exact.d_v) <= tolerance<bf16>(false, rounded.d_v, exact.d_v));
}

// flash-attention issue 1537: one query against three keys, no query against none, one query against five; 9 query
// heads, 3 key heads, causal.
TEST_CASE("documents of one query, and an empty one between them") {
  std::int32_t const cu_q[] = {0, 1, 1, 2}, cu_k[] = {0, 3, 3, 8};
  attention_case<f32_64> x({.batch = 1, .q = 2, .k = 8, .q_heads = 9, .kv_heads = 3});
  compare_with_reference(on_cpu{}, x, documents{cu_q, cu_k, 3, causal_bottom_right{}});
  // independent of the variant: each query sees every key of its document
  for (int i = 0; i < 2; ++i) {
    extents const q{1, 1, 9, 64}, k{1, i ? 5 : 3, 3, 64};
    reference::problem<float> const p{
        .q = {&x.q[i * 576], q}, .k = {&x.k[i * 576], k}, .v = {&x.v[i * 576], k}, .scale = x.scale};
    CHECK(relative_error(every_row(x.o, 576, i, 1, 1), reference::attention(p, full{}).o) <= 5e-6);
  }
}

// TransformerEngine issue 3205, flash-attention issue 2324: a buffer of 16 tokens, documents of 3 and 5 at 0 and 4, so
// that tokens 3 and 9 to 15 belong to none: stale NaN stayed in their gradients. A gap is a document of queries without
// keys followed by one of keys without queries.
TEST_CASE("gaps between documents: what they hold reaches nothing, their outputs and gradients are 0") {
  std::int32_t const cu_q[] = {0, 3, 4, 4, 9}, cu_k[] = {0, 3, 3, 4, 9};
  documents const f{cu_q, cu_k, 4};
  attention_case<bf16_120> clean({.batch = 2, .q = 16, .k = 16, .q_heads = 2, .kv_heads = 1});
  auto x = clean;
  auto const in_gap = [](std::int64_t token) { return token == 3 || token >= 9; };
  for (std::int64_t t = 0; t < 32; ++t)
    if (in_gap(t % 16))
      for (auto* p : {&x.q, &x.k, &x.v, &x.d_o}) {
        std::int64_t const row = std::int64_t(p->size()) / 32;
        for (std::int64_t i = 0; i < row; ++i) (*p)[t * row + i] = from_float<bf16>(i % 2 ? NAN : INFINITY);
      }
  clean.run(on_cpu{}, f);
  x.run(on_cpu{}, f);  // outputs and gradients start as NaN
  for (std::int64_t t = 0; t < 32; ++t)
    if (in_gap(t % 16)) {
      CHECK(all_equal(&x.o[t * 240], 240, 0.f));
      CHECK(all_equal(&x.lse[t * 2], 2, 0.f));
      CHECK(all_equal(&x.d_q[t * 240], 240, 0.f));
      CHECK(all_equal(&x.d_k[t * 120], 120, 0.f));
      CHECK(all_equal(&x.d_v[t * 120], 120, 0.f));
    }
  CHECK(all_finite(x));
  CHECK(same_bits(x.o, clean.o));
  CHECK(same_bits(x.lse, clean.lse));
  CHECK(same_bits(x.d_q, clean.d_q));
  CHECK(same_bits(x.d_k, clean.d_k));
  CHECK(same_bits(x.d_v, clean.d_v));
}

// TransformerEngine issue 3249: packed documents with a sink, head dim 192: the sink's gradient was wrong, LSE being
// read as if it were dense. The last 20 tokens belong to no document and have no sink either.
TEST_CASE("documents with a sink: its gradient") {
  std::int32_t const cu[] = {0, 37, 37, 100};
  attention_case<f32_192> x({.batch = 2, .q = 120, .k = 120, .q_heads = 4, .kv_heads = 2});
  auto const logit = normal(4, 9);
  std::vector<float> d_logit(4, NAN);
  documents const f{cu, cu, 3, sink{.logit = {logit.data(), 1, 4, 1, 1}, .d_logit = {d_logit.data(), 1, 4, 1, 1}}};
  compare_with_reference(on_cpu{}, x, f);
  CHECK(relative_error(d_logit, x.expected(f).parameters.at(0)) <= 5e-6);
  // independent of the variant: each document alone
  std::vector<double> sum(4);
  for (int i : {0, 2}) {
    extents const q{2, cu[i + 1] - cu[i], 4, 192}, k{2, q.sequence, 2, 192}, l{2, q.sequence, 4, 1};
    strides const of_q = dense(x.q_size), of_k = dense(x.k_size), of_l = dense(x.lse_size);
    reference::problem<float> const p{.q = {&x.q[cu[i] * of_q.sequence], q, of_q},
                                      .k = {&x.k[cu[i] * of_k.sequence], k, of_k},
                                      .v = {&x.v[cu[i] * of_k.sequence], k, of_k},
                                      .d_o = {&x.d_o[cu[i] * of_q.sequence], q, of_q},
                                      .d_lse = {&x.d_lse[cu[i] * of_l.sequence], l, of_l},
                                      .scale = x.scale};
    auto const r = reference::attention(p, f.inner);
    for (int h = 0; h < 4; ++h) sum[h] += r.parameters.at(0)[h];
  }
  CHECK(relative_error(d_logit, sum) <= 5e-6);
}
