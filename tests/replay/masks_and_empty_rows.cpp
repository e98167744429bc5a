// Masks, biases and windows that broke other libraries: rows and tiles without a visible key, lengths that are no
// multiple of 8, lowest finite numbers as a mask.
#include <limits>

#include "replay_case.hpp"

using namespace testing;

namespace {

constexpr config f32_8{.head_dim = 8};
constexpr config f32_16{.head_dim = 16};
constexpr config f32_32{.head_dim = 32};
constexpr config f32_64{.head_dim = 64};
constexpr config f16_32{.head_dim = 32, .precision = precision::f16};
constexpr config f16_128{.head_dim = 128, .precision = precision::f16};
constexpr config bf16_64{.head_dim = 64, .precision = precision::bf16};

/// compare_with_reference, and the gradient of a bias likewise.
template <config C, class T>
void compare_bias(attention_case<C>& x, std::vector<T> const& b, sizes s) {
  constexpr bool f32 = sizeof(T) == 4;
  std::vector<float> d_b(b.size(), NAN);
  basic_bias<T> const f{.b = {b.data(), s.batch, s.q_heads, s.q, s.k},
                        .d_b = {d_b.data(), s.batch, s.q_heads, s.q, s.k}};
  compare_with_reference(on_cpu{}, x, f);
  auto const exact = x.expected(f).parameters.at(0),
             rounded = x.expected(f, reference::same_precision<C>).parameters.at(0);
  CHECK(relative_error(d_b, exact) <= (f32 ? 5e-6 : 2 * relative_error(rounded, exact) + 5e-6));
}

}  // namespace

// xformers issues 808 and 813: a bias [133, 8, 77, 77] in f16 was refused, its stride not being a multiple of 8.
// Nineteen of the 133 batch elements.
TEST_CASE("a bias with rows of 77") {
  sizes const s{.batch = 19, .q = 77, .k = 77, .q_heads = 8, .kv_heads = 8};
  attention_case<f16_32> x(s);
  compare_bias(x, stored<f16>(normal(19 * 8 * 77 * 77, 9)), s);
}

// diffusers issue 9637: key length 43.
TEST_CASE("a bias over 43 keys") {
  attention_case<f16_32> x({.batch = 2, .q = 50, .k = 43, .q_heads = 4, .kv_heads = 4});
  sizes const s{.batch = 1, .q = 50, .k = 43, .q_heads = 4};
  compare_bias(x, stored<f16>(normal(4 * 50 * 43, 9)), s);
}

// The same issue: 350 queries, 700 keys, bf16, an additive mask of 0 and -infinity.
TEST_CASE("350 queries, 700 keys, additive mask in bf16") {
  attention_case<bf16_64> x({.batch = 1, .q = 350, .k = 700, .q_heads = 2, .kv_heads = 2});
  std::vector<float> b = normal(350 * 700, 9);
  for (float& e : b) e = e < 0 ? -INFINITY : 0.f;
  compare_bias(x, stored<bf16>(b), {.batch = 1, .q = 350, .k = 700, .q_heads = 1});
}

// PyTorch issue 188302: q, k and v are frozen and only the bias needs a gradient, f32: a null LSE was read.
TEST_CASE("only the bias's gradient is wanted") {
  attention_case<f32_32> x({.batch = 2, .q = 60, .k = 43, .q_heads = 4, .kv_heads = 4});
  auto const b = normal(4 * 60 * 43, 9);
  std::vector<float> d_b(b.size(), NAN);
  bias const f{.b = {b.data(), 1, 4, 60, 43}, .d_b = {d_b.data(), 1, 4, 60, 43}};
  auto bwd = x.backward_call();
  bwd.d_q = bwd.d_k = bwd.d_v = {};
  x.run(on_cpu{}, f, x.forward_call(), bwd);
  CHECK(relative_error(d_b, x.expected(f).parameters.at(0)) <= 5e-6);
}

// PyTorch issue 103963: [1, 1, 8, 8], the mask true in the top left 4 x 4 block only: rows 4 to 7 were NaN.
TEST_CASE("a boolean mask that leaves rows 4 to 7 empty") {
  attention_case<f32_8> x({.batch = 1, .q = 8, .k = 8, .q_heads = 1, .kv_heads = 1});
  std::vector<std::uint8_t> kept(64);
  for (int q = 0; q < 4; ++q)
    for (int k = 0; k < 4; ++k) kept[q * 8 + k] = 1;
  compare_with_reference(on_cpu{}, x, mask_tensor{kept.data(), 8});
  CHECK(all_equal(&x.o[4 * 8], 4 * 8, 0.f));
  CHECK(all_equal(&x.lse[4], 4, 0.f));
  CHECK(all_equal(&x.d_q[4 * 8], 4 * 8, 0.f));
  CHECK(all_equal(&x.d_k[4 * 8], 4 * 8, 0.f));
  CHECK(all_equal(&x.d_v[4 * 8], 4 * 8, 0.f));
}

// PyTorch issue 103749: q [1, 2, 6, 8], k and v [1, 2, 10, 8], five causal rows and one that is false throughout.
TEST_CASE("a last row that sees nothing") {
  attention_case<f32_8> x({.batch = 1, .q = 6, .k = 10, .q_heads = 2, .kv_heads = 2});
  std::vector<std::uint8_t> kept(60);
  for (int q = 0; q < 5; ++q)
    for (int k = 0; k <= q; ++k) kept[q * 10 + k] = 1;
  compare_with_reference(on_cpu{}, x, mask_tensor{kept.data(), 10});
  CHECK(all_equal(&x.o[5 * 16], 16, 0.f));
  CHECK(all_equal(&x.d_q[5 * 16], 16, 0.f));
}

// PyTorch issue 127055: CPU, 640 tokens, -infinity outside a causal band 10 wide: NaN in rows whose first key tile is
// masked throughout. Head dim 8 for 4, which is no multiple of 8. The right answer is the window's.
TEST_CASE("an additive mask of -infinity that hides whole tiles") {
  attention_case<f32_8> x({.batch = 1, .q = 640, .k = 640, .q_heads = 2, .kv_heads = 2});
  window const band{9, 0};
  std::vector<float> b(640 * 640, 0.f);
  for (int q = 0; q < 640; ++q)
    for (int k = 0; k < 640; ++k)
      if (!band({0, 0, q, k})) b[q * 640 + k] = -INFINITY;
  x.run(on_cpu{}, bias{.b = {b.data(), 1, 1, 640, 640}});
  auto const r = x.expected(band);
  CHECK(relative_error(x.o, r.o) <= 5e-6);
  CHECK(relative_error(x.lse, r.lse) <= 5e-6);
  CHECK(relative_error(x.d_q, r.d_q) <= 5e-6);
  CHECK(relative_error(x.d_k, r.d_k) <= 5e-6);
  CHECK(relative_error(x.d_v, r.d_v) <= 5e-6);
}

// PyTorch issue 109517: 441 tokens, f32, the lowest finite float added to the scores of keys 0 to 127: NaN. The same as
// dropping those keys. Batch 2 and three heads of [32, 12].
TEST_CASE("the lowest finite float as an additive mask") {
  attention_case<f32_64> x({.batch = 2, .q = 441, .k = 441, .q_heads = 3, .kv_heads = 3});
  std::vector<float> b(441, 0.f);
  std::fill_n(b.begin(), 128, std::numeric_limits<float>::lowest());
  x.run(on_cpu{}, bias{.b = {b.data(), 1, 1, 1, 441}});
  extents const rest{2, 441 - 128, 3, 64};
  strides const step = dense(x.k_size);
  reference::problem<float> const p{.q = {x.q.data(), x.q_size},
                                    .k = {&x.k[128 * step.sequence], rest, step},
                                    .v = {&x.v[128 * step.sequence], rest, step},
                                    .d_o = {x.d_o.data(), x.q_size},
                                    .d_lse = {x.d_lse.data(), x.lse_size},
                                    .scale = x.scale};
  auto const r = reference::attention(p, full{});
  CHECK(relative_error(x.o, r.o) <= 5e-6);
  CHECK(relative_error(x.lse, r.lse) <= 5e-6);
  CHECK(relative_error(x.d_q, r.d_q) <= 5e-6);
  for (auto const& [got, right] : {std::pair(&x.d_k, &r.d_k), std::pair(&x.d_v, &r.d_v)}) {
    std::vector<float> visible;
    for (std::int64_t e = 0; e < 2; ++e) {
      auto const* const own = got->data() + e * step.batch;
      CHECK(all_equal(own, 128 * step.sequence, 0.f));
      visible.insert(visible.end(), own + 128 * step.sequence, own + step.batch);
    }
    CHECK(relative_error(visible, *right) <= 5e-6);
  }
}

// TileOPs issues 355 and 295: 1024 tokens, groups of 16, head dim 128, f16, causal and 32 keys to the left, fewer than
// a tile: a mask value of -1e9 gathered weight, error 6.16. Sixteen heads of the 64.
TEST_CASE("a causal window narrower than a tile, 16 query heads to a key head") {
  attention_case<f16_128> x({.batch = 1, .q = 1024, .k = 1024, .q_heads = 16, .kv_heads = 1});
  compare_with_reference(on_cpu{}, x, window{32, 0});
}

// flashinfer issue 4992: a left window without causality; 158 of 636 shapes were wrong, the last keys of a tile's span
// being cut. A subset that has every group ratio, left extent, query and key length.
TEST_CASE("a window bounded on the left only") {
  struct lengths {
    std::int64_t q, k;
  };
  thread_pool pool(2);
  // Left 62 joins the thread's extents: its edge runs through the corners of tiles of 64.
  for (std::int64_t group : {1, 2, 4, 8})
    for (std::int32_t left : {1, 62, 64, 333, 4096}) {
      auto const check = [&](lengths n) {
        CAPTURE(group);
        CAPTURE(left);
        CAPTURE(n.q);
        CAPTURE(n.k);
        attention_case<f32_16> x({.batch = 1, .q = n.q, .k = n.k, .q_heads = group, .kv_heads = 1},
                                 unsigned(group + left + n.q + n.k));
        compare_with_reference(on_cpu(pool), x, window_bottom_right{left, unbounded});
      };
      for (lengths n : {lengths{1, 512}, {17, 4096}, {17, 1024}, {128, 512}, {300, 512}}) check(n);
      if (group == 1 || (group == 8 && left == 333) || (group == 2 && left == 62)) check({1024, 1024});
    }
}
