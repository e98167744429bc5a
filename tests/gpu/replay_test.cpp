// Inputs that broke other libraries, on a device: masks, documents, biases, magnitudes. tests/replay runs the same on
// the CPU and says more of each; strides and counts are in layout_test.cpp. Head dims are those of the instances.
#include <limits>

#include "bf16_split_64_documents.hpp"
#include "f16_128_window.hpp"
#include "f16_64_causal.hpp"
#include "f32_64_bias.hpp"
#include "parity.hpp"

using namespace testing;
using namespace lanewise;

namespace {

inline constexpr config split = instances::bf16_split_64_documents::c;
inline constexpr config windowed = instances::f16_128_window::c;
inline constexpr config biased = instances::f32_64_bias::c;

template <config C>
bool all_finite(attention_case<C> const& x) {
  return testing::all_finite(x.o) && testing::all_finite(x.lse) && testing::all_finite(x.d_q) &&
         testing::all_finite(x.d_k) && testing::all_finite(x.d_v);
}

template <class T>
bool all_zero(std::vector<T> const& x, std::int64_t begin, std::int64_t end) {
  return std::all_of(x.begin() + begin, x.begin() + end, [](T e) { return to_float(e) == 0.f; });
}

/// Tables of documents on both sides.
struct document_tables {
  std::vector<std::int32_t> q, k;
  device_memory on_q = on_device(q), on_k = on_device(k);
  pair_of<causal_documents> get() const {
    std::int32_t const count = std::int32_t(q.size()) - 1;
    return {{q.data(), k.data(), count}, {on_q.as<std::int32_t>(), on_k.as<std::int32_t>(), count}};
  }
};

/// A bias of these extents on both sides, with a gradient on the device where `trained`.
struct bias_tables {
  parameter_extents e;
  std::vector<float> values, gradient = std::vector<float>(values.size(), std::nanf(""));
  device_memory on_values = on_device(values), on_gradient = on_device(gradient);
  bool trained = true;
  pair_of<bias> get() {
    auto const h = views(e, values.data(), gradient.data());
    auto const d = views(e, on_values.as<float>(), trained ? on_gradient.as<float>() : nullptr);
    return {{h.first, h.second}, {d.first, d.second}};
  }
  std::vector<float> fetched() const {
    std::vector<float> x(gradient.size());
    on_gradient.read(x);
    return x;
  }
};

/// Adds about `shift` to every score: one component of q is 1, that of k is shift / scale.
template <config C>
void shift_scores(attention_case<C>& x, float shift) {
  for (std::size_t i = 0; i < x.q.size(); i += C.head_dim) x.q[i] = from_float<element<C>>(1.f);
  for (std::size_t i = 0; i < x.k.size(); i += C.head_dim) x.k[i] = from_float<element<C>>(shift / x.scale);
}

}  // namespace

// xformers issues 808 and 813 (bias rows of 77), diffusers issue 9637 (43 keys; 350 queries, 700 keys).
TEST_CASE("biases whose rows are no multiple of 8") {
  for (sizes const& s : {sizes{3, 77, 77, 8, 8}, sizes{1, 50, 43, 4, 4}, sizes{1, 350, 700, 1, 1}}) {
    CAPTURE(s.k);
    bias_tables b{{s.batch, s.q_heads, s.q, s.k}, normal(s.batch * s.q_heads * s.q * s.k, 9)};
    attention_case<biased> x(s);
    auto const f = b.get();
    auto const exact = check_on_device(x, f.host, f.device).first;
    CHECK(relative_error(b.fetched(), exact.parameters.at(0)) <= 5e-6);
  }
}

// PyTorch issue 188302: q, k and v are frozen and only the bias needs a gradient: a null LSE was read.
TEST_CASE("only the bias's gradient is wanted") {
  bias_tables b{{1, 4, 60, 43}, normal(4 * 60 * 43, 9)};
  attention_case<biased> x({2, 60, 43, 4, 4});
  device_case<biased> device(x);
  auto bwd = device.backward_call();
  bwd.d_q = bwd.d_k = bwd.d_v = {};
  auto const f = b.get();
  device.run(f.device, device.forward_call(), bwd);
  CHECK(relative_error(b.fetched(), x.expected(f.host).parameters.at(0)) <= 5e-6);
}

// PyTorch issue 127055: -infinity outside a causal band 10 wide, so that whole tiles are hidden by the bias alone.
TEST_CASE("an additive mask of -infinity is the window that it draws") {
  window const band{9, 0};
  std::vector<float> drawn(640 * 640);
  for (int q = 0; q < 640; ++q)
    for (int k = 0; k < 640; ++k)
      if (!band({0, 0, q, k})) drawn[std::size_t(q * 640 + k)] = -INFINITY;
  bias_tables b{{1, 1, 640, 640}, drawn};
  b.trained = false;
  attention_case<biased> x({1, 640, 640, 2, 2});
  check_on_device(x, band, b.get().device);
  CHECK(all_finite(x));
}

// PyTorch issue 109517: the lowest finite float added to the scores of keys 0 to 127 is the same as dropping them.
TEST_CASE("the lowest finite float as an additive mask") {
  std::vector<float> hidden(441);
  std::fill_n(hidden.begin(), 128, std::numeric_limits<float>::lowest());
  bias_tables b{{1, 1, 1, 441}, hidden};
  b.trained = false;
  attention_case<biased> x({2, 441, 441, 3, 3});
  device_case<biased>(x).run(b.get().device);
  attention_case<biased> rest({2, 441, 313, 3, 3});
  rest.q = x.q, rest.d_o = x.d_o, rest.d_lse = x.d_lse;
  auto const tail = [](std::vector<float> const& from) {  // keys 128 ... 440 of both batch elements
    std::vector<float> to;
    for (std::ptrdiff_t batch : {0, 1})
      to.insert(to.end(), from.begin() + (batch * 441 + 128) * 192, from.begin() + (batch + 1) * 441 * 192);
    return to;
  };
  rest.k = tail(x.k), rest.v = tail(x.v);
  auto const right = rest.expected(full{});
  CHECK(relative_error(x.o, right.o) <= 5e-6);
  CHECK(relative_error(x.lse, right.lse) <= 5e-6);
  CHECK(relative_error(x.d_q, right.d_q) <= 5e-6);
  CHECK(relative_error(tail(x.d_k), right.d_k) <= 5e-6);
  CHECK(relative_error(tail(x.d_v), right.d_v) <= 5e-6);
}

// PyTorch issue 103963: the mask is true in the top left block only; its other rows were NaN. Two documents, the second
// without keys, draw it.
TEST_CASE("rows 4 to 7 see nothing") {
  document_tables const t{{0, 4, 8}, {0, 4, 4}};
  auto const f = t.get();
  attention_case<split> x({1, 8, 8, 1, 1});
  check_on_device(x, f.host, f.device);
  CHECK(all_zero(x.o, 4 * 64, 8 * 64));
  CHECK(all_zero(x.d_q, 4 * 64, 8 * 64));
  CHECK(all_zero(x.d_k, 4 * 64, 8 * 64));
  CHECK(all_zero(x.d_v, 4 * 64, 8 * 64));
}

// flash-attention issue 443: documents with more queries than keys, 3 randn, d_o = 1: d_q was NaN.
TEST_CASE("documents with more queries than keys") {
  document_tables const t{{0, 76, 110, 256}, {0, 1, 2, 3}};
  auto const f = t.get();
  attention_case<split> x({1, 256, 3, 1, 1}, 1, 3.f);
  for (bf16& e : x.v) e = from_float<bf16>(3 * to_float(e));
  std::fill(x.d_o.begin(), x.d_o.end(), from_float<bf16>(1.f));
  x.with_d_lse = false;
  device_case<split>(x).run(f.device);
  CHECK(all_finite(x));
  for (int d = 0; d < 3; ++d) {
    std::int64_t const begin = t.q[std::size_t(d)], last = t.q[std::size_t(d + 1)] - 1;
    CHECK(all_zero(x.o, begin * 64, last * 64));
    CHECK(all_zero(x.d_q, begin * 64, last * 64));
    CHECK(std::memcmp(&x.o[std::size_t(last * 64)], &x.v[std::size_t(d * 64)], 128) == 0);
  }
  // One row sees the key, with P = 1 as two bf16 limbs and exp have it.
  float const most = std::abs(
      *std::max_element(x.lse.begin(), x.lse.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
  CHECK(std::all_of(x.d_v.begin(), x.d_v.end(),
                    [&](float e) { return std::abs(e - 1.f) <= 0x1p-16f + 0x1p-22f * most; }));
}

// flash-attention issue 2562: documents 0 and 3 have keys but no queries; the backward read past the end.
TEST_CASE("documents without queries at both ends") {
  document_tables const t{{0, 0, 302, 512, 512}, {0, 634, 1070, 1280, 2048}};
  auto const f = t.get();
  attention_case<split> x({1, 512, 2048, 4, 1});
  check_on_device(x, f.host, f.device);
  CHECK(all_finite(x));
  for (auto const* g : {&x.d_k, &x.d_v}) {
    CHECK(all_zero(*g, 0, 634 * 64));
    CHECK(all_zero(*g, 1280 * 64, 2048 * 64));
  }
}

// flash-attention issues 1619 and 1537: one token behind empty documents, 21 query heads on 7; documents of one query
// with an empty one between them, 9 query heads on 3.
TEST_CASE("documents of one query") {
  document_tables const one{{0, 0, 0, 0, 1}, {0, 0, 0, 0, 1}};
  auto f = one.get();
  attention_case<split> x({1, 1, 1, 21, 7});
  check_on_device(x, f.host, f.device);
  for (int h = 0; h < 21; ++h) CHECK(std::memcmp(&x.o[std::size_t(h * 64)], &x.v[std::size_t(h / 3 * 64)], 128) == 0);
  document_tables const two{{0, 1, 1, 2}, {0, 3, 3, 8}};
  f = two.get();
  attention_case<split> y({1, 2, 8, 9, 3});
  check_on_device(y, f.host, f.device);
}

// TransformerEngine issue 3205, flash-attention issue 2324: tokens 3 and 9 to 15 belong to no document.
TEST_CASE("gaps between documents: what they hold reaches nothing, their outputs and gradients are 0") {
  document_tables const t{{0, 3, 4, 4, 9}, {0, 3, 3, 4, 9}};
  auto const f = t.get();
  attention_case<split> clean({2, 16, 16, 2, 1});
  auto x = clean;
  auto const in_gap = [](std::int64_t token) { return token == 3 || token >= 9; };
  for (std::int64_t token = 0; token < 32; ++token)
    if (in_gap(token % 16))
      for (auto* p : {&x.q, &x.k, &x.v, &x.d_o}) {
        std::int64_t const row = std::int64_t(p->size()) / 32;
        for (std::int64_t i = 0; i < row; ++i)
          (*p)[std::size_t(token * row + i)] = from_float<bf16>(i % 2 ? NAN : INFINITY);
      }
  device_case<split>(clean).run(f.device);
  device_case<split>(x).run(f.device);
  CHECK(all_finite(x));
  for (std::int64_t token = 0; token < 32; ++token)
    if (in_gap(token % 16)) {
      CHECK(all_zero(x.o, token * 128, token * 128 + 128));
      CHECK(all_zero(x.d_q, token * 128, token * 128 + 128));
      CHECK(all_zero(x.d_k, token * 64, token * 64 + 64));
      CHECK(all_zero(x.d_v, token * 64, token * 64 + 64));
    }
  CHECK(same_bits(x.o, clean.o));
  CHECK(same_bits(x.lse, clean.lse));
  CHECK(same_bits(x.d_q, clean.d_q));
  CHECK(same_bits(x.d_k, clean.d_k));
  CHECK(same_bits(x.d_v, clean.d_v));
}

// PyTorch issue 196678, trl issue 7181: scores shifted by -120: non-finite d_q at lengths 64 past a multiple of 128.
// cudnn-frontend issue 1072: one query whose LSE is about -123: d_k and d_v were NaN.
TEST_CASE("LSE far below the range of exp") {
  for (std::int64_t n : {64, 192, 704, 1, 63, 65, 127, 128, 129}) {
    CAPTURE(n);
    document_tables const t{{0, std::int32_t(n)}, {0, std::int32_t(n)}};
    attention_case<split> x({1, n, n, 1, 1}, 1, 0.1f);
    shift_scores(x, -120.f);
    device_case<split>(x).run(t.get().device);
    CHECK(all_finite(x));
    CHECK(x.lse[0] < -118.f);
  }
  for (std::int64_t n : {97, 128}) {
    CAPTURE(n);
    document_tables const t{{0, 1}, {0, std::int32_t(n)}};
    auto const f = t.get();
    attention_case<split> x({1, 1, n, 2, 2});
    shift_scores(x, -128.f);
    device_case<split>(x).run(f.device);
    CHECK(all_finite(x));
    CHECK(x.lse[0] < -118.f);
    CHECK(x.lse[0] > -128.f);
    // exp of a number known to eps 128; d_q and d_k are sums of large terms that cancel, and finite is what they must
    // be
    auto const exact = x.expected(f.host);
    CHECK(relative_error(x.lse, exact.lse) <= 5e-6);
    CHECK(relative_error(x.d_v, exact.d_v) <= 1e-5 + 0x1p-22 * 128);
  }
}

// flash-attention issue 1052: 3 randn, causal, f16: d_q NaN. A window without a left end is causal.
TEST_CASE("inputs three times as large as usual, f16") {
  attention_case<windowed> x({1, 1024, 1024, 1, 1}, 1, 3.f);
  for (f16& e : x.v) e = from_float<f16>(3 * to_float(e));
  check_on_device(x, window{unbounded, 0}, window{unbounded, 0});
  CHECK(all_finite(x));
}

// TileOPs issues 355 and 295: a causal window narrower than a tile, 16 query heads to a key head.
TEST_CASE("a window narrower than a tile") {
  attention_case<windowed> x({1, 500, 500, 16, 1});
  check_on_device(x, window{32, 0}, window{32, 0});
}

// flashinfer issue 4992: a left window without causality: 158 of 636 sizes were wrong, their last keys cut off.
TEST_CASE("left windows over every relation of lengths") {
  for (std::int64_t q : {1, 17, 128, 300})
    for (std::int32_t left : {1, 64, 333})
      for (std::int64_t k : {512, 1024}) {
        CAPTURE(q);
        CAPTURE(left);
        CAPTURE(k);
        window const f{left, unbounded, std::int32_t(k - q)};
        attention_case<windowed> x({1, q, k, 2, 1}, unsigned(q + left));
        check_on_device(x, f, f);
      }
}

// flash-attention issue 1133: at 16,384 tokens the window (S - 1, 0) differed from causal.
TEST_CASE("a window at least as long as the sequence is causal") {
  constexpr std::int32_t n = 16384;
  attention_case<windowed> x({1, n, n, 1, 1});
  device_case<windowed>(x).run(window{unbounded, 0});
  for (std::int32_t left : {n - 1, n}) {
    auto y = x;
    y.clear();
    device_case<windowed>(y).run(window{left, 0});
    CHECK(same_bits(x.o, y.o));
    CHECK(same_bits(x.lse, y.lse));
    CHECK(same_bits(x.d_q, y.d_q));
    CHECK(same_bits(x.d_k, y.d_k));
    CHECK(same_bits(x.d_v, y.d_v));
  }
  auto y = x;
  device_case<windowed>(y).run(window{n - 2, 0});  // the last row loses key 0
  CHECK(std::memcmp(y.o.data(), x.o.data(), std::size_t(n - 1) * 128 * 2) == 0);
  CHECK(!same_bits(x.o, y.o));
}
