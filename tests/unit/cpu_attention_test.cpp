// The CPU engine against the f64 reference: every instruction set, head dims, grouped heads, variants, ragged lengths.
#include <lanewise/variants.hpp>

#include "../support/attention_case.hpp"

using namespace testing;

namespace {

/// A user's variant, complete with its backward.
struct capped_window {
  float cap;
  int width;
  bool operator()(position at) const { return at.k <= at.q && at.q - at.k < width; }
  float operator()(float s, position) const { return cap * std::tanh(s / cap); }
  float grad(float s, position) const {
    float const t = std::tanh(s / cap);
    return 1 - t * t;
  }
};

constexpr config f32_64{.head_dim = 64};
constexpr config f32_40{.head_dim = 40};

template <int D>
void head_dim_case(cpu_isa isa) {
  CAPTURE(D);
  constexpr config c{.head_dim = D};
  attention_case<c> x({.batch = 2, .q = 70, .k = 131, .q_heads = 2, .kv_heads = 1}, D);
  compare_with_reference(on_cpu(isa), x, causal_bottom_right{});
}

}  // namespace

TEST_CASE("head dims 8 ... 256 in steps of 8") {
  for (cpu_isa isa : instruction_sets()) {
    [&]<int... I>(std::integer_sequence<int, I...>) { (head_dim_case<8 * (I + 1)>(isa), ...); }
    (std::integer_sequence<int, 0, 1, 2, 4, 7, 8, 9, 11, 14, 15, 23, 31>{});
  }
}

TEST_CASE("grouped heads at any batch") {
  for (cpu_isa isa : instruction_sets())
    for (std::int64_t batch : {1, 2, 3})
      for (std::int64_t ratio : {1, 2, 4, 8}) {
        CAPTURE(batch);
        CAPTURE(ratio);
        attention_case<f32_40> x({.batch = batch, .q = 37, .k = 67, .q_heads = 2 * ratio, .kv_heads = 2},
                                 unsigned(10 * batch + ratio));
        compare_with_reference(on_cpu(isa), x, full{});
      }
}

TEST_CASE("ragged lengths around the tile sizes") {
  for (cpu_isa isa : instruction_sets())
    for (std::int64_t q : {1, 15, 17, 63, 64, 65, 129})
      for (std::int64_t k : {1, 16, 63, 65, 127, 129, 257}) {
        CAPTURE(q);
        CAPTURE(k);
        attention_case<f32_40> x({.q = q, .k = k}, unsigned(q * 1000 + k));
        compare_with_reference(on_cpu(isa), x, full{});
      }
}

TEST_CASE("every stock variant, a user's own, and combinations") {
  thread_pool pool(2);
  std::int32_t const lengths[] = {150, 77};
  std::vector<std::uint32_t> bits(2 * bit_mask_words(201), 0xffffffffu);
  for (int b = 0; b < 2; ++b)
    for (int key = b; key < 201; key += 7) bits[b * bit_mask_words(201) + key / 32] &= ~(1u << key % 32);
  std::int32_t const cu_q[] = {0, 0, 50, 51, 120, 180}, cu_k[] = {0, 9, 60, 61, 140, 201};
  auto const b = normal(2 * 4 * 180 * 201, 20), slopes = normal(4, 21, 0.05f), logits = normal(4, 22);
  bias const full_bias{.b = {b.data(), 2, 4, 180, 201}}, row_bias{.b = {b.data(), 1, 4, 1, 201}};
  alibi const slope{.slope = {slopes.data(), 1, 4, 1, 1}};
  sink const extra{.logit = {logits.data(), 1, 4, 1, 1}};

  for (cpu_isa isa : instruction_sets()) {
    on_cpu const on(pool, isa);
    attention_case<f32_64> x({.batch = 2, .q = 180, .k = 201, .q_heads = 4, .kv_heads = 2});
    auto const check = [&](char const* name, auto const& f) {
      CAPTURE(name);
      x.clear();
      compare_with_reference(on, x, f);
    };
    check("full", full{});
    check("causal_top_left", causal_top_left{});
    check("causal_bottom_right", causal_bottom_right{});
    check("window", window{30, 5});
    check("window, one side", window{.left = unbounded, .right = 0});
    check("window_bottom_right", window_bottom_right{17, 0});
    check("key_padding", key_padding{lengths});
    check("key_padding_bits", key_padding_bits{bits.data(), bit_mask_words(201)});

    check("documents", documents{cu_q, cu_k, 5});
    check("documents, causal", documents{cu_q, cu_k, 5, causal_bottom_right{}});
    check("bias", full_bias);
    check("bias, broadcast", row_bias);
    check("softcap", softcap{2.f});
    check("alibi", slope);
    check("sink", extra);
    check("user's", capped_window{2.f, 40});
    attention_case<f32_64> self({.batch = 2, .q = 180, .k = 180, .q_heads = 4, .kv_heads = 2});
    compare_with_reference(on, self, self_padding{lengths});
    check("combine", combine{causal_bottom_right{}, softcap{3.f}, row_bias, extra});
    check("combine, masks", combine{window{60, 60}, key_padding{lengths}});
    check("lambda", [](position at) { return (at.q + at.k) % 3 != 0; });
  }
}

TEST_CASE("bf16 and f16, gradients in the storage type and in f32") {
  auto const check = []<config C>() {
    attention_case<C> x({.batch = 2, .q = 129, .k = 200, .q_heads = 4, .kv_heads = 2});
    for (cpu_isa isa : instruction_sets()) {
      x.clear();
      compare_with_reference(on_cpu(isa), x, causal_bottom_right{});
    }
  };
  check.operator()<config{.head_dim = 64, .precision = precision::bf16}>();
  check.operator()<config{.head_dim = 72, .precision = precision::bf16, .gradient = gradient_type::f32}>();
  check.operator()<config{.head_dim = 128, .precision = precision::f16}>();
  check.operator()<config{.head_dim = 40, .precision = precision::f16, .gradient = gradient_type::f32}>();
}

TEST_CASE("bf16_split with f32 gradients: f32-class, though the stored o has 8 bits") {
  constexpr config split{.head_dim = 72, .precision = precision::bf16_split, .gradient = gradient_type::f32};
  thread_pool pool(3);
  auto const check = [&](auto const& f) {
    attention_case<split> c({.batch = 2, .q = 150, .k = 200, .q_heads = 4, .kv_heads = 2});
    c.run(on_cpu(pool), f);
    auto const exact = c.expected(f);
    CHECK(relative_error(c.d_q, exact.d_q) <= 5e-6);
    CHECK(relative_error(c.d_k, exact.d_k) <= 5e-6);
    CHECK(relative_error(c.d_v, exact.d_v) <= 5e-6);
  };
  check(full{});
  check(window_bottom_right{40, 0});
  check(combine{softcap{3.f}, causal_bottom_right{}});
}

TEST_CASE("precisions that are the GPU's run in f32 on the CPU") {
  attention_case<config{.head_dim = 64, .precision = precision::tf32}> x({});
  compare_with_reference(on_cpu{}, x, full{});
  attention_case<config{.head_dim = 64, .precision = precision::f32_split}> y({});
  compare_with_reference(on_cpu{}, y, full{});
  CHECK(same_bits(x.o, y.o));
}

TEST_CASE("tile sizes change rounding only") {
  constexpr tuning small{.cpu_forward = {.block_q = 16, .block_k = 24}, .cpu_backward = {.block_q = 32, .block_k = 40}};
  attention_case<f32_64> x({.q = 150, .k = 171});
  compare_with_reference<f32_64, small>(on_cpu{}, x, causal_bottom_right{});
}

TEST_CASE("scale: any value, negative ones too") {
  attention_case<f32_64> x({.q = 65, .k = 80});
  for (float scale : {0.01f, 0.3f, -0.1f}) {
    x.scale = scale;
    x.clear();
    compare_with_reference(on_cpu{}, x, causal_bottom_right{});
  }
}
