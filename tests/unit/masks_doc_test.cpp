// The example of docs/masks.md: compiled here, the same text as in the page, its gradients against central differences
// of attention written out in f64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

// docs/masks.md begins
#include <lanewise/attention_cpu.hpp>
#include <lanewise/variants.hpp>

/// Keeps the last `width` keys up to the query's own, and bends scores into (-cap, cap).
struct capped_window {
  float cap;
  std::int32_t width;

  LANEWISE_HD bool operator()(lanewise::position at) const { return at.k <= at.q && at.q - at.k < width; }
  LANEWISE_HD float operator()(float s, lanewise::position) const { return cap * lanewise::tanh_f32(s / cap); }
  LANEWISE_HD float grad(float s, lanewise::position) const {
    float const t = lanewise::tanh_f32(s / cap);
    return 1 - t * t;
  }
  LANEWISE_HD lanewise::cover cover_of(lanewise::block b) const {
    std::int32_t const nearest = b.q_begin - (b.k_end - 1), farthest = b.q_end - 1 - b.k_begin;  // q - k in the block
    if (nearest >= 0 && farthest < width) return lanewise::cover::full;
    return farthest < 0 || nearest >= width ? lanewise::cover::empty : lanewise::cover::partial;
  }
  lanewise::status validate(lanewise::shape) const {
    if (cap > 0 && width > 0) return {};
    return lanewise::fail(lanewise::status_code::bad_argument, "capped_window: cap ", cap, " and width ", width,
                          " must be above 0");
  }
};

/// A learnt factor for each head: s' = t[head] s.
struct temperature {
  lanewise::parameter_view<float const> t;
  lanewise::parameter_view<float> d_t{};

  LANEWISE_HD float operator()(float s, lanewise::position at) const { return t.at(0, at.head, 0, 0) * s; }
  LANEWISE_HD float grad(float, lanewise::position at) const { return t.at(0, at.head, 0, 0); }
  LANEWISE_HD lanewise::parameter_view<float> parameter_gradient() const { return d_t; }
  LANEWISE_HD float parameter_factor(float s, lanewise::position) const { return s; }
};

inline constexpr lanewise::config small{.head_dim = 8};

/// o, lse and then every gradient, d_t included, on the calling thread.
lanewise::status attend(lanewise::forward_args<small> const& f, lanewise::backward_args<small> const& b,
                        lanewise::parameter_view<float> t, lanewise::parameter_view<float> d_t,
                        lanewise::workspace scratch) {
  auto const variant = lanewise::combine{temperature{t, d_t}, capped_window{2.f, 4}};
  if (lanewise::status s = lanewise::forward<small>(lanewise::on_cpu{}, f, variant, scratch); !s) return s;
  return lanewise::backward<small>(lanewise::on_cpu{}, b, variant, scratch);
}
// docs/masks.md ends

namespace {

constexpr int length = 9, heads = 2, d = 8;
using vector = std::vector<double>;

/// sum(o * d_o) of the example's attention, one key/value head, straight from its definition.
double loss(vector const& q, vector const& k, vector const& v, vector const& t, vector const& d_o) {
  double sum = 0;
  for (int h = 0; h < heads; ++h)
    for (int i = 0; i < length; ++i) {
      int const row = (i * heads + h) * d;
      double weight = 0, weighted = 0;
      for (int j = std::max(0, i - 3); j <= i; ++j) {
        double s = 0, value = 0;
        for (int c = 0; c < d; ++c) s += q[row + c] * k[j * d + c], value += d_o[row + c] * v[j * d + c];
        double const p = std::exp(2 * std::tanh(t[h] * s / std::sqrt(double(d)) / 2));
        weight += p, weighted += p * value;
      }
      sum += weighted / weight;
    }
  return sum;
}

/// The largest distance of `got` from the central differences of `of` in x, over the largest of them.
double worst_error(std::vector<float> const& got, vector& x, auto const& of) {
  constexpr double h = 1e-5;
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    double const x0 = x[i];
    x[i] = x0 + h;
    double const above = of();
    x[i] = x0 - h;
    double const slope = (above - of()) / (2 * h);
    x[i] = x0;
    worst = std::max(worst, std::abs(double(got[i]) - slope));
    largest = std::max(largest, std::abs(slope));
  }
  return worst / largest;
}

std::string text_of(std::filesystem::path const& path) {
  std::ifstream in(path);
  REQUIRE_MESSAGE(bool(in), "cannot read " << path.string());
  return (std::stringstream() << in.rdbuf()).str();
}

}  // namespace

TEST_CASE("the example's gradients are those of its definition") {
  std::mt19937 random(5);
  auto const draw = [&](std::size_t n) {
    std::vector<float> x(n);
    for (float& e : x) e = std::normal_distribution<float>()(random);
    return x;
  };
  auto q = draw(length * heads * d), k = draw(length * d), v = draw(length * d), d_o = draw(q.size());
  std::vector<float> t{0.5f, 1.5f}, o(q.size()), lse(length * heads), d_q(q.size()), d_k(k.size()), d_v(v.size()),
      d_t(2);
  lanewise::extents const rows{1, length, heads, d}, keys{1, length, 1, d};
  lanewise::view<float> const out{o.data(), rows}, sums{lse.data(), {1, length, heads, 1}};
  lanewise::view<float const> const in_q{q.data(), rows}, in_k{k.data(), keys}, in_v{v.data(), keys};
  lanewise::parameter_view<float> const to_t{d_t.data(), 1, heads, 1, 1};
  auto const variant = lanewise::combine{temperature{{t.data(), 1, heads, 1, 1}, to_t}, capped_window{2.f, 4}};
  lanewise::cpu_target const here = target_of(lanewise::on_cpu{});
  std::size_t const ahead = lanewise::forward_workspace<small>(here, rows, keys, variant),
                    back = lanewise::backward_workspace<small>(here, rows, keys, variant);
  struct alignas(lanewise::workspace_alignment) line {
    std::byte bytes[lanewise::workspace_alignment];
  };
  std::vector<line> scratch(std::max(ahead, back) / sizeof(line) + 1);
  lanewise::status const s = attend({.q = in_q, .k = in_k, .v = in_v, .o = out, .lse = sums},
                                    {.q = in_q,
                                     .k = in_k,
                                     .v = in_v,
                                     .o = out,
                                     .lse = sums,
                                     .d_o = lanewise::view<float>{d_o.data(), rows},
                                     .d_q = {d_q.data(), rows},
                                     .d_k = {d_k.data(), keys},
                                     .d_v = {d_v.data(), keys}},
                                    {t.data(), 1, heads, 1, 1}, to_t, {scratch.data(), scratch.size() * sizeof(line)});
  REQUIRE_MESSAGE(bool(s), s.message());

  vector xq(q.begin(), q.end()), xk(k.begin(), k.end()), xv(v.begin(), v.end()), xt(t.begin(), t.end());
  vector const xd(d_o.begin(), d_o.end());
  auto const of = [&] { return loss(xq, xk, xv, xt, xd); };
  constexpr double bound = 5e-6;  // what docs/precision.md promises for f32; the differences err by 1e-10
  CHECK(worst_error(d_q, xq, of) < bound);
  CHECK(worst_error(d_k, xk, of) < bound);
  CHECK(worst_error(d_v, xv, of) < bound);
  CHECK(worst_error(d_t, xt, of) < bound);
}

TEST_CASE("the example's cover is proved, and its mistakes are named") {
  for (std::int32_t width : {1, 4, 20})
    for (std::int32_t tile : {1, 3, 8, 16})
      CHECK(lanewise::verify_cover(capped_window{2.f, width}, {1, 1, 33, 40}, tile, tile));
  CHECK(std::string(lanewise::validate(capped_window{2.f, 0}, {1, 1, 4, 4}).message()) ==
        "capped_window: cap 2 and width 0 must be above 0");
}

TEST_CASE("docs/masks.md shows this very text") {
  std::filesystem::path const here = __FILE__;
  std::string const source = text_of(here), page = text_of(here.parent_path() / "../../docs/masks.md");
  std::string const first = "// docs/masks.md begins\n", last = "// docs/masks.md ends\n";
  std::size_t const begin = source.find(first) + first.size();
  CHECK(page.find("```cpp\n" + source.substr(begin, source.find(last) - begin) + "```\n") != std::string::npos);
}
