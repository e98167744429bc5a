// What the engine promises beyond numbers: determinism, empty rows, non-finite values behind a mask, strides, gradients
// that are added, partial results that merge, workspaces, refusals.
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <lanewise/variants.hpp>
#include <system_error>

#include "../support/attention_case.hpp"

using namespace testing;

namespace {

constexpr config f32_64{.head_dim = 64};
constexpr config f32_72{.head_dim = 72};
constexpr config bf16_64{.head_dim = 64, .precision = precision::bf16};
constexpr config bf16_f32{.head_dim = 64, .precision = precision::bf16, .gradient = gradient_type::f32};

template <config C, class F>
void check_threads(F const& f, sizes s) {
  attention_case<C> one(s);
  one.run(on_cpu{}, f);
  for (int threads : {2, 3, 7})
    for (int repeat = 0; repeat < 10; ++repeat) {
      thread_pool pool(threads);
      attention_case<C> many(s);
      many.run(on_cpu(pool), f);
      CHECK(same_bits(one.o, many.o));
      CHECK(same_bits(one.lse, many.lse));
      CHECK(same_bits(one.d_q, many.d_q));
      CHECK(same_bits(one.d_k, many.d_k));
      CHECK(same_bits(one.d_v, many.d_v));
    }
}

}  // namespace

TEST_CASE("every bit is the same for any number of threads, run after run") {
  sizes const s{.batch = 1, .q = 500, .k = 700, .q_heads = 2, .kv_heads = 1};
  check_threads<f32_64>(full{}, s);
  check_threads<f32_64>(causal_bottom_right{}, s);
  check_threads<f32_72>(window{100, 20}, s);
  check_threads<bf16_64>(causal_top_left{}, s);
}

TEST_CASE("empty rows: O, gradients and LSE are zero, LSE minus infinity where the config asks; they reach nothing") {
  auto const check = []<config C>(float lse) {
    attention_case<C> x({.batch = 2, .q = 200, .k = 90, .q_heads = 2, .kv_heads = 1});
    // the first 110 rows see nothing; what they hold must not matter
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < 110 * 2 * C.head_dim; ++i) {
        std::int64_t const at = b * 200 * 2 * C.head_dim + i;
        x.q[at] = from_float<element<C>>(NAN);
        x.d_o[at] = from_float<element<C>>(i % 2 ? INFINITY : NAN);
      }
    x.run(on_cpu{}, causal_bottom_right{});
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < 110 * 2; ++i) {
        CHECK(x.lse[b * 400 + i] == lse);
        for (int c = 0; c < C.head_dim; ++c) {
          CHECK(to_float(x.o[(b * 400 + i) * C.head_dim + c]) == 0.f);
          CHECK(to_float(x.d_q[(b * 400 + i) * C.head_dim + c]) == 0.f);
        }
      }
    CHECK(all_finite(x.o));
    CHECK(all_finite(x.d_q));
    CHECK(all_finite(x.d_k));
    CHECK(all_finite(x.d_v));
    auto const r = x.expected(causal_bottom_right{});
    CHECK(relative_error(x.d_k, r.d_k) < (sizeof(element<C>) == 4 ? 5e-6 : 0.02));
  };
  check.operator()<f32_64>(0.f);
  check.operator()<config{.head_dim = 64, .empty_lse = empty_lse::minus_infinity}>(-infinity);
  check.operator()<bf16_f32>(0.f);
}

TEST_CASE("a NaN in a visible key shows") {
  attention_case<f32_64> x({});
  x.v[5] = NAN;
  x.run(on_cpu{}, full{});
  CHECK(!all_finite(x.o));
}

TEST_CASE("strides: any order of the outer dimensions, interleaved q k v, broadcast inputs, gradients of their own") {
  constexpr int d = 64, heads = 2, n = 90;
  attention_case<f32_64> x({.batch = 2, .q = n, .k = n, .q_heads = heads, .kv_heads = heads});
  x.run(on_cpu{}, causal_top_left{});

  extents const e{2, n, heads, d};
  std::vector<float> qkv(2 * n * 3 * heads * d), d_qkv(qkv.size(), NAN), o(2 * heads * n * d, NAN), d_o(o.size());
  strides const inter{n * 3 * heads * d, 3 * heads * d, d}, head_major{heads * n * d, d, n * d};
  float *const q = qkv.data(), *const k = q + heads * d, *const v = k + heads * d;
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t s = 0; s < n; ++s)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t c = 0; c < d; ++c) {
          std::int64_t const dense_at = ((b * n + s) * heads + h) * d + c,
                             at = b * inter.batch + s * inter.sequence + h * d + c;
          q[at] = x.q[dense_at], k[at] = x.k[dense_at], v[at] = x.v[dense_at];
          d_o[b * head_major.batch + h * head_major.heads + s * head_major.sequence + c] = x.d_o[dense_at];
        }
  std::vector<float> lse(2 * n * heads), saved_o;
  auto fwd = x.forward_call();
  fwd.q = view<float>(q, e, inter), fwd.k = view<float>(k, e, inter), fwd.v = view<float>(v, e, inter);
  fwd.o = {o.data(), e, head_major};
  fwd.lse = {lse.data(), {2, n, heads, 1}, {heads * n, 1, n}};
  auto bwd = x.backward_call();
  bwd.q = fwd.q, bwd.k = fwd.k, bwd.v = fwd.v, bwd.o = fwd.o, bwd.lse = fwd.lse,
  bwd.d_o = view<float>(d_o.data(), e, head_major);
  bwd.d_q = {d_qkv.data(), e, inter}, bwd.d_k = {d_qkv.data() + heads * d, e, inter},
  bwd.d_v = {d_qkv.data() + 2 * heads * d, e, inter};
  attention_case<f32_64> y = x;
  y.run(on_cpu{}, causal_top_left{}, fwd, bwd);
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t s = 0; s < n; ++s)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t c = 0; c < d; ++c) {
          std::int64_t const dense_at = ((b * n + s) * heads + h) * d + c,
                             at = b * inter.batch + s * inter.sequence + h * d + c;
          REQUIRE(o[b * head_major.batch + h * head_major.heads + s * d + c] == x.o[dense_at]);
          REQUIRE(d_qkv[at] == x.d_q[dense_at]);
          REQUIRE(d_qkv[at + heads * d] == x.d_k[dense_at]);
          REQUIRE(d_qkv[at + 2 * heads * d] == x.d_v[dense_at]);
        }

  // one key row for the whole batch, by stride 0
  attention_case<f32_64> broadcast = x;
  auto const half = std::ptrdiff_t(broadcast.k.size() / 2);
  std::copy(broadcast.k.begin(), broadcast.k.begin() + half, broadcast.k.begin() + half);
  broadcast.run(on_cpu{}, full{});
  attention_case<f32_64> viewed = x;
  auto f0 = viewed.forward_call();
  auto b0 = viewed.backward_call();
  f0.k.stride.batch = b0.k.stride.batch = 0;
  viewed.run(on_cpu{}, full{}, f0, b0);
  CHECK(same_bits(broadcast.o, viewed.o));
  CHECK(same_bits(broadcast.d_q, viewed.d_q));
  CHECK(same_bits(broadcast.d_k, viewed.d_k));
}

TEST_CASE_TEMPLATE_DEFINE("accumulate adds to what is there", Tag, accumulates) {
  constexpr config C = Tag::value;
  attention_case<C> x({.batch = 1, .q = 100, .k = 150, .q_heads = 4, .kv_heads = 2});
  x.run(on_cpu{}, causal_bottom_right{});
  auto y = x;
  y.accumulate = true;
  y.run(on_cpu{}, causal_bottom_right{});
  auto const doubled = [](auto const& once, auto const& twice) {
    double worst = 0, norm = 0;
    for (std::size_t i = 0; i < once.size(); ++i) {
      double const e = 2. * to_float(once[i]) - to_float(twice[i]);
      worst += e * e, norm += 4. * to_float(once[i]) * to_float(once[i]);
    }
    return std::sqrt(worst / norm);
  };
  double const bar = 2 * epsilon_of<gradient<C>>;
  CHECK(doubled(x.d_q, y.d_q) < bar);
  CHECK(doubled(x.d_k, y.d_k) < bar);
  CHECK(doubled(x.d_v, y.d_v) < bar);
}
template <config C>
struct tag {
  static constexpr config value = C;
};
TEST_CASE_TEMPLATE_DEFINE(
    "keys that no row sees: NaN and infinity there reach nothing, their gradients are exactly zero", Tag,
    hides_dead_keys) {
  constexpr config C = Tag::value;
  using E = element<C>;
  constexpr int width = 2 * C.head_dim;
  std::vector<std::uint32_t> bits(bit_mask_words(130), 0xffffffffu);
  for (int key = 0; key < 130; key += 7) bits[key / 32] &= ~(1u << key % 32);
  key_padding_bits const f{bits.data(), 0};
  attention_case<C> clean({.batch = 2, .q = 101, .k = 130, .q_heads = 4, .kv_heads = 2});
  auto poisoned = clean;
  for (int b = 0; b < 2; ++b)
    for (int key = 0; key < 130; key += 7)
      for (int c = 0; c < width; ++c) {
        poisoned.k[(b * 130 + key) * width + c] = from_float<E>(c % 3 ? NAN : -INFINITY);
        poisoned.v[(b * 130 + key) * width + c] = from_float<E>(c % 3 ? INFINITY : NAN);
      }
  clean.run(on_cpu{}, f);
  poisoned.run(on_cpu{}, f);
  CHECK(same_bits(clean.o, poisoned.o));
  CHECK(same_bits(clean.lse, poisoned.lse));
  CHECK(same_bits(clean.d_q, poisoned.d_q));
  CHECK(same_bits(clean.d_k, poisoned.d_k));
  CHECK(same_bits(clean.d_v, poisoned.d_v));
  for (int b = 0; b < 2; ++b)
    for (int key = 0; key < 130; key += 7)
      for (int c = 0; c < width; ++c) {
        CHECK(to_float(poisoned.d_k[(b * 130 + key) * width + c]) == 0.f);
        CHECK(to_float(poisoned.d_v[(b * 130 + key) * width + c]) == 0.f);
      }
}

TEST_CASE_TEMPLATE_INVOKE(hides_dead_keys, tag<f32_64>, tag<f32_72>, tag<bf16_64>, tag<bf16_f32>);
TEST_CASE_TEMPLATE_INVOKE(accumulates, tag<f32_64>, tag<f32_72>, tag<bf16_64>, tag<bf16_f32>);

TEST_CASE("partial results over two halves of the keys merge, and their gradients add up") {
  constexpr config part{.head_dim = 64, .empty_lse = empty_lse::minus_infinity};
  attention_case<part> whole({.q = 60, .k = 120});
  whole.with_d_lse = false;
  whole.run(on_cpu{}, causal_bottom_right{});

  attention_case<part> rest = whole;
  rest.clear();
  std::vector<float> o(whole.o.size(), 0.f), lse(whole.lse.size(), -infinity);
  extents const half{1, 60, 2, 64};
  auto const keys = [&](auto& x, int i) { return view<float>(x.data() + i * 60 * 2 * 64, half); };
  for (int i = 0; i < 2; ++i) {  // keys 0..59 are all visible, 60..119 top-left causal
    auto a = rest.forward_call();
    a.k = keys(rest.k, i), a.v = keys(rest.v, i);
    scratch_memory const scratch(forward_workspace<part>(cpu_target(1), a.q.size, half));
    REQUIRE(bool(i == 0 ? forward<part>(on_cpu{}, a, full{}, scratch)
                        : forward<part>(on_cpu{}, a, causal_top_left{}, scratch)));
    for (std::size_t r = 0; r < lse.size(); ++r) {
      float const top = std::max(lse[r], rest.lse[r]),
                  merged = top + std::log(std::exp(lse[r] - top) + std::exp(rest.lse[r] - top));
      for (int c = 0; c < 64; ++c)
        o[r * 64 + c] = o[r * 64 + c] * std::exp(lse[r] - merged) + rest.o[r * 64 + c] * std::exp(rest.lse[r] - merged);
      lse[r] = merged;
    }
  }
  CHECK(relative_error(o, std::vector<double>(whole.o.begin(), whole.o.end())) < 1e-6);

  std::fill(rest.d_q.begin(), rest.d_q.end(), 0.f);
  for (int i = 0; i < 2; ++i) {
    auto a = rest.backward_call();
    a.k = keys(rest.k, i), a.v = keys(rest.v, i), a.d_k = keys(rest.d_k, i), a.d_v = keys(rest.d_v, i);
    a.o = view<float>(o.data(), a.q.size), a.lse = view<float>(lse.data(), {1, 60, 2, 1});
    std::fill(rest.d_k.begin() + i * 7680, rest.d_k.begin() + (i + 1) * 7680, 0.f);
    std::fill(rest.d_v.begin() + i * 7680, rest.d_v.begin() + (i + 1) * 7680, 0.f);
    a.accumulate = true;
    scratch_memory const scratch(backward_workspace<part>(cpu_target(1), a.q.size, half));
    REQUIRE(bool(i == 0 ? backward<part>(on_cpu{}, a, full{}, scratch)
                        : backward<part>(on_cpu{}, a, causal_top_left{}, scratch)));
  }
  auto const r = whole.expected(causal_bottom_right{});
  CHECK(relative_error(rest.d_q, r.d_q) < 5e-6);
  CHECK(relative_error(rest.d_k, r.d_k) < 5e-6);
  CHECK(relative_error(rest.d_v, r.d_v) < 5e-6);
}

TEST_CASE("parameter gradients over every broadcast, added in f32 in one order, alone if nothing else is wanted") {
  attention_case<f32_64> x({.batch = 2, .q = 100, .k = 150, .q_heads = 4, .kv_heads = 2});
  thread_pool pool(3);
  auto const norm = [](std::vector<double> const& r) {
    double sum = 0;
    for (double e : r) sum += e * e;
    return std::sqrt(sum);
  };
  std::vector<float> zeros(2 * 4 * 100 * 150), unused(zeros.size());
  double magnitudes = 0;
  bias const of_each_pair{.b = {zeros.data(), 2, 4, 100, 150}, .d_b = {unused.data(), 2, 4, 100, 150}};
  auto const pairs = x.expected(combine{causal_bottom_right{}, softcap{4.f}, of_each_pair});
  for (double e : pairs.parameters.at(0)) magnitudes += std::abs(e);
  for (int mask = 0; mask < 16; ++mask) {
    std::int64_t const n[4] = {mask & 1 ? 2 : 1, mask & 2 ? 4 : 1, mask & 4 ? 100 : 1, mask & 8 ? 150 : 1};
    CAPTURE(mask);
    auto const b = normal(n[0] * n[1] * n[2] * n[3], 5);
    std::vector<float> d_b(b.size(), NAN), again(b.size(), NAN);
    combine const f{causal_bottom_right{}, softcap{4.f},
                    bias{.b = {b.data(), n[0], n[1], n[2], n[3]}, .d_b = {d_b.data(), n[0], n[1], n[2], n[3]}}};
    auto bwd = x.backward_call();
    if (mask % 2) bwd.d_q = {}, bwd.d_k = {}, bwd.d_v = {};
    x.run(on_cpu{}, f, x.forward_call(), bwd);
    auto const r = x.expected(f);
    // A gradient summed over broadcast dimensions cancels: one f32 rounding of the sum of magnitudes is allowed beside
    // the usual 5e-6.
    CHECK(relative_error(d_b, r.parameters.at(0)) < 5e-6 + 0x1p-24 * magnitudes / norm(r.parameters.at(0)));
    combine const g{causal_bottom_right{}, softcap{4.f},
                    bias{.b = {b.data(), n[0], n[1], n[2], n[3]}, .d_b = {again.data(), n[0], n[1], n[2], n[3]}}};
    x.run(on_cpu(pool), g, x.forward_call(), bwd);
    CHECK(same_bits(d_b, again));
  }
}

TEST_CASE("gradients of slopes and sink logits, shared by the batch or not") {
  attention_case<f32_72> x({.batch = 2, .q = 70, .k = 90, .q_heads = 4, .kv_heads = 1});
  for (std::int64_t batch : {1, 2}) {
    auto const slopes = normal(batch * 4, 3, 0.05f), logits = normal(batch * 4, 4);
    std::vector<float> d_slopes(slopes.size(), NAN), d_logits(logits.size(), NAN);
    combine const f{causal_top_left{},
                    alibi{.slope = {slopes.data(), batch, 4, 1, 1}, .d_slope = {d_slopes.data(), batch, 4, 1, 1}},
                    sink{.logit = {logits.data(), batch, 4, 1, 1}, .d_logit = {d_logits.data(), batch, 4, 1, 1}}};
    x.run(on_cpu{}, f);
    auto const r = x.expected(f);
    CHECK(relative_error(d_slopes, r.parameters.at(0)) < 5e-6);
    CHECK(relative_error(d_logits, r.parameters.at(1)) < 5e-6);
    auto const bwd = x.backward_call();
    std::vector<float> const once = d_logits;
    auto more = bwd;
    more.accumulate = true;
    x.run(on_cpu{}, f, x.forward_call(), more);
    for (std::size_t i = 0; i < once.size(); ++i) CHECK(d_logits[i] == 2 * once[i]);
  }
}

TEST_CASE("sink: a row without keys has O = 0 and LSE = logit; NaN in its q and d_o reaches nothing") {
  float const logit = 0.75f;
  float d_logit = NAN;
  attention_case<f32_64> x({.q = 8, .k = 4, .q_heads = 1, .kv_heads = 1});
  combine const f{causal_bottom_right{}, sink{.logit = {&logit, 1, 1, 1, 1}, .d_logit = {&d_logit, 1, 1, 1, 1}}};
  auto const expected = x.expected(f);
  for (int i = 0; i < 4 * 64; ++i) x.q[i] = x.d_o[i] = NAN;
  x.run(on_cpu{}, f);
  CHECK(d_logit == doctest::Approx(expected.parameters.at(0).at(0)).epsilon(1e-5));
  for (int i = 0; i < 4; ++i) {
    CHECK(x.lse[i] == doctest::Approx(0.75));
    CHECK(x.o[i * 64] == 0.f);
  }
}

TEST_CASE("zero-length sequences, batches and heads are legal") {
  attention_case<f32_64> no_keys({.q = 5, .k = 0});
  no_keys.run(on_cpu{}, full{});
  for (float e : no_keys.o) CHECK(e == 0.f);
  for (float e : no_keys.lse) CHECK(e == 0.f);
  for (float e : no_keys.d_q) CHECK(e == 0.f);
  attention_case<f32_64> no_queries({.q = 0, .k = 5});
  no_queries.run(on_cpu{}, causal_bottom_right{});
  for (float e : no_queries.d_k) CHECK(e == 0.f);
  for (float e : no_queries.d_v) CHECK(e == 0.f);
  attention_case<f32_64> nothing({.batch = 0});
  nothing.run(on_cpu{}, full{});
  attention_case<f32_64> no_heads({.q_heads = 0, .kv_heads = 0});
  no_heads.run(on_cpu{}, full{});
}

TEST_CASE("a thread pool that cannot start all its threads throws and ends those that it started") {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  REQUIRE(bool(statm >> pages));
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  rlimit tight = before;
  tight.rlim_cur = pages * std::size_t(sysconf(_SC_PAGESIZE)) + (std::size_t(200) << 20);  // some stacks of 8 MiB
  REQUIRE(setrlimit(RLIMIT_AS, &tight) == 0);
  CHECK_THROWS_AS(thread_pool(1000), std::system_error);
  REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
}

TEST_CASE("workspace: exact, and refused with the numbers when it is not enough") {
  attention_case<f32_64> x({});
  std::size_t const n = forward_workspace<f32_64>(target_of(on_cpu{}), x.q_size, x.k_size, full{});
  scratch_memory const scratch(n);
  workspace w = scratch;
  w.bytes = n - 1;
  status s = forward<f32_64>(on_cpu{}, x.forward_call(), full{}, w);
  CHECK(s.code == status_code::bad_workspace);
  CHECK(std::string(s.message()) ==
        "workspace has " + std::to_string(n - 1) + " bytes, the call needs " + std::to_string(n));
  w = {nullptr, n};
  CHECK(forward<f32_64>(on_cpu{}, x.forward_call(), full{}, w).code == status_code::bad_workspace);
  scratch_memory const larger(n + 64);
  w = larger;
  w.data = static_cast<std::byte*>(w.data) + 64, w.bytes = n;
  CHECK(std::string(forward<f32_64>(on_cpu{}, x.forward_call(), full{}, w).message()) ==
        "workspace is not aligned to 128 bytes");
  CHECK(std::isnan(x.o[0]));  // nothing was written by the refused calls
  // three threads need three rooms; what a backward is not asked for costs nothing
  CHECK(forward_workspace<f32_64>(cpu_target(3), x.q_size, x.k_size) == 3 * n);
  CHECK(backward_workspace<bf16_64>(cpu_target(1), x.q_size, x.k_size, full{}, {.d_q = false}) <
        backward_workspace<bf16_64>(cpu_target(1), x.q_size, x.k_size));
}

TEST_CASE("a variant's own fields are checked before anything runs") {
  attention_case<f32_64> x({});
  scratch_memory const scratch(forward_workspace<f32_64>(cpu_target(1), x.q_size, x.k_size, full{}));
  status const s = forward<f32_64>(on_cpu{}, x.forward_call(), combine{full{}, window{-1, 4}}, scratch);
  CHECK(s.code == status_code::bad_argument);
  CHECK(std::string(s.message()).find("left -1") != std::string::npos);
}

TEST_CASE("a parameter's gradient may overlap nothing") {
  attention_case<f32_64> x({});
  float const b = 0.5f, logits[2] = {0.1f, 0.2f};
  float d_b = 0.f, d_logits[2] = {};
  auto const run = [&](float* to_b, float* to_logits) {
    combine const f{bias{.b = {&b, 1, 1, 1, 1}, .d_b = {to_b, 1, 1, 1, 1}},
                    sink{.logit = {logits, 1, 2, 1, 1}, .d_logit = {to_logits, 1, 2, 1, 1}}};
    scratch_memory const scratch(backward_workspace<f32_64>(cpu_target(1), x.q_size, x.k_size, f));
    return backward<f32_64>(on_cpu{}, x.backward_call(), f, scratch);
  };
  x.run(on_cpu{}, full{});
  CHECK(bool(run(&d_b, d_logits)));
  status s = run(x.d_k.data() + 3, d_logits);
  CHECK(s.code == status_code::alias);
  CHECK(std::string(s.message()) == "a parameter's gradient overlaps d_k: bytes [12, 16) and [0, 32768)");
  s = run(d_logits + 1, d_logits);
  CHECK(std::string(s.message()) == "a parameter's gradient overlaps another parameter's: bytes [0, 8) and [4, 8)");
  CHECK(run(&d_b, x.q.data()).code == status_code::alias);
}

TEST_CASE("the status names the kernel that ran") {
  attention_case<f32_64> x({});
  scratch_memory const scratch(forward_workspace<f32_64>(cpu_target(1), x.q_size, x.k_size, full{}));
  CHECK(std::string(forward<f32_64>(on_cpu(cpu_isa::portable), x.forward_call(), full{}, scratch).kernel) ==
        "cpu forward, portable");
}

TEST_CASE("dispatch calls the listed value and refuses others with the number") {
  int called = 0;
  auto const call = [&]<int D> {
    called = D;
    return status{};
  };
  CHECK(bool(dispatch<64, 96, 128>(96, call)));
  CHECK(called == 96);
  status const s = dispatch<64, 96, 128>(80, call);
  CHECK(s.code == status_code::unsupported);
  CHECK(std::string(s.message()).find("80") != std::string::npos);
}

TEST_CASE("the schedule visits what a brute-force count says") {
  shape const s{1, 1, 3000, 3000};
  tile_counts const n = count_tiles(window{128, 128}, s, 64, 64);
  std::int64_t visited = 0;
  for (int i = 0; i < 3000; i += 64)
    for (int j = 0; j < 3000; j += 64)
      visited += !(j > std::min(i + 63, 2999) + 128 || std::min(j + 63, 2999) < i - 128);
  CHECK(n.visited == visited);
  CHECK(n.total == 47 * 47);
}

/// A mask that counts how often a schedule asks it.
template <class F>
struct counted {
  F inner;
  long* asked;
  bool operator()(position at) const { return keep(inner, at); }
  cover cover_of(block b) const { return ++*asked, lanewise::cover_of(inner, b); }
  block hull_of(block b) const { return ++*asked, lanewise::hull_of(inner, b); }
};

TEST_CASE("a walk visits the tiles that are not empty, in order, and asks little about the others") {
  std::vector<std::int32_t> cu_q{3, 70, 70, 140, 300, 610}, cu_k{0, 5, 90, 90, 400, 690}, lengths{450};
  shape const s{1, 1, 611, 700};
  auto const check_walks = [&](auto const& given, long most) {
    CAPTURE(most);
    long asked = 0;
    auto const f = bind(given, s);
    counted<std::remove_const_t<decltype(f)>> const asking{f, &asked};
    tiling const t{s.q, s.k, 16, 8};
    auto const empty = [&](int i, int j) { return cover_of(f, t.tile(0, 0, i, j)) == cover::empty; };
    for (int i = 0; i < t.q_tiles(); ++i) {
      std::vector<int> expected, forward, backward;
      for (int j = 0; j < t.k_tiles(); ++j)
        if (!empty(i, j)) expected.push_back(j);
      for (int j = next_key_tile(asking, t, 0, 0, i, -1); j < t.k_tiles(); j = next_key_tile(asking, t, 0, 0, i, j))
        forward.push_back(j);
      for (int j = t.k_tiles(); (j = previous_key_tile(asking, t, 0, 0, i, j)) >= 0;)
        backward.insert(backward.begin(), j);
      CHECK(forward == expected);
      CHECK(backward == expected);
      CHECK(asked <= 2 * std::ssize(expected) + most);
      asked = 0;
    }
    for (int j = 0; j < t.k_tiles(); ++j) {
      std::vector<int> expected, visited, backward;
      for (int i = 0; i < t.q_tiles(); ++i)
        if (!empty(i, j)) expected.push_back(i);
      for (int i = next_query_tile(asking, t, 0, 0, -1, j); i < t.q_tiles(); i = next_query_tile(asking, t, 0, 0, i, j))
        visited.push_back(i);
      for (int i = t.q_tiles(); (i = previous_query_tile(asking, t, 0, 0, i, j)) >= 0;)
        backward.insert(backward.begin(), i);
      CHECK(visited == expected);
      CHECK(backward == expected);
      CHECK(asked <= 2 * std::ssize(expected) + most);
      asked = 0;
    }
  };
  check_walks(full{}, 0);
  check_walks(causal_top_left{}, 8);
  check_walks(causal_bottom_right{}, 8);
  check_walks(window{20, 9}, 8);
  check_walks(window_bottom_right{0, unbounded}, 8);
  check_walks(key_padding{lengths.data()}, 8);
  // Keys of a document without queries may lie inside a hull: their tiles are asked one by one.
  check_walks(documents{cu_q.data(), cu_k.data(), 5}, 48);
  check_walks(combine{documents{cu_q.data(), cu_k.data(), 5}, window{40, 40}}, 48);
  // In query tile 0 the documents leave keys 0 ... 7 to queries 8 ... 11, the window to query 0: key tile 0 is visited,
  // since each keeps something there, though both together do not. Tile 1 is empty, so the walk down from tile 2 asks
  // for hulls, and these do not meet.
  std::vector<std::int32_t> apart_q{0, 8, 12, 12, 16}, apart_k{0, 0, 4, 20, 30};
  check_walks(combine{documents{apart_q.data(), apart_k.data(), 4}, window{0, unbounded, 7}}, 48);
}
