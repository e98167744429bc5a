// Stock masks and scores: masks against definitions written out here, covers by brute force, derivatives against
// differences, validation sentences.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <lanewise/variants.hpp>

using namespace lanewise;

namespace {

constexpr std::int32_t lengths_of_interest[][2] = {{1, 1},   {5, 5},  {7, 13}, {13, 7},
                                                   {40, 33}, {1, 33}, {33, 1}, {64, 65}};
constexpr std::int32_t tiles[][2] = {{1, 1}, {3, 2}, {4, 16}, {16, 4}, {16, 16}, {64, 64}, {33, 100}};

using definition = std::function<bool(position)>;

template <class F>
int mask_errors(F const& given, shape s, definition const& kept) {
  auto const f = lanewise::bind(given, s);
  int wrong = 0;
  for (std::int32_t b = 0; b < s.batch; ++b)
    for (std::int32_t h = 0; h < s.heads; ++h)
      for (std::int32_t q = 0; q < s.q; ++q)
        for (std::int32_t k = 0; k < s.k; ++k) wrong += keep(f, {b, h, q, k}) != kept({b, h, q, k});
  return wrong;
}

/// Tiles whose cover is a right answer but not the best one.
template <class F>
int covers_missed(F const& given, shape s, std::int32_t block_q, std::int32_t block_k) {
  auto const f = lanewise::bind(given, s);
  int missed = 0;
  for (std::int32_t b = 0; b < s.batch; ++b)
    for (std::int32_t q = 0; q < s.q; q += block_q)
      for (std::int32_t k = 0; k < s.k; k += block_k) {
        block const tile{b, 0, q, std::min(q + block_q, s.q), k, std::min(k + block_k, s.k)};
        int kept = 0, pairs = 0;
        for (std::int32_t i = tile.q_begin; i < tile.q_end; ++i)
          for (std::int32_t j = tile.k_begin; j < tile.k_end; ++j, ++pairs) kept += keep(f, {b, 0, i, j});
        missed += cover_of(f, tile) != (kept == 0 ? cover::empty : kept == pairs ? cover::full : cover::partial);
      }
  return missed;
}

enum class exact { yes, no };

/// The mask is the given one, and its cover holds for every tiling; with exact::yes it is also the best answer.
template <class F>
void check_mask(F const& f, shape s, definition const& kept, exact e = exact::yes) {
  CHECK(mask_errors(f, s, kept) == 0);
  for (auto const& t : tiles) {
    CHECK(verify_cover(f, s, t[0], t[1]));
    if (e == exact::yes) CHECK(covers_missed(f, s, t[0], t[1]) == 0);
  }
}

void refused(status const& s, status_code code, std::string const& sentence) {
  CHECK(std::string(name_of(s.code)) == name_of(code));
  CHECK(s.message() == sentence);
}
void accepted(status const& s) { CHECK(std::string(s.message()) == "ok"); }

constexpr std::int64_t wide(std::int32_t x) { return x; }

}  // namespace

TEST_CASE("full keeps everything") {
  for (auto const& [q, k] : lengths_of_interest) check_mask(full{}, {1, 1, q, k}, [](position) { return true; });
}

TEST_CASE("the causal masks, for Sq < Sk, = and >") {
  for (auto const& [q, k] : lengths_of_interest) {
    shape const s{2, 1, q, k};
    std::int32_t const diagonal = k - q;
    check_mask(causal_top_left{}, s, [](position at) { return at.k <= at.q; });
    check_mask(causal_bottom_right{}, s, [=](position at) { return at.k <= at.q + diagonal; });
    for (std::int32_t offset : {-40, -3, 0, 2, 40})
      check_mask(causal_offset{offset}, s, [=](position at) { return at.q >= at.k - offset; });
  }
}

TEST_CASE("bottom-right: the last query sees every key, and the first rows may see none") {
  auto const f = lanewise::bind(causal_bottom_right{}, {1, 1, 5, 3});
  CHECK(!keep(f, {0, 0, 1, 0}));
  CHECK(keep(f, {0, 0, 2, 0}));
  CHECK(keep(f, {0, 0, 4, 2}));
}

TEST_CASE("windows: both bounds inclusive, one-sided, unbounded, both alignments") {
  for (auto const& [q, k] : lengths_of_interest)
    for (std::int32_t left : {0, 1, 6, unbounded})
      for (std::int32_t right : {0, 2, 9, unbounded}) {
        shape const s{1, 1, q, k};
        auto const within = [=](std::int64_t offset) {
          return [=](position at) {
            std::int64_t const centre = at.q + offset;
            return at.k >= centre - left && at.k <= centre + right;
          };
        };
        check_mask(window{left, right}, s, within(0));
        check_mask(window{left, right, 4}, s, within(4));
        check_mask(window{left, right, -11}, s, within(-11));
        check_mask(window_bottom_right{left, right}, s, within(wide(k) - q));
      }
}

TEST_CASE("a window of 128 to each side is 257 keys wide; equal windows agree with causal") {
  int kept = 0;
  for (std::int32_t k = 0; k < 1000; ++k) kept += window{128, 128}({0, 0, 500, k});
  CHECK(kept == 257);
  for (std::int32_t n : {1, 7, 64})
    for (std::int32_t left : {n - 1, n, unbounded})
      CHECK(mask_errors(window{left, 0}, {1, 1, n, n}, causal_top_left{}) == 0);
  CHECK(mask_errors(window{6, 0}, {1, 1, 8, 8}, causal_top_left{}) == 1);
}

TEST_CASE("windows at the far end of 32-bit positions") {
  constexpr std::int32_t far = 2147483646;
  static_assert(window{1, 0}({0, 0, far, far - 1}) && !window{1, 0}({0, 0, far, far - 2}));
  static_assert(window{unbounded, 0}({0, 0, far, 0}) && window{0, unbounded}({0, 0, 0, far}));
  static_assert(window{unbounded, unbounded}.cover_of({0, 0, 0, far, 0, far}) == cover::full);
  static_assert(window{0, 0}.cover_of({0, 0, 0, 64, far - 64, far}) == cover::empty);
  static_assert(causal_offset{far}({0, 0, 0, far}) && !causal_offset{-far}({0, 0, far, 1}));
}

TEST_CASE("key padding by length") {
  std::int32_t const lengths[] = {0, 1, 17, 33, 1000};
  for (auto const& [q, k] : lengths_of_interest)
    check_mask(key_padding{lengths}, {5, 1, q, k}, [&](position at) { return at.k < lengths[at.batch]; });
}

TEST_CASE("padding of self-attention keeps padded keys open to padded queries") {
  std::int32_t const lengths[] = {0, 1, 17, 33, 1000};
  for (std::int32_t n : {1, 7, 33, 64})
    check_mask(self_padding{lengths}, {5, 1, n, n},
               [&](position at) { return at.q >= lengths[at.batch] ? true : at.k < lengths[at.batch]; });
}

TEST_CASE("key padding by bit, a mask each and one for all") {
  std::mt19937 random(3);
  for (std::int32_t k : {1, 31, 32, 33, 65, 200}) {
    std::int64_t const words = bit_mask_words(k);
    CHECK(words == std::int64_t(std::ceil(k / 32.0)));
    for (int density : {0, 1, 7, 8}) {
      std::vector<std::uint32_t> mask(3 * words, 0xdeadbeef);
      std::vector<bool> kept(3 * k);
      for (int b = 0; b < 3; ++b)
        for (std::int32_t j = 0; j < k; ++j) {
          kept[b * k + j] = int(random() % 8) < density;
          set_key(mask.data() + b * words, j, kept[b * k + j]);
        }
      check_mask(key_padding_bits{mask.data(), words}, {3, 1, 9, k},
                 [&](position at) { return kept[at.batch * k + at.k]; });
      check_mask(key_padding_bits{mask.data()}, {3, 1, 9, k}, [&](position at) { return kept[at.k]; });
    }
  }
}

TEST_CASE("no key column of a self-attention mask is ever dead") {
  auto const dead_columns = [](auto const& f, std::int32_t n) {
    int dead = 0;
    for (std::int32_t k = 0; k < n; ++k) {
      bool seen = false;
      for (std::int32_t q = 0; q < n; ++q) seen |= f(position{0, 0, q, k});
      dead += !seen;
    }
    return dead;
  };
  for (std::int32_t n : {1, 2, 17, 64, 129})
    for (std::int32_t width : {0, 1, 16, 128, unbounded})
      for (std::int32_t valid : {0, 1, n / 2, n - 1, n}) {
        CHECK(dead_columns(combine{window{width, width}, self_padding{&valid}}, n) == 0);
        CHECK(dead_columns(combine{window{width, 0}, self_padding{&valid}}, n) == 0);
        CHECK(dead_columns(combine{self_padding{&valid}, full{}}, n) == 0);
        CHECK(dead_columns(combine{window{width, width}, key_padding{&valid}}, n) == n - valid);
      }
}

namespace {

/// Right covers and hulls, but what a row sees has a hole that two bounds a row do not know.
struct holed : causal_top_left {
  bool operator()(position at) const { return causal_top_left::operator()(at) && at.k != 5; }
  cover cover_of(block b) const { return causal_top_left::cover_of(b) == cover::empty ? cover::empty : cover::partial; }
};
struct honestly_holed : holed {
  static constexpr bool sees_one_run = false;
};

}  // namespace

TEST_CASE("verify_cover catches a wrong cover, and names the block") {
  struct wrong_causal : causal_top_left {
    cover cover_of(block b) const { return b.k_begin >= 8 ? cover::empty : cover::partial; }
  };
  block where{};
  CHECK(!verify_cover(wrong_causal{}, {1, 1, 12, 12}, 4, 4, &where));
  CHECK(where.q_begin == 8);
  CHECK(where.k_begin == 8);
  CHECK(where.k_end == 12);
  struct too_full : causal_top_left {
    cover cover_of(block) const { return cover::full; }
  };
  CHECK(!verify_cover(too_full{}, {1, 1, 12, 12}, 4, 4));
  CHECK(verify_cover(too_full{}, {1, 1, 1, 1}, 4, 4));
  // each right by itself, but the hull leaves out tiles that the cover calls partial, so walks visit them or not
  struct careless_cover : causal_top_left {
    cover cover_of(block b) const { return b.k_begin >= 8 ? causal_top_left::cover_of(b) : cover::partial; }
  };
  CHECK(!verify_cover(careless_cover{}, {1, 1, 12, 12}, 4, 4, &where));
  CHECK(where.q_begin == 0);
  CHECK(where.k_begin == 4);
  CHECK(!verify_cover(holed{}, {1, 1, 12, 12}, 4, 4, &where));
  CHECK(where.q_begin == 4);
  CHECK(where.k_begin == 4);
  CHECK(verify_cover(honestly_holed{}, {1, 1, 12, 12}, 4, 4));
  static_assert(sees_one_run<full> && sees_one_run<window> && sees_one_run<combine<causal_top_left, softcap>>);
  static_assert(!sees_one_run<combine<causal_top_left, window>> && !sees_one_run<self_padding>);
  auto const lambda = [](position at) { return (at.q + at.k) % 2 == 0; };
  CHECK(verify_cover(lambda, {1, 1, 9, 9}, 4, 4));
  CHECK(cover_of(lambda, {0, 0, 0, 4, 0, 4}) == cover::partial);
}

namespace {
/// Documents written out: which one a query and a key belong to, by linear search.
struct packed {
  std::vector<std::int32_t> cu_q, cu_k;
  int of(std::vector<std::int32_t> const& cu, std::int32_t x) const {
    int found = -1;
    for (int i = 0; i + 1 < int(cu.size()); ++i)
      if (cu[i] <= x && x < cu[i + 1]) found = i;
    return found;
  }
  bool together(position at) const { return of(cu_q, at.q) >= 0 && of(cu_q, at.q) == of(cu_k, at.k); }
  std::int32_t count() const { return std::int32_t(cu_q.size()) - 1; }
};
std::vector<packed> const packings{
    {{0, 40}, {0, 33}},                                    // one document
    {{0, 5, 17, 40}, {0, 9, 20, 33}},                      // several
    {{0, 5, 5, 17, 17, 17, 40}, {0, 3, 9, 9, 9, 20, 33}},  // without queries, without keys, without either
    {{3, 10, 30}, {2, 12, 25}},                            // positions outside, before and after
    {{40, 40}, {33, 33}},                                  // nothing at all
    {{0, 0, 20}, {0, 0, 16}},
};
}  // namespace

TEST_CASE("documents see themselves only") {
  for (packed const& p : packings)
    check_mask(
        documents{p.cu_q.data(), p.cu_k.data(), p.count()}, {1, 1, 40, 33}, [&](position at) { return p.together(at); },
        exact::no);
}

TEST_CASE("no documents: nothing is seen") {
  std::int32_t const zero = 0;
  check_mask(documents{&zero, &zero, 0}, {1, 1, 9, 9}, [](position) { return false; });
}

TEST_CASE("documents with an inner mask, aligned per document") {
  for (packed const& p : packings) {
    auto const inside = [&](auto mask) {
      return [&p, mask](position at) {
        if (!p.together(at)) return false;
        int const i = p.of(p.cu_q, at.q);
        return bool(mask(at.q - p.cu_q[i], at.k - p.cu_k[i], p.cu_q[i + 1] - p.cu_q[i], p.cu_k[i + 1] - p.cu_k[i]));
      };
    };
    auto const with = [&](auto inner) { return documents{p.cu_q.data(), p.cu_k.data(), p.count(), inner}; };
    shape const s{1, 2, 40, 33};
    check_mask(with(causal_top_left{}), s, inside([](int q, int k, int, int) { return k <= q; }), exact::no);
    check_mask(with(causal_bottom_right{}), s, inside([](int q, int k, int nq, int nk) { return k <= q + nk - nq; }),
               exact::no);
    check_mask(with(window_bottom_right{3, 1}), s,
               inside([](int q, int k, int nq, int nk) { return std::abs(k - q - nk + nq + 1) <= 2; }), exact::no);
    check_mask(with(combine{causal_bottom_right{}, window{2, unbounded}}), s,
               inside([](int q, int k, int nq, int nk) { return k <= q + nk - nq && k >= q - 2; }), exact::no);
  }
}

TEST_CASE("covers of documents are exact where a tile lies in one document") {
  std::int32_t const cu[] = {0, 32, 64, 96};
  CHECK(covers_missed(documents{cu, cu, 3}, {1, 1, 96, 96}, 16, 16) == 0);
  CHECK(covers_missed(documents{cu, cu, 3}, {1, 1, 96, 96}, 32, 8) == 0);
  CHECK(covers_missed(documents{cu, cu, 3, causal_bottom_right{}}, {1, 1, 96, 96}, 16, 16) == 0);
}

TEST_CASE("documents with tables of their own for each batch element") {
  std::int32_t const cu[] = {0, 4, 9, -1, 0, 7, 8, -1};
  packed const first{{0, 4, 9}, {0, 4, 9}}, second{{0, 7, 8}, {0, 7, 8}};
  documents<> f{.cu_q = cu, .cu_k = cu, .count = 2, .batch_stride = 4};
  check_mask(
      f, {2, 1, 9, 9}, [&](position at) { return (at.batch == 0 ? first : second).together(at); }, exact::no);
  f.batch_stride = 0;
  check_mask(
      f, {2, 1, 9, 9}, [&](position at) { return first.together(at); }, exact::no);
}

namespace {
/// Shows what documents tells its inner variant.
struct probe {
  shape given{};
  probe bind(shape s) const { return {s}; }
  float operator()(float, position at) const {
    return float(((at.q * 100 + at.k) * 100 + given.q) * 100 + given.k) + 1e8f * float(given.batch * 10 + given.heads);
  }
  float grad(float, position at) const { return float(at.q * 100 + at.k); }
};
}  // namespace

TEST_CASE("documents ask the inner variant at local positions with the document's lengths, and the call's heads") {
  std::int32_t const cu_q[] = {2, 5, 9}, cu_k[] = {1, 4, 10};
  auto const f = lanewise::bind(documents{cu_q, cu_k, 2, probe{}}, {3, 6, 12, 12});
  position const at{1, 4, 7, 9};  // document 1: q 2, k 5, lengths 4 and 6
  CHECK(score(f, 0.f, at) == probe{{3, 6, 4, 6}}(0.f, {1, 4, 2, 5}));
  CHECK(score_grad(f, 0.f, at) == 205.f);
  for (position outside : {position{0, 0, 0, 1}, position{0, 0, 9, 9}, position{0, 0, 7, 3}, position{0, 0, 3, 10}}) {
    CHECK(score(f, 1.5f, outside) == 1.5f);
    CHECK(score_grad(f, 1.5f, outside) == 1.f);
  }
}

TEST_CASE("documents carry the inner variant's parameters and sink") {
  std::int32_t const cu[] = {2, 5, 9};
  float slopes[] = {0.5f, 0.25f}, d_slopes[2], logits[] = {3.f, 4.f}, d_logits[2];
  alibi_bottom_right const slope{{slopes, 1, 2, 1, 1}, {d_slopes, 1, 2, 1, 1}};
  sink const extra{{logits, 1, 2, 1, 1}, {d_logits, 1, 2, 1, 1}};
  auto const f = lanewise::bind(documents{cu, cu, 2, combine{extra, slope}}, {1, 2, 12, 12});
  using F = std::remove_const_t<decltype(f)>;
  static_assert(parameter_count<F> == 2 && parameter_is_sink<0, F> && !parameter_is_sink<1, F>);
  static_assert(has_sink<F> && has_score<F> && differentiable<F>);
  CHECK(parameter_gradient<0>(f).data == d_logits);
  CHECK(parameter_gradient<1>(f).data == d_slopes);
  CHECK(parameter_factor<1>(f, 0.f, {0, 1, 8, 5}) == -3.f);
  CHECK(parameter_factor<1>(f, 0.f, {0, 1, 8, 4}) == 0.f);  // another document
  CHECK(score(f, 1.f, {0, 1, 8, 5}) == 1.f - 0.25f * 3.f);
  CHECK(f(row{0, 1, 5}) == 4.f);
  CHECK(f(row{0, 0, 4}) == 3.f);
  CHECK(f(row{0, 0, 1}) == -infinity);
  CHECK(f(row{0, 0, 9}) == -infinity);
  static_assert(parameter_count<decltype(documents{cu, cu, 2})> == 0);
}

TEST_CASE("validation names the numbers: masks") {
  shape const s{2, 4, 10, 12};
  accepted(validate(full{}, s));
  accepted(validate([](position) { return true; }, s));
  accepted(validate(window{0, unbounded}, s));
  refused(validate(window{-1, 5}, s), status_code::bad_argument,
          "window: left -1 and right 5 must not be negative; a side without an end is lanewise::unbounded");
  refused(validate(window_bottom_right{3, -2}, s), status_code::bad_argument,
          "window: left 3 and right -2 must not be negative; a side without an end is lanewise::unbounded");
  accepted(validate(window{1, 1, 2147483637}, s));
  refused(validate(window{1, 1, 2147483638}, s), status_code::bad_argument,
          "window: offset 2147483638 leaves 32 bits with 10 queries and 12 keys");
  refused(validate(causal_offset{-2147483647}, s), status_code::bad_argument,
          "causal_offset: offset -2147483647 leaves 32 bits with 10 queries and 12 keys");
  std::int32_t const table[] = {0, 3, 10};
  accepted(validate(key_padding{table}, s));
  refused(validate(key_padding{}, s), status_code::null_view,
          "key_padding: lengths is null, 2 batch elements need one each");
  accepted(validate(key_padding{}, {0, 4, 10, 12}));
  accepted(validate(self_padding{table}, {2, 4, 10, 10}));
  refused(validate(self_padding{table}, s), status_code::bad_extent,
          "self_padding: 10 queries but 12 keys; it is for self-attention");
  refused(validate(self_padding{}, {2, 4, 10, 10}), status_code::null_view,
          "self_padding: lengths is null, 2 batch elements need one each");
  std::uint32_t const words[4] = {};
  accepted(validate(key_padding_bits{words, 1}, s));
  refused(validate(key_padding_bits{words, 1}, {2, 4, 10, 33}), status_code::bad_extent,
          "key_padding_bits: words_per_batch is 1, 33 keys need 2 (0: one mask for every batch element)");
  accepted(validate(key_padding_bits{words, 0}, {2, 4, 10, 33}));
  refused(validate(key_padding_bits{}, {2, 4, 10, 33}), status_code::null_view,
          "key_padding_bits: words is null, 33 keys need 2 words");
}

TEST_CASE("validation names the numbers: documents") {
  shape const s{2, 4, 10, 12};
  std::int32_t const cu[] = {0, 3, 10};
  accepted(validate(documents{cu, cu, 2}, s));
  refused(validate(documents{cu, cu, -1}, s), status_code::bad_argument, "documents: count is -1");
  refused(validate(documents{nullptr, cu, 2}, s), status_code::null_view,
          "documents: cu_q is null, 2 documents need 3 entries");
  refused(validate(documents<>{cu, nullptr, 2}, s), status_code::null_view,
          "documents: cu_k is null, 2 documents need 3 entries");
  refused(validate(documents{cu, cu, 2, full{}, 2}, s), status_code::bad_argument,
          "documents: batch_stride is 2, a table of 2 documents has 3 entries");
  refused(validate(documents{cu, cu, 2, softcap{-1.f}}, s), status_code::bad_argument,
          "softcap: cap is -1, it must be a finite number above 0");
  static float b[120], d_b[120];
  accepted(validate(documents{cu, cu, 2, bias{{b, 1, 1, 10, 12}}}, s));
  refused(validate(documents{cu, cu, 2, combine{softcap{1.f}, bias{{b, 1, 1, 10, 12}, {d_b, 1, 1, 10, 12}}}}, s),
          status_code::unsupported,
          "documents: a parameter gradient of an inner variant over [q 10, k 12]; put that variant beside documents in "
          "combine");
  accepted(check_cumulative("cu_q", cu, 2, 10));
  refused(check_cumulative("cu_q", cu, 2, 9), status_code::bad_argument, "cu_q[2] is 10, the sequence has 9");
  std::int32_t const down[] = {0, 5, 4}, below[] = {-1, 5};
  refused(check_cumulative("cu_k", down, 2, 10), status_code::bad_argument, "cu_k[2] is 4, below cu_k[1], 5");
  refused(check_cumulative("cu_k", below, 1, 10), status_code::bad_argument, "cu_k[0] is -1");
}
