// The checks of a call: every rule in good/bad pairs with its sentence, and the overlap tests against byte sets.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <lanewise/attention.hpp>

using lanewise::bf16, lanewise::extents, lanewise::status, lanewise::status_code, lanewise::strides, lanewise::view;

namespace {

constexpr lanewise::config f32{.head_dim = 8}, ratio2{.head_dim = 8, .gqa_ratio = 2};
constexpr lanewise::config half{.head_dim = 8, .precision = lanewise::precision::bf16};
constexpr extents queries{2, 5, 4, 8}, keys{2, 7, 2, 8}, rows{2, 5, 4, 1};

/// Memory for every tensor of a call, far apart.
template <class E>
struct memory {
  std::vector<E> of[10] = {};
  memory() {
    for (auto& m : of) m.resize(4096);
  }
  E* operator[](int i) { return of[i].data(); }
};

struct forward_case {
  memory<float> m{};
  lanewise::forward_args<f32> a{
      .q = {m[0], queries}, .k = {m[1], keys}, .v = {m[2], keys}, .o = {m[3], queries}, .lse = {m[4], rows}};
};
struct backward_case {
  memory<float> m{};
  lanewise::backward_args<f32> a{.q = {m[0], queries},
                                 .k = {m[1], keys},
                                 .v = {m[2], keys},
                                 .o = {m[3], queries},
                                 .lse = {m[4], rows},
                                 .d_o = {m[5], queries},
                                 .d_lse = {m[6], rows},
                                 .d_q = {m[7], queries},
                                 .d_k = {m[8], keys},
                                 .d_v = {m[9], keys}};
};

void refused(status const& s, status_code code, std::string const& sentence) {
  CHECK(std::string(name_of(s.code)) == name_of(code));
  CHECK(s.message() == sentence);
}
void accepted(status const& s) { CHECK(std::string(s.message()) == "ok"); }

}  // namespace

TEST_CASE("ordinary calls pass") {
  accepted(check(forward_case{}.a));
  accepted(check(backward_case{}.a));
}

TEST_CASE("a required view that is null is named") {
  auto const forward = [](auto change) {
    forward_case c;
    change(c.a);
    return check(c.a);
  };
  refused(forward([](auto& a) { a.q = {}; }), status_code::null_view, "q is null");
  refused(forward([](auto& a) { a.k.data = nullptr; }), status_code::null_view, "k is null");
  refused(forward([](auto& a) { a.v = {}; }), status_code::null_view, "v is null");
  refused(forward([](auto& a) { a.o = {}; }), status_code::null_view, "o is null");
  accepted(forward([](auto& a) { a.lse = {}; }));
  auto const backward = [](auto change) {
    backward_case c;
    change(c.a);
    return check(c.a);
  };
  refused(backward([](auto& a) { a.q = {}; }), status_code::null_view, "q is null");
  refused(backward([](auto& a) { a.k = {}; }), status_code::null_view, "k is null");
  refused(backward([](auto& a) { a.v = {}; }), status_code::null_view, "v is null");
  refused(backward([](auto& a) { a.o = {}; }), status_code::null_view, "o is null");
  refused(backward([](auto& a) { a.lse = {}; }), status_code::null_view, "lse is null");
  refused(backward([](auto& a) { a.d_o = {}; }), status_code::null_view, "d_o is null");
  accepted(backward([](auto& a) { a.d_lse = {}; }));
  accepted(backward([](auto& a) { a.d_q = {}; }));
  accepted(backward([](auto& a) { a.d_k = {}, a.d_v = {}; }));
}

TEST_CASE("scale is finite") {
  forward_case f;
  f.a.scale = std::numeric_limits<float>::infinity();
  refused(check(f.a), status_code::bad_argument, "scale is inf, it must be finite");
  f.a.scale = -std::numeric_limits<float>::max();
  accepted(check(f.a));
  backward_case b;
  b.a.scale = std::numeric_limits<float>::quiet_NaN();
  refused(check(b.a), status_code::bad_argument, "scale is nan, it must be finite");
}

TEST_CASE("extents are 0 ... 2^31 - 1") {
  forward_case c;
  c.a.q.size.sequence = -1;
  refused(check(c.a), status_code::bad_extent, "q: extent -1 along sequence is outside 0 ... 2147483647");
  c.a.q.size.sequence = std::int64_t(1) << 31;
  refused(check(c.a), status_code::bad_extent, "q: extent 2147483648 along sequence is outside 0 ... 2147483647");
  backward_case d;
  d.a.d_k.size.heads = -2;
  refused(check(d.a), status_code::bad_extent, "d_k: extent -2 along heads is outside 0 ... 2147483647");
  lanewise::forward_args<f32> const large{
      .q = {d.m[0], {2147483647, 1, 4, 8}, {0, 8, 8, 1}},
      .k = {d.m[1], {2147483647, 1, 4, 8}, {0, 8, 8, 1}},
      .v = {d.m[2], {2147483647, 1, 4, 8}, {0, 8, 8, 1}},
      .o = {reinterpret_cast<float*>(std::uintptr_t(1) << 50), {2147483647, 1, 4, 8}}};
  accepted(check(large));
}

TEST_CASE("head_dim is the config's") {
  forward_case c;
  c.a.q = {c.m[0], {2, 5, 4, 16}};
  refused(check(c.a), status_code::bad_extent, "q has head_dim 16, the config has 8");
  c.a.q = {c.m[0], queries};
  c.a.k = {c.m[1], {2, 7, 2, 4}};
  refused(check(c.a), status_code::bad_extent, "k has head_dim 4, the config has 8");
}

TEST_CASE("tensors agree in size") {
  auto const forward = [](auto change) {
    forward_case c;
    change(c.a);
    return check(c.a);
  };
  refused(forward([](auto& a) { a.k.size.batch = 1; }), status_code::bad_extent, "q has batch 2, k has batch 1");
  refused(forward([](auto& a) { a.v.size.sequence = 6; }), status_code::bad_extent,
          "v is [2, 6, 2, 8], but k asks for [2, 7, 2, 8]");
  refused(forward([](auto& a) { a.o.size.heads = 2; }), status_code::bad_extent,
          "o is [2, 5, 2, 8], but q asks for [2, 5, 4, 8]");
  refused(forward([](auto& a) { a.lse.size.head_dim = 8; }), status_code::bad_extent,
          "lse is [2, 5, 4, 8], but q asks for [2, 5, 4, 1]");
  auto const backward = [](auto change) {
    backward_case c;
    change(c.a);
    return check(c.a);
  };
  refused(backward([](auto& a) { a.o.size.sequence = 4; }), status_code::bad_extent,
          "o is [2, 4, 4, 8], but q asks for [2, 5, 4, 8]");
  refused(backward([](auto& a) { a.d_o.size = keys; }), status_code::bad_extent,
          "d_o is [2, 7, 2, 8], but q asks for [2, 5, 4, 8]");
  refused(backward([](auto& a) { a.lse.size = queries; }), status_code::bad_extent,
          "lse is [2, 5, 4, 8], but q asks for [2, 5, 4, 1]");
  refused(backward([](auto& a) { a.d_lse.size.batch = 1; }), status_code::bad_extent,
          "d_lse is [1, 5, 4, 1], but q asks for [2, 5, 4, 1]");
  refused(backward([](auto& a) { a.d_q.size = keys; }), status_code::bad_extent,
          "d_q is [2, 7, 2, 8], but q asks for [2, 5, 4, 8]");
  refused(backward([](auto& a) { a.d_k.size.heads = 4; }), status_code::bad_extent,
          "d_k is [2, 7, 4, 8], but k asks for [2, 7, 2, 8]");
  refused(backward([](auto& a) { a.d_v.size.sequence = 5; }), status_code::bad_extent,
          "d_v is [2, 5, 2, 8], but k asks for [2, 7, 2, 8]");
}

TEST_CASE("query heads are a multiple of key heads, and of the config's ratio") {
  forward_case c;
  c.a.k.size.heads = c.a.v.size.heads = 3;
  refused(check(c.a), status_code::bad_extent, "q has 4 heads, not a multiple of k's 3");
  c.a.k.size.heads = c.a.v.size.heads = 0;
  refused(check(c.a), status_code::bad_extent, "q has 4 heads, not a multiple of k's 0");
  memory<float> m;
  lanewise::forward_args<ratio2> a{.q = {m[0], queries}, .k = {m[1], keys}, .v = {m[2], keys}, .o = {m[3], queries}};
  accepted(check(a));
  a.k = a.v = {m[1], {2, 7, 4, 8}};
  refused(check(a), status_code::bad_extent, "q has 4 heads and k 4, but the config's gqa_ratio is 2");
}

TEST_CASE("tensors without elements are legal, and need no memory") {
  float* const none = nullptr;
  lanewise::forward_args<f32> f{
      .q = {none, {2, 0, 4, 8}}, .k = {none, {2, 0, 2, 8}}, .v = {none, {2, 0, 2, 8}}, .o = {none, {2, 0, 4, 8}}};
  accepted(check(f));
  f.q = {none, {0, 5, 4, 8}}, f.o = {none, {0, 5, 4, 8}}, f.k = f.v = {none, {0, 7, 2, 8}};
  accepted(check(f));
  backward_case b;  // no queries: d_k and d_v are still written
  b.a.q = b.a.o = b.a.d_o = {none, {2, 0, 4, 8}};
  b.a.d_q = {none, {2, 0, 4, 8}};
  b.a.lse = {none, {2, 0, 4, 1}};
  b.a.d_lse = {};
  accepted(check(b.a));
  b.a.k = {none, keys};
  refused(check(b.a), status_code::null_view, "k is null");
}

TEST_CASE("the innermost dimension is contiguous") {
  forward_case c;
  c.a.k.stride.inner = 2;
  refused(check(c.a), status_code::bad_stride, "k: stride 2 along head_dim, which must be contiguous (stride 1)");
  c.a.k.stride.inner = 1;
  c.a.lse.stride.inner = 99;  // head_dim 1: there is no neighbour
  accepted(check(c.a));
  backward_case b;
  b.a.d_v.stride.inner = 0;
  refused(check(b.a), status_code::bad_stride, "d_v: stride 0 along head_dim, which must be contiguous (stride 1)");
}

TEST_CASE("negative strides are refused, zero strides on outputs too") {
  forward_case c;
  c.a.q.stride.sequence = -32;
  refused(check(c.a), status_code::bad_stride, "q: stride -32 along sequence is negative");
  c.a.q.stride = {0, 0, 0, 1};
  accepted(check(c.a));
  c.a.o.stride.batch = 0;
  refused(check(c.a), status_code::bad_stride, "o: stride 0 along batch of extent 2; only an input can be broadcast");
  c.a.o.stride = dense(queries);
  c.a.lse.stride.heads = 0;
  refused(check(c.a), status_code::bad_stride, "lse: stride 0 along heads of extent 4; only an input can be broadcast");
  backward_case b;
  b.a.d_lse.stride = {0, 0, 0, 1};
  accepted(check(b.a));
  b.a.d_k.stride.heads = -8;
  refused(check(b.a), status_code::bad_stride, "d_k: stride -8 along heads is negative");
}

TEST_CASE("a stride along an extent of 1 means nothing") {
  memory<float> m;
  extents const one{1, 5, 4, 8};
  lanewise::forward_args<f32> const a{.q = {m[0], one, {-7, 32, 8, 1}},
                                      .k = {m[1], one, {std::int64_t(1) << 62, 32, 8, 1}},
                                      .v = {m[2], one},
                                      .o = {m[3], one, {0, 32, 8, 1}}};
  accepted(check(a));
}

TEST_CASE("offsets fit 64 bits") {
  forward_case c;
  c.a.v.stride.batch = std::int64_t(1) << 58;
  refused(check(c.a), status_code::bad_stride,
          "v: strides [288230376151711744, 16, 8] span more than 2^60 bytes, past 64-bit offsets");
  c.a.v.stride.batch = std::int64_t(1) << 57;
  c.a.v.data = reinterpret_cast<float const*>(std::uintptr_t(1) << 50);  // above all of the program
  accepted(check(c.a));
}

TEST_CASE("elements are aligned to their size") {
  forward_case c;
  c.a.k.data = reinterpret_cast<float const*>(reinterpret_cast<std::uintptr_t>(c.m[1]) + 2);
  refused(check(c.a), status_code::bad_argument, "k: the address is 2 bytes past a multiple of its element's 4");
  memory<bf16> m;
  lanewise::forward_args<half> a{.q = {m[0] + 1, queries}, .k = {m[1], keys}, .v = {m[2], keys}, .o = {m[3], queries}};
  accepted(check(a));
  a.o.data = reinterpret_cast<bf16*>(reinterpret_cast<std::uintptr_t>(m[3]) + 1);
  refused(check(a), status_code::bad_argument, "o: the address is 1 bytes past a multiple of its element's 2");
}

TEST_CASE("an output does not overlap itself") {
  forward_case c;
  c.a.o.stride.heads = 7;
  refused(check(c.a), status_code::alias, "o overlaps itself: strides [160, 32, 7] for [2, 5, 4, 8]");
  c.a.o.stride = {8, 16, 80, 1};  // head-major, batches interleaved
  accepted(check(c.a));
  c.a.o.stride = {16, 16, 80, 1};
  refused(check(c.a), status_code::alias, "o overlaps itself: strides [16, 16, 80] for [2, 5, 4, 8]");
  c.a.o.stride = {72, 16, 200, 1};  // 2 * 5 rows, not nested yet disjoint: 72 = 4 * 16 + 8
  accepted(check(c.a));
  c.a.q.stride.heads = 7;  // an input may
  accepted(check(c.a));
}

TEST_CASE("an output overlapping an input is refused by range") {
  std::vector<float> m(4096);
  forward_case c;
  c.a.q = {m.data(), queries};
  c.a.o = {m.data(), queries};
  refused(check(c.a), status_code::alias, "o overlaps q: bytes [0, 1280) and [0, 1280) from the start of q");
  c.a.o = {m.data() + 319, queries};
  refused(check(c.a), status_code::alias, "o overlaps q: bytes [1276, 2556) and [0, 1280) from the start of q");
  c.a.o = {m.data() + 320, queries};
  accepted(check(c.a));
  c.a.lse = {m.data() + 100, rows};
  refused(check(c.a), status_code::alias, "lse overlaps q: bytes [400, 560) and [0, 1280) from the start of q");
  backward_case b;  // between the rows of o, yet inside its range and with other outer strides
  b.a.o = {m.data(), queries, {320, 64, 16, 1}};
  b.a.d_q = {m.data() + 8, queries, {640, 64, 16, 1}};
  CHECK(check(b.a).code == status_code::alias);
  b.a.d_q = {m.data() + 8, queries, {320, 64, 16, 1}};
  accepted(check(b.a));
}

TEST_CASE("every pair of output and input is looked at") {
  auto const shares = [](auto change, char const* words) {
    backward_case b;
    change(b);
    CHECK(std::string(check(b.a).message()).starts_with(words));
  };
  shares([](auto& c) { c.a.d_q.data = c.m[0]; }, "d_q overlaps q: ");
  shares([](auto& c) { c.a.d_q.data = c.m[1]; }, "d_q overlaps k: ");
  shares([](auto& c) { c.a.d_k.data = c.m[2]; }, "d_k overlaps v: ");
  shares([](auto& c) { c.a.d_k.data = c.m[3]; }, "d_k overlaps o: ");
  shares([](auto& c) { c.a.d_v.data = c.m[4]; }, "d_v overlaps lse: ");
  shares([](auto& c) { c.a.d_v.data = c.m[5]; }, "d_v overlaps d_o: ");
  shares([](auto& c) { c.a.d_v.data = c.m[6]; }, "d_v overlaps d_lse: ");
  shares([](auto& c) { c.a.d_k.data = c.m[7]; }, "d_k overlaps d_q: ");
  shares([](auto& c) { c.a.d_v.data = c.m[7]; }, "d_v overlaps d_q: ");
  shares([](auto& c) { c.a.d_v.data = c.m[8]; }, "d_v overlaps d_k: ");
  auto const forward = [](auto change, char const* words) {
    forward_case f;
    change(f);
    CHECK(std::string(check(f.a).message()).starts_with(words));
  };
  forward([](auto& c) { c.a.o.data = c.m[1]; }, "o overlaps k: ");
  forward([](auto& c) { c.a.o.data = c.m[2]; }, "o overlaps v: ");
  forward([](auto& c) { c.a.lse.data = c.m[0]; }, "lse overlaps q: ");
  forward([](auto& c) { c.a.lse.data = c.m[3]; }, "lse overlaps o: ");
}

TEST_CASE("slices of one qkv buffer [B, S, 3, H, D]") {
  std::vector<float> m(4096);
  extents const e{2, 5, 4, 8};
  strides const sliced{5 * 96, 96, 8, 1};
  auto const slice = [&](int i) { return view<float>(m.data() + 32 * i, e, sliced); };
  backward_case b;
  b.a.k = b.a.v = {b.m[1], e};
  b.a.d_q = slice(0), b.a.d_k = slice(1), b.a.d_v = slice(2);
  accepted(check(b.a));
  b.a.d_v.data += 1;  // the last head of a step runs into the next step's d_q
  refused(check(b.a), status_code::alias, "d_v overlaps d_q: bytes [260, 3844) and [0, 3584) from the start of d_q");
  b.a.d_v = slice(2);
  b.a.d_k.data -= 1;
  refused(check(b.a), status_code::alias, "d_k overlaps d_q: bytes [124, 3708) and [0, 3584) from the start of d_q");
  forward_case f;  // q, k in slices 0 and 1, o written to slice 2
  f.a.q = slice(0), f.a.k = slice(1), f.a.v = {f.m[2], e};
  f.a.o = slice(2);
  accepted(check(f.a));
  f.a.o = slice(1);
  CHECK(check(f.a).code == status_code::alias);
}

TEST_CASE("slices over more bytes than a test could hold") {
  extents const e{4, 200000, 32, 128};
  float* const base = reinterpret_cast<float*>(std::uintptr_t(1) << 44);
  strides const sliced{std::int64_t(200000) * 3 * 4096, 3 * 4096, 128, 1};
  constexpr lanewise::config wide{.head_dim = 128};
  lanewise::backward_args<wide> a{.q = {base - (std::int64_t(1) << 40), e},
                                  .k = {base - (std::int64_t(2) << 40), e},
                                  .v = {base - (std::int64_t(3) << 40), e},
                                  .o = {base + (std::int64_t(1) << 40), e},
                                  .lse = {base + (std::int64_t(2) << 40), {4, 200000, 32, 1}},
                                  .d_o = {base + (std::int64_t(3) << 40), e}};
  a.d_q = {base, e, sliced}, a.d_k = {base + 4096, e, sliced}, a.d_v = {base + 8192, e, sliced};
  accepted(check(a));
  a.d_v.data += 128;
  CHECK(check(a).code == status_code::alias);
}

namespace {
using lanewise::detail::tensor;

std::set<std::uintptr_t> bytes_of(tensor const& t, bool& twice) {
  std::set<std::uintptr_t> all;
  for (std::int64_t b = 0; b < t.size.batch; ++b)
    for (std::int64_t s = 0; s < t.size.sequence; ++s)
      for (std::int64_t h = 0; h < t.size.heads; ++h)
        for (std::int64_t i = 0; i < t.size.head_dim * std::int64_t(t.element); ++i)
          twice |=
              !all.insert(t.data + t.element * (b * t.stride.batch + s * t.stride.sequence + h * t.stride.heads) + i)
                   .second;
  return all;
}

tensor random_tensor(std::mt19937& random) {
  auto const draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  tensor t{"t", std::uintptr_t(1000 + 4 * draw(0, 30)), draw(0, 1) ? 4u : 2u, {}, {}};
  t.size = {draw(1, 3), draw(1, 4), draw(1, 3), draw(1, 3)};
  t.stride = {draw(1, 24), draw(1, 24), draw(1, 24), 1};
  return t;
}
}  // namespace

TEST_CASE("overlaps agree with sets of bytes") {
  std::mt19937 random(1);
  int meet = 0, own = 0, wrong = 0;
  constexpr int cases = 20000;
  for (int i = 0; i < cases; ++i) {
    tensor const x = random_tensor(random);
    tensor const y = random_tensor(random);
    bool twice = false, ignored = false;
    auto const a = bytes_of(x, twice), b = bytes_of(y, ignored);
    bool shared = false;
    for (std::uintptr_t byte : a) shared |= b.contains(byte);
    wrong += lanewise::detail::share_a_byte(x, y) != shared;
    wrong += lanewise::detail::overlaps_itself(x) != twice;
    wrong += lanewise::detail::end_of(x) != *a.rbegin() + 1;
    meet += shared, own += twice;
  }
  CHECK(wrong == 0);
  CHECK(meet > cases / 10);  // both answers are well represented
  CHECK(meet < cases * 9 / 10);
  CHECK(own > cases / 10);
  CHECK(own < cases * 9 / 10);
}

TEST_CASE("a parameter's gradient has an element of its own for each index") {
  using lanewise::detail::check_own_elements;
  accepted(check_own_elements("d_b", {2, 1, 3, 4}, {12, 0, 4, 1}));
  accepted(check_own_elements("d_b", {1, 1, 3, 4}, {0, 0, 1, 3}));
  refused(check_own_elements("d_b", {2, 1, 3, 4}, {12, 0, 0, 1}), status_code::bad_stride,
          "d_b: stride 0 along dimension 2 of extent 3 must be positive");
  refused(check_own_elements("d_b", {1, 1, 3, 4}, {0, 0, -4, 1}), status_code::bad_stride,
          "d_b: stride -4 along dimension 2 of extent 3 must be positive");
  refused(check_own_elements("d_b", {1, 1, 3, 4}, {0, 0, 1, 1}), status_code::alias,
          "d_b overlaps itself: dimensions 2 and 3 both have stride 1");
  refused(check_own_elements("d_b", {1, 1, 3, 4}, {0, 0, 3, 1}), status_code::alias,
          "d_b overlaps itself: strides [0, 0, 3, 1] for [1, 1, 3, 4]");
  refused(check_own_elements("d_b", {2, 1, 1, 1}, {std::int64_t(1) << 60, 0, 0, 0}), status_code::bad_stride,
          "d_b: stride 1152921504606846976 along dimension 0 spans more than 2^60 bytes");
}
