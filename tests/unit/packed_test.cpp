// Packed O|LSE and dQ|dK|dV: offsets by hand at geometries that have gaps, gaps exactly zero in a buffer that was NaN,
// parts bit for bit what forward and backward write to separate tensors, and every refusal.
#include <cmath>
#include <lanewise/memory/packed.hpp>
#include <lanewise/variants.hpp>

#include "../support/attention_case.hpp"
#include "memory_support.hpp"

using namespace testing;

namespace {

constexpr config f32_80{.head_dim = 80};
constexpr config f32_40{.head_dim = 40};
constexpr config f32_64{.head_dim = 64};
constexpr config bf16_80{.head_dim = 80, .precision = precision::bf16};
constexpr config bf16_40{.head_dim = 40, .precision = precision::bf16, .gradient = gradient_type::f32};
constexpr config f16_40{.head_dim = 40, .precision = precision::f16};
constexpr config f16_128{.head_dim = 128, .precision = precision::f16};

// Worked by hand. f32: 80 * 4 = 320 -> 384; 3 * 5 * 40 * 4 = 2400 -> 2432; 64 * 4 = 256 -> 512.
static_assert(packed_forward<f32_80>{{1, 1, 1, 80}}.gap() == packed_range{320, 384});
static_assert(packed_forward<f32_80>{{1, 1, 1, 80}}.bytes() == 384 + 4);
static_assert(packed_forward<f32_40>{{1, 5, 3, 40}}.gap() == packed_range{2400, 2432});
static_assert(packed_forward<f32_40>{{1, 5, 3, 40}}.bytes() == 2432 + 60);
static_assert(packed_forward<f32_64>{{1, 1, 1, 64}, 512}.gap() == packed_range{256, 512});
static_assert(packed_forward<f32_64>{{1, 1, 1, 64}}.gap().size() == 0);
// 16-bit storage: 80 * 2 = 160 -> 256; 3 * 5 * 40 * 2 = 1200 -> 1280. The LSE stays f32.
static_assert(packed_forward<bf16_80>{{1, 1, 1, 80}}.gap() == packed_range{160, 256});
static_assert(packed_forward<f16_40>{{1, 5, 3, 40}}.gap() == packed_range{1200, 1280});
static_assert(packed_forward<f16_40>{{1, 5, 3, 40}}.bytes() == 1280 + 60);
static_assert(packed_forward<f16_128>{{3, 77, 5, 128}}.gap().size() == 0);
// dQ|dK|dV: 2400 -> 2432, 7 * 40 * 4 = 1120 -> 3552 -> 3584.
static_assert(packed_backward<f32_40>{{1, 5, 3, 40}, {1, 7, 1, 40}}.gap(0) == packed_range{2400, 2432});
static_assert(packed_backward<f32_40>{{1, 5, 3, 40}, {1, 7, 1, 40}}.gap(1) == packed_range{3552, 3584});
static_assert(packed_backward<f32_40>{{1, 5, 3, 40}, {1, 7, 1, 40}}.bytes() == 3584 + 1120);
static_assert(packed_backward<bf16_40>{{1, 5, 3, 40}, {1, 7, 1, 40}}.bytes() == 3584 + 1120);  // f32 gradients
static_assert(packed_backward<f16_40>{{1, 5, 3, 40}, {1, 7, 1, 40}}.gap(1) == packed_range{1840, 1920});
static_assert(packed_forward<f32_40>{{0, 5, 3, 40}}.bytes() == 0);

bool all_zero(void const* base, packed_range range) {
  auto const* p = static_cast<unsigned char const*>(base);
  return std::all_of(p + range.begin, p + range.end, [](unsigned char c) { return c == 0; });
}

template <class T>
bool same_bits(T const* x, std::vector<T> const& y) {
  return y.empty() || std::memcmp(x, y.data(), y.size() * sizeof(T)) == 0;
}

/// One problem run into packed buffers and into separate tensors.
template <config C>
struct packed_case {
  attention_case<C> separate;
  packed_forward<C> o_lse;
  packed_backward<C> d_qkv;
  aligned_buffer forward_memory, backward_memory;

  packed_case(sizes s, std::size_t align)
      : separate(s), o_lse{separate.q_size, align}, d_qkv{separate.q_size, separate.k_size, align},
        forward_memory(o_lse.bytes()), backward_memory(d_qkv.bytes()) {
    std::memset(forward_memory.data(), 0xff, o_lse.bytes());
    std::memset(backward_memory.data(), 0xff, d_qkv.bytes());
  }

  packed_forward_args<C> forward_call() {
    auto const a = separate.forward_call();
    return {.q = a.q, .k = a.k, .v = a.v, .o_lse = {forward_memory.data(), o_lse.bytes(), o_lse.align}};
  }
  packed_backward_args<C> backward_call() {
    auto const a = separate.backward_call();
    return {.q = a.q,
            .k = a.k,
            .v = a.v,
            .o_lse = {forward_memory.data(), o_lse.bytes(), o_lse.align},
            .d_o = a.d_o,
            .d_lse = a.d_lse,
            .d_qkv = {backward_memory.data(), d_qkv.bytes(), d_qkv.align},
            .accumulate = separate.accumulate};
  }

  template <class F>
  status run_forward(F const& f) {
    scratch_memory const scratch(forward_workspace<C>(target_of(on_cpu{}), separate.q_size, separate.k_size, f));
    return forward_packed<C>(on_cpu{}, forward_call(), f, scratch);
  }
  template <class F>
  status run_backward(F const& f) {
    scratch_memory const scratch(backward_workspace<C>(target_of(on_cpu{}), separate.q_size, separate.k_size, f));
    return backward_packed<C>(on_cpu{}, backward_call(), f, scratch);
  }

  template <class F>
  void check(F const& f) {
    separate.run(on_cpu{}, f);
    status const forward = run_forward(f), backward = run_backward(f);
    REQUIRE(text(forward) == "ok");
    REQUIRE(text(backward) == "ok");
    CHECK(std::string(forward.kernel) != "");
    void *const fwd = forward_memory.data(), *const bwd = backward_memory.data();
    CHECK(same_bits(o_lse.o(fwd).data, separate.o));
    CHECK(same_bits(o_lse.lse(fwd).data, separate.lse));
    CHECK(same_bits(d_qkv.d_q(bwd).data, separate.d_q));
    CHECK(same_bits(d_qkv.d_k(bwd).data, separate.d_k));
    CHECK(same_bits(d_qkv.d_v(bwd).data, separate.d_v));
    CHECK(all_zero(fwd, o_lse.gap()));
    CHECK(all_zero(bwd, d_qkv.gap(0)));
    CHECK(all_zero(bwd, d_qkv.gap(1)));
  }
};

/// Whoever reads the buffer as one f32 tensor meets finite numbers only: 0 * packed + x stays x.
bool finite_as_f32(void const* base, std::size_t bytes) {
  auto const* p = static_cast<float const*>(base);
  return bytes % sizeof(float) == 0 &&
         std::all_of(p, p + bytes / sizeof(float), [](float e) { return 0 * e + 1.5f == 1.5f; });
}

template <config C>
void gap_case(sizes s, std::size_t align, std::size_t forward_gap, std::size_t second_gap) {
  CAPTURE(C.head_dim);
  packed_case<C> x(s, align);
  REQUIRE(x.o_lse.gap().size() > 0);
  REQUIRE(x.o_lse.gap().size() == forward_gap);
  REQUIRE(x.d_qkv.gap(0).size() > 0);
  REQUIRE(x.d_qkv.gap(1).size() == second_gap);
  x.check(full{});
  if constexpr (std::is_same_v<element<C>, float>) {
    CHECK(finite_as_f32(x.forward_memory.data(), x.o_lse.bytes()));
    CHECK(finite_as_f32(x.backward_memory.data(), x.d_qkv.bytes()));
  }
}

}  // namespace

TEST_CASE("gaps of a buffer that was NaN are exact zeros after forward and backward, f32") {
  gap_case<f32_80>({.q = 1, .k = 1, .q_heads = 1, .kv_heads = 1}, 128, 64, 64);
  gap_case<f32_40>({.q = 5, .k = 7, .q_heads = 3, .kv_heads = 1}, 128, 32, 32);
  gap_case<f32_64>({.q = 1, .k = 1, .q_heads = 1, .kv_heads = 1}, 512, 256, 256);
  gap_case<f32_64>({.q = 1, .k = 4, .q_heads = 1, .kv_heads = 1}, 4096, 3840, 3072);
}

TEST_CASE("gaps of a buffer that was NaN are exact zeros after forward and backward, 16-bit storage") {
  gap_case<bf16_80>({.q = 1, .k = 1, .q_heads = 1, .kv_heads = 1}, 128, 96, 96);
  gap_case<f16_40>({.q = 5, .k = 7, .q_heads = 3, .kv_heads = 1}, 128, 80, 80);
  gap_case<bf16_40>({.q = 5, .k = 7, .q_heads = 3, .kv_heads = 1}, 128, 80, 32);
}

TEST_CASE("without gaps, with batches, masks and empty rows the parts are those of separate tensors") {
  packed_case<f32_64>({.batch = 2, .q = 70, .k = 33, .q_heads = 4, .kv_heads = 2}, 128)
      .check(window{.left = 9, .right = 3});
  packed_case<f16_40>({.batch = 3, .q = 33, .k = 17, .q_heads = 4, .kv_heads = 4}, 64)
      .check(causal_bottom_right{});  // rows 0 ... 15 see no key
  packed_case<f32_40>({.batch = 0, .q = 3, .k = 4}, 128).check(full{});
  packed_case<f32_40>({.q = 3, .k = 0}, 128).check(full{});
}

TEST_CASE("accumulation adds to the parts; the gaps become zero all the same") {
  packed_case<f32_40> x({.q = 5, .k = 7, .q_heads = 3, .kv_heads = 1}, 128);
  x.separate.accumulate = true;
  auto const fill = [](auto view) { std::fill_n(view.data, view.size.count(), 0.75f); };
  void* const base = x.backward_memory.data();
  fill(x.d_qkv.d_q(base)), fill(x.d_qkv.d_k(base)), fill(x.d_qkv.d_v(base));
  for (auto* d : {&x.separate.d_q, &x.separate.d_k, &x.separate.d_v}) std::fill(d->begin(), d->end(), 0.75f);
  x.check(full{});
}

TEST_CASE("zero_gaps writes the gaps and nothing else") {
  constexpr packed_backward<f32_40> layout{{1, 5, 3, 40}, {1, 7, 1, 40}};
  aligned_buffer const buffer(layout.bytes());
  std::memset(buffer.data(), 0x5a, layout.bytes());
  zero_gaps(layout, buffer.data());
  for (std::size_t i = 0; i < layout.bytes(); ++i) {
    bool const in_gap = (i >= 2400 && i < 2432) || (i >= 3552 && i < 3584);
    REQUIRE(buffer.data()[i] == std::byte(in_gap ? 0 : 0x5a));
  }
}

TEST_CASE("a packed buffer that cannot hold the parts is refused with the numbers, and nothing is written") {
  packed_case<f32_40> x({.q = 5, .k = 7, .q_heads = 3, .kv_heads = 1}, 128);
  auto const refused = [&](auto change) {
    auto a = x.forward_call();
    change(a);
    status const s = forward_packed<f32_40>(on_cpu{}, a);
    auto const* p = x.forward_memory.data();
    CHECK(std::all_of(p, p + x.o_lse.bytes(), [](std::byte b) { return b == std::byte{0xff}; }));
    return std::string(name_of(s.code)) + ": " + s.message();
  };
  auto* const base = x.forward_memory.data();
  CHECK(refused([&](auto& a) { a.o_lse.bytes = 2491; }) == "bad_extent: o_lse has 2491 bytes, its layout needs 2492");
  CHECK(refused([&](auto& a) { a.o_lse.data = nullptr; }) == "null_view: o_lse is null and needs 2492 bytes");
  CHECK(refused([&](auto& a) { a.o_lse.data = base + 64; }) ==
        "bad_argument: o_lse lies 64 bytes past a multiple of its alignment 128");
  CHECK(refused([&](auto& a) { a.o_lse.align = 96; }) ==
        "bad_argument: o_lse: align is 96, it must be a power of two in 4 ... 1073741824");
  CHECK(refused([&](auto& a) { a.o_lse.align = 2; }) ==
        "bad_argument: o_lse: align is 2, it must be a power of two in 4 ... 1073741824");
  CHECK(refused([&](auto& a) { a.o_lse.align = 0; }) ==
        "bad_argument: o_lse: align is 0, it must be a power of two in 4 ... 1073741824");
  CHECK(refused([&](auto& a) { a.q.size.sequence = -1; }) ==
        "bad_extent: q has an extent of -1, outside 0 ... 2147483647");
  CHECK(refused([&](auto& a) {
          a.q.size = {1 << 30, 1 << 30, 1 << 30, 40};
        }) == "bad_extent: q is [1073741824, 1073741824, 1073741824, 40]: too large for a packed buffer");
  CHECK(refused([&](auto& a) { a.q.size.head_dim = 48, a.o_lse.bytes = 4000; }) ==
        "bad_extent: q has head_dim 48, the config has 40");
  CHECK(refused([&](auto& a) { a.v = {}; }) == "null_view: v is null");
  CHECK(refused([&](auto& a) { a.scale = INFINITY; }) == "bad_argument: scale is inf, it must be finite");
}

TEST_CASE("a packed buffer that overlaps an input is refused, be it with a part or with a gap") {
  packed_case<f32_40> x({.q = 5, .k = 7, .q_heads = 3, .kv_heads = 1}, 128);
  REQUIRE(text(x.run_forward(full{})) == "ok");

  SUBCASE("the gradients onto the forward's pack") {
    aligned_buffer const large(x.d_qkv.bytes() + x.o_lse.bytes());
    std::memcpy(large.data(), x.forward_memory.data(), x.o_lse.bytes());
    auto a = x.backward_call();
    a.o_lse.data = a.d_qkv.data = large.data();
    CHECK(backward_packed<f32_40>(on_cpu{}, a).code == status_code::alias);
    a.d_qkv.data = large.data() + 1024;  // in part
    CHECK(backward_packed<f32_40>(on_cpu{}, a).code == status_code::alias);
    CHECK(std::memcmp(large.data(), x.forward_memory.data(), x.o_lse.bytes()) == 0);
  }
  SUBCASE("an input inside the gap") {
    packed_case<f32_40> y({.q = 1, .k = 1, .q_heads = 1, .kv_heads = 1}, 4096);
    auto a = y.forward_call();
    float* const inside = reinterpret_cast<float*>(y.forward_memory.data() + 2048);
    std::fill_n(inside, 40, 2.f);
    a.v.data = inside;
    status const s = forward_packed<f32_40>(on_cpu{}, a);
    CHECK(s.code == status_code::alias);
    CHECK(text(s).find("the gap in o_lse overlaps v") == 0);
    CHECK(std::all_of(inside, inside + 40, [](float e) { return e == 2.f; }));

    auto b = y.backward_call();
    REQUIRE(text(y.run_forward(full{})) == "ok");
    float* const behind_d_k = reinterpret_cast<float*>(y.backward_memory.data() + 4096 + 2048);
    std::fill_n(behind_d_k, 40, 2.f);
    b.d_o.data = behind_d_k;
    status const t = backward_packed<f32_40>(on_cpu{}, b);
    CHECK(t.code == status_code::alias);
    CHECK(text(t).find("a gap in d_qkv overlaps d_o") == 0);

    float const slope = 0.5f;
    alibi_bottom_right const biases{.slope = {&slope, 1, 1, 1, 1}, .d_slope = {behind_d_k, 1, 1, 1, 1}};
    status const u = backward_packed<f32_40>(on_cpu{}, y.backward_call(), combine{full{}, biases});
    CHECK(u.code == status_code::alias);
    CHECK(text(u).find("a parameter's gradient overlaps a gap in d_qkv") == 0);
    CHECK(*behind_d_k == 2.f);
  }
  SUBCASE("a gradient buffer that is too small, null or misaligned") {
    auto a = x.backward_call();
    a.d_qkv.bytes = 4703;
    CHECK(text(backward_packed<f32_40>(on_cpu{}, a)) == "d_qkv has 4703 bytes, its layout needs 4704");
    a = x.backward_call();
    a.o_lse.data = nullptr;
    CHECK(text(backward_packed<f32_40>(on_cpu{}, a)) == "o_lse is null and needs 2492 bytes");
    a = x.backward_call();
    a.d_qkv.data = x.backward_memory.data() + 4;
    CHECK(text(backward_packed<f32_40>(on_cpu{}, a)) == "d_qkv lies 4 bytes past a multiple of its alignment 128");
    a = x.backward_call();
    a.k.size.heads = -2;
    CHECK(text(backward_packed<f32_40>(on_cpu{}, a)) == "k has an extent of -2, outside 0 ... 2147483647");
  }
  SUBCASE("too little scratch: the engine's own refusal, and the gaps stay as they were") {
    status const s = backward_packed<f32_40>(on_cpu{}, x.backward_call());
    CHECK(s.code == status_code::bad_workspace);
    CHECK(!all_zero(x.backward_memory.data(), x.d_qkv.gap(0)));
  }
}
