// The attention site: exact against finite differences, flash against exact, ablated against zero.
#include "attention_probe.hpp"
#include "error.hpp"
#include "support.hpp"

using namespace trainer;
using test::check_gradient, test::dot, test::normal, test::relative_error;

namespace {

/// Queries and keys side by side in one buffer, values in another, as the model lays them. Where there are fewer
/// queries than keys or the reverse, the rest of the buffer is nobody's.
struct layout {
  attention_shape s;
  std::int64_t qk_stride() const { return (s.q_heads + s.kv_heads) * s.head_dim; }
  std::int64_t v_stride() const { return (s.kv_heads + 1) * s.head_dim; }  // one head's gap before the values
  std::int64_t longest() const { return std::max(s.queries, s.keys); }
  std::int64_t tokens() const { return s.batch * longest(); }
  template <class T>
  lanewise::view<T> view(T* data, std::int64_t stride, std::int64_t first, lanewise::extents size) const {
    return {data + first * s.head_dim, size, {longest() * stride, stride, s.head_dim, 1}};
  }
  template <class T>
  lanewise::view<T> q(T* qk) const {
    return view(qk, qk_stride(), 0, s.q());
  }
  template <class T>
  lanewise::view<T> k(T* qk) const {
    return view(qk, qk_stride(), s.q_heads, s.kv());
  }
  template <class T>
  lanewise::view<T> v(T* qkv) const {
    return view(qkv, v_stride(), 1, s.kv());
  }
  template <class T>
  lanewise::view<T> o(T* o) const {
    return view(o, s.q_heads * s.head_dim, 0, s.q());
  }
};

template <class T>
struct result {
  std::vector<T> o, d_qk, d_v;
};

/// Forward and backward of one site from the same f64 numbers.
template <class T>
result<T> run(layout const& at, attention_kind kind, std::vector<double> const& qk, std::vector<double> const& v,
              std::vector<double> const& d_o, int threads = 2, std::vector<std::int32_t> const& lengths = {}) {
  lanewise::thread_pool pool(threads);
  cpu_ops<T> const op{workers(pool)};
  attention_site const site{kind, at.s};
  attention_needs const needs = op.attention(site);
  std::vector<T> const qk_t(qk.begin(), qk.end()), v_t(v.begin(), v.end()), d_o_t(d_o.begin(), d_o.end());
  std::size_t const align = lanewise::workspace_alignment,
                    bytes = std::max(needs.forward_scratch, needs.backward_scratch);
  std::vector<std::byte> room(bytes + align);
  auto* const scratch =
      reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(room.data()) + align - 1) / align * align);
  std::vector<T> saved(std::size_t(needs.saved));
  result<T> r{std::vector<T>(d_o.size(), T(99)), std::vector<T>(qk.size(), T(99)), std::vector<T>(v.size(), T(99))};
  attention_inputs<T> const in{at.q(qk_t.data()), at.k(qk_t.data()), at.v(v_t.data()),
                               lengths.empty() ? nullptr : lengths.data()};
  op.attention_forward(site, in, at.o(r.o.data()), saved.data(), scratch);
  op.attention_backward(site, in, at.o(static_cast<T const*>(r.o.data())), saved.data(), at.o(d_o_t.data()),
                        {at.q(r.d_qk.data()), at.k(r.d_qk.data()), at.v(r.d_v.data())}, scratch);
  return r;
}

struct problem {
  layout at;
  std::vector<double> qk, v, d_o;
  explicit problem(attention_shape s)
      : at{s}, qk(normal<double>(std::size_t(at.tokens() * at.qk_stride()), 1)),
        v(normal<double>(std::size_t(at.tokens() * at.v_stride()), 2)),
        d_o(normal<double>(std::size_t(at.tokens() * s.q_heads * s.head_dim), 3)) {}
};

}  // namespace

TEST_CASE("exact: causal softmax attention with grouped heads, and its gradients by finite differences") {
  problem p({2, 7, 7, 4, 2, 6, attention_mask::causal()});
  result<double> const r = run<double>(p.at, attention_kind::exact, p.qk, p.v, p.d_o);

  std::int64_t const t = 7 + 4, h = 3, kv = 1;  // the fifth token of the second sequence
  double sum = 0, expected[6] = {};
  for (std::int64_t j = 7; j <= t; ++j) {
    double score = 0;
    for (int i = 0; i < 6; ++i) score += p.qk[(t * 6 + h) * 6 + i] * p.qk[(j * 6 + 4 + kv) * 6 + i];
    double const w = std::exp(score / std::sqrt(6.0));
    sum += w;
    for (int i = 0; i < 6; ++i) expected[i] += w * p.v[(j * 3 + 1 + kv) * 6 + i];
  }
  for (int i = 0; i < 6; ++i) CHECK(r.o[(t * 4 + h) * 6 + i] == doctest::Approx(expected[i] / sum).epsilon(1e-12));

  auto const loss = [&] { return dot(run<double>(p.at, attention_kind::exact, p.qk, p.v, p.d_o).o, p.d_o); };
  std::vector<double> d_v = r.d_v;
  for (std::size_t i = 0; i < d_v.size(); ++i)
    if (i % 18 < 6) {
      REQUIRE(d_v[i] == 99);  // the gap between tokens is not the site's
      d_v[i] = 0;
    }
  check_gradient("q and k", p.qk, r.d_qk, loss, 5);
  check_gradient("v", p.v, d_v, loss, 5);
}

TEST_CASE("flash equals exact within twice the error that exact has in f32") {
  for (attention_shape const s : {attention_shape{2, 65, 65, 4, 2, 32, attention_mask::causal()},
                                  {1, 200, 200, 2, 1, 64, attention_mask::causal()},
                                  {1, 33, 33, 3, 3, 128, attention_mask::causal()}}) {
    CAPTURE(s.head_dim);
    problem const p(s);
    result<double> const r = run<double>(p.at, attention_kind::exact, p.qk, p.v, p.d_o);
    result<float> const exact = run<float>(p.at, attention_kind::exact, p.qk, p.v, p.d_o);
    result<float> const flash = run<float>(p.at, attention_kind::flash, p.qk, p.v, p.d_o);
    auto const bar = [](std::vector<float> const& x, std::vector<double> const& ref) {
      return 2 * relative_error(x, ref) + 2e-7;
    };
    CHECK(relative_error(flash.o, r.o) <= bar(exact.o, r.o));
    CHECK(relative_error(flash.d_qk, r.d_qk) <= bar(exact.d_qk, r.d_qk));
    CHECK(relative_error(flash.d_v, r.d_v) <= bar(exact.d_v, r.d_v));
  }
}

namespace {

struct masked {
  attention_shape shape;
  std::vector<std::int32_t> lengths;
};

/// The masks of the models: full, a window, other keys than queries, padded keys, an element without a real key, a row
/// that the window and the padding leave without one.
std::vector<masked> masks(std::int64_t head_dim) {
  return {{{2, 9, 9, 4, 2, head_dim, attention_mask::none()}, {}},
          {{2, 70, 70, 2, 1, head_dim, attention_mask::window(3)}, {}},
          {{2, 5, 11, 2, 2, head_dim, attention_mask::none()}, {11, 4}},
          {{2, 12, 7, 2, 1, head_dim, attention_mask::none()}, {0, 7}},
          {{1, 20, 20, 2, 1, head_dim, attention_mask::window(2)}, {9}}};
}

/// o[b, q, h, i] from the sum over every kept key.
double naive_output(problem const& p, std::vector<std::int32_t> const& lengths, std::int64_t b, std::int64_t q,
                    std::int64_t h, std::int64_t i) {
  attention_shape const& s = p.at.s;
  auto const query = p.at.q(p.qk.data()), key = p.at.k(p.qk.data()), value = p.at.v(p.v.data());
  double sum = 0, weighted = 0;
  for (std::int64_t k = 0; k < s.keys; ++k) {
    if (q - k > s.mask.left || k - q > s.mask.right || (!lengths.empty() && k >= lengths[std::size_t(b)])) continue;
    double score = 0;
    for (std::int64_t j = 0; j < s.head_dim; ++j)
      score += query.row(b, q, h)[j] * key.row(b, k, h / (s.q_heads / s.kv_heads))[j];
    double const w = std::exp(score / std::sqrt(double(s.head_dim)));
    sum += w;
    weighted += w * value.row(b, k, h / (s.q_heads / s.kv_heads))[i];
  }
  return sum > 0 ? weighted / sum : 0;
}

/// What the site does not own, which was 99 before and must be so afterwards, as 0.
std::vector<double> owned(std::vector<double> x) {
  for (double& e : x) e = e == 99 ? 0 : e;
  return x;
}
std::vector<double> owned(std::vector<float> const& x) { return owned(std::vector<double>(x.begin(), x.end())); }

}  // namespace

TEST_CASE("exact under every mask: each output is the sum over the kept keys, each gradient its derivative") {
  for (masked const& m : masks(6)) {
    CAPTURE(m.shape.queries);
    CAPTURE(m.shape.keys);
    problem p(m.shape);
    auto const go = [&] { return run<double>(p.at, attention_kind::exact, p.qk, p.v, p.d_o, 2, m.lengths); };
    result<double> const r = go();
    auto const o = p.at.o(r.o.data());
    for (std::int64_t b = 0; b < m.shape.batch; ++b)
      for (std::int64_t q = 0; q < m.shape.queries; ++q)
        for (std::int64_t h = 0; h < m.shape.q_heads; ++h)
          for (std::int64_t i : {0, 5})
            REQUIRE(o.row(b, q, h)[i] == doctest::Approx(naive_output(p, m.lengths, b, q, h, i)).epsilon(1e-12));
    std::vector<double> const nobody = r.o;  // rows beyond the queries keep their 99 and do not depend on anything
    for (std::size_t i = 0; i < p.d_o.size(); ++i)
      if (nobody[i] == 99) p.d_o[i] = 0;
    auto const loss = [&] { return dot(go().o, p.d_o); };
    check_gradient("q and k", p.qk, owned(r.d_qk), loss, 11);
    check_gradient("v", p.v, owned(r.d_v), loss, 11);
  }
}

TEST_CASE("flash equals exact under every mask") {
  for (masked const& m : masks(32)) {
    CAPTURE(m.shape.queries);
    CAPTURE(m.shape.keys);
    problem const p(m.shape);
    auto const of = [&]<class T>(attention_kind kind, T) { return run<T>(p.at, kind, p.qk, p.v, p.d_o, 2, m.lengths); };
    result<double> const r = of(attention_kind::exact, 1.0);
    result<float> const exact = of(attention_kind::exact, 1.f), flash = of(attention_kind::flash, 1.f);
    auto const near = [](std::vector<float> const& x, std::vector<float> const& same, std::vector<double> const& ref) {
      std::vector<double> const right = owned(ref);
      return relative_error(owned(x), right) <= 2 * relative_error(owned(same), right) + 2e-7;
    };
    CHECK(near(flash.o, exact.o, r.o));
    CHECK(near(flash.d_qk, exact.d_qk, r.d_qk));
    CHECK(near(flash.d_v, exact.d_v, r.d_v));
  }
}

TEST_CASE("each kind gives the same bits on one thread and on three") {
  problem const p({3, 50, 50, 4, 2, 32, attention_mask::causal()});
  for (attention_kind const kind : {attention_kind::flash, attention_kind::exact}) {
    result<float> const one = run<float>(p.at, kind, p.qk, p.v, p.d_o, 1),
                        three = run<float>(p.at, kind, p.qk, p.v, p.d_o, 3);
    CHECK(one.o == three.o);
    CHECK(one.d_qk == three.d_qk);
    CHECK(one.d_v == three.d_v);
  }
}

TEST_CASE("ablated: the output and every gradient are zero, and nothing else is written") {
  problem const p({2, 5, 5, 4, 2, 32, attention_mask::causal()});
  result<float> const r = run<float>(p.at, attention_kind::ablated, p.qk, p.v, p.d_o);
  for (float x : r.o) CHECK(x == 0.f);
  for (float x : r.d_qk) CHECK(x == 0.f);
  for (std::size_t i = 0; i < r.d_v.size(); ++i) CHECK(r.d_v[i] == (i % 96 < 32 ? 99.f : 0.f));
}

TEST_CASE("a shape without a kernel is refused by name, with the number") {
  lanewise::thread_pool pool(1);
  cpu_ops<float> const op{workers(pool)};
  auto const make = [&] { static_cast<void>(op.attention({attention_kind::flash, {1, 8, 8, 2, 1, 48, {}}})); };
  CHECK_THROWS_AS(make(), named_error);
  try {
    make();
  } catch (named_error const& e) {
    CHECK(e.name == "attn-unsupported");
    CHECK(std::string(e.what()).find("48") != std::string::npos);
  }
  CHECK_NOTHROW(op.attention({attention_kind::exact, {1, 8, 8, 2, 1, 48, {}}}));
}

TEST_CASE("the probe runs the site's real shape and names both kernels") {
  lanewise::thread_pool pool(2);
  cpu_ops<float> const op{workers(pool)};
  attention_site const site{attention_kind::flash, {2, 40, 40, 4, 2, 32, {}}};
  std::vector<std::byte> room(probe_bytes(op, site) + 128);
  std::string const names =
      probe_attention(op, site, room.data() + (128 - reinterpret_cast<std::uintptr_t>(room.data()) % 128));
  CHECK(names.find("forward ") == 0);
  CHECK(names.find("backward ") != std::string::npos);
}
