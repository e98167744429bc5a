// Straightforward attention and its gradients: the oracle. It shares the variants with the kernels and nothing else.
//
// clang-format off
//   s_j = score(scale q.k_j) for each key j that the mask keeps,  p = softmax(s),  o = sum_j p_j v_j,
//   lse = log sum_j e^s_j,  delta = dO.o - dLSE,  ds_j = p_j (dO.v_j - delta),  g_j = ds_j d score/d s,
//   dV_j += p_j dO,  dQ += scale g_j k_j,  dK_j += scale g_j q,  dparameter += ds_j d score/d parameter
// clang-format on
// row by row: O(Sq Sk D) time, O(Sk) memory beside the results. q, d_o [B, Sq, Hq, D], k, v [B, Sk, Hkv, D].
//
// In `exact` arithmetic everything is f64 from the inputs as stored. `same_precision<C>` rounds as a kernel of that
// config may (P, dS, o and the gradients to their types, all else f32): its error is the yardstick of tolerances.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "config.hpp"
#include "precision.hpp"
#include "tensor.hpp"
#include "variant.hpp"
#include "variants/alibi.hpp"
#include "variants/bias.hpp"
#include "variants/softcap.hpp"

namespace lanewise::reference {

enum class number { f64, f32, f16, bf16 };

template <class T>
inline constexpr number number_of = std::is_same_v<T, float> ? number::f32
                                    : std::is_same_v<T, f16> ? number::f16
                                                             : number::bf16;

/// Which type each kind of value is rounded to.
struct arithmetic {
  number sums = number::f64;      ///< everything in between: f64 or f32
  number operand = number::f64;   ///< P and dS where they enter a product
  number output = number::f64;    ///< o, also where delta is taken from it
  number gradient = number::f64;  ///< d_q, d_k, d_v
  bool recompute_delta = false;   ///< delta comes from o before it was rounded to `output`
};

inline constexpr arithmetic exact{};

/// bf16_split carries P and dS in two limbs: they are not rounded to bf16.
template <config C>
inline constexpr arithmetic same_precision{number::f32,
                                           C.precision == precision::bf16_split ? number::f32 : number_of<element<C>>,
                                           number_of<element<C>>, number_of<gradient<C>>, recomputes_delta<C>};

/// One call. T is the storage type of the inputs: float, bf16, f16, or double (for finite differences).
template <class T>
struct problem {
  view<T const> q, k, v;
  view<T const> d_o{};        ///< left out: no gradients
  view<float const> d_lse{};  ///< left out: zero
  double scale;
  lanewise::empty_lse empty_lse = lanewise::empty_lse::zero;
  int threads = 1;  ///< where the gradient of a parameter is wanted, one runs, so that its sums keep one order
};

/// Dense [batch, sequence, heads, head_dim] each; gradients are empty when d_o was left out. parameters[i] is dense in
/// the extents of parameter_gradient<i>(f), whose data is not touched; it is empty where that view is.
struct result {
  std::vector<double> o, lse, d_q, d_k, d_v;
  std::vector<std::vector<double>> parameters;
};

/// A variant's score in f64. Stock variants are written out below; a variant of yours is asked for
///   double operator()(double s, position) const,  double grad(double s, position) const,
///   double parameter_factor(double s, position) const
/// and evaluated in f32, good to 6e-8 of the score, where it has none.
template <class F>
struct in_f64 {
  static double score(F const& f, double s, position at) {
    if constexpr (!has_score<F>) return s;
    else return f(argument(f, s, at), at);
  }
  static double grad(F const& f, double s, position at) {
    if constexpr (!has_score<F>) return 1;
    else return f.grad(argument(f, s, at), at);
  }
  template <int I>
  static double factor(F const& f, double s, position at) {
    return parameter_factor<I>(f, argument(f, s, at), at);
  }

 private:
  static auto argument(F const& f, double s, position at) {
    if constexpr (requires {
                    { f(s, at) } -> std::same_as<double>;
                  })
      return s;
    else return float(s);
  }
};

template <>
struct in_f64<softcap> {
  static double score(softcap const& f, double s, position) { return f.cap * std::tanh(s / f.cap); }
  static double grad(softcap const& f, double s, position) {
    double const t = std::tanh(s / f.cap);
    return 1 - t * t;
  }
};

template <class T>
struct in_f64<basic_bias<T>> {
  static double score(basic_bias<T> const& f, double s, position at) {
    return s + double(to_float(f.b.at(at.batch, at.head, at.q, at.k)));
  }
  static double grad(basic_bias<T> const&, double, position) { return 1; }
  template <int>
  static double factor(basic_bias<T> const&, double, position) {
    return 1;
  }
};

template <>
struct in_f64<alibi> {
  static double distance(alibi const& f, position at) { return std::abs(double(at.q) + f.offset - at.k); }
  static double score(alibi const& f, double s, position at) {
    return s - double(f.slope.at(at.batch, at.head, 0, 0)) * distance(f, at);
  }
  static double grad(alibi const&, double, position) { return 1; }
  template <int>
  static double factor(alibi const& f, double, position at) {
    return -distance(f, at);
  }
};

template <class Last>
struct in_f64<combine<Last>> : in_f64<Last> {};

template <class First, class Second, class... Rest>
struct in_f64<combine<First, Second, Rest...>> {
  using whole = combine<First, Second, Rest...>;
  using rest = in_f64<combine<Second, Rest...>>;
  static double score(whole const& f, double s, position at) {
    return rest::score(f.rest, in_f64<First>::score(f.first, s, at), at);
  }
  static double grad(whole const& f, double s, position at) {
    return in_f64<First>::grad(f.first, s, at) * rest::grad(f.rest, in_f64<First>::score(f.first, s, at), at);
  }
  template <int I>
  static double factor(whole const& f, double s, position at) {
    double const between = in_f64<First>::score(f.first, s, at);
    if constexpr (I < parameter_count<First>)
      return in_f64<First>::template factor<I>(f.first, s, at) * rest::grad(f.rest, between, at);
    else return rest::template factor<I - parameter_count<First>>(f.rest, between, at);
  }
};

namespace detail {

inline double rounded(number n, double x) {
  switch (n) {
    case number::f64: return x;
    case number::f32: return float(x);
    case number::f16: return to_float(from_float<f16>(float(x)));
    case number::bf16: return to_float(from_float<bf16>(float(x)));
  }
  return x;
}

inline double real(double x) { return x; }
template <class T>
double real(T x) {
  return to_float(x);
}

/// Elements of a parameter's gradient, 0 where it is not wanted.
inline std::int64_t wanted(parameter_view<float> const& x) {
  return x ? x.size[0] * x.size[1] * x.size[2] * x.size[3] : 0;
}

/// Four partial sums, added pairwise.
template <class Real>
Real dot(Real const* x, Real const* y, std::int64_t n) {
  Real sum[4] = {};
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int lane = 0; lane < 4; ++lane) sum[lane] += x[i + lane] * y[i + lane];
  for (; i < n; ++i) sum[0] += x[i] * y[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/// y += a x; the two never overlap, and saying so saves a third of the time
template <class Real>
void add(Real a, Real const* __restrict x, Real* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

/// One key/value head of one batch element, with the query heads that share it.
template <class Real, class T, class F>
struct head_group {
  problem<T> const& in;
  F const& f;
  arithmetic const how;
  result& out;
  std::int64_t const d = in.q.size.head_dim, keys = in.k.size.sequence;
  bool const backward = bool(in.d_o);
  std::vector<Real> k{}, v{}, d_k{}, d_v{};  ///< [Sk, D]
  std::vector<Real> q{}, d_o{}, o{}, d_q{};  ///< [D]: the row in hand
  std::vector<std::int32_t> visible{};       ///< its keys
  std::vector<Real> raw{}, s{}, p{};         ///< their scores before and after the variant, exp(s - largest)

  static void load(view<T const> const& from, std::int64_t b, std::int64_t s, std::int64_t h, Real* to) {
    T const* const row = from.row(b, s, h);
    for (std::int64_t i = 0; i < from.size.head_dim; ++i) to[i] = Real(real(row[i]));
  }
  static double* row_of(std::vector<double>& x, extents e, std::int64_t b, std::int64_t s, std::int64_t h) {
    return x.data() + ((b * e.sequence + s) * e.heads + h) * e.head_dim;
  }

  void run(std::int64_t b, std::int64_t kv_head) {
    k.resize(keys * d), v.resize(keys * d);
    for (std::int64_t j = 0; j < keys; ++j) load(in.k, b, j, kv_head, &k[j * d]), load(in.v, b, j, kv_head, &v[j * d]);
    d_k.assign(backward ? keys * d : 0, 0), d_v = d_k;
    q.resize(d), d_o.resize(d), o.resize(d), d_q.resize(d);
    std::int64_t const ratio = in.q.size.heads / in.k.size.heads;
    for (std::int64_t h = kv_head * ratio; h < (kv_head + 1) * ratio; ++h)
      for (std::int64_t i = 0; i < in.q.size.sequence; ++i) query_row(b, h, i);
    if (!backward) return;
    for (std::int64_t j = 0; j < keys; ++j)
      for (std::int64_t c = 0; c < d; ++c) {
        row_of(out.d_k, in.k.size, b, j, kv_head)[c] = rounded(how.gradient, Real(in.scale) * d_k[j * d + c]);
        row_of(out.d_v, in.k.size, b, j, kv_head)[c] = rounded(how.gradient, d_v[j * d + c]);
      }
  }

  void query_row(std::int64_t b, std::int64_t h, std::int64_t i) {
    std::fill(o.begin(), o.end(), Real(0)), std::fill(d_q.begin(), d_q.end(), Real(0));
    visible.clear();
    for (std::int64_t j = 0; j < keys; ++j)
      if (keep(f, at(b, h, i, j))) visible.push_back(std::int32_t(j));
    double const lse = forward(b, h, i);
    for (std::int64_t c = 0; c < d; ++c) {
      double const stored = row_of(out.o, in.q.size, b, i, h)[c] = rounded(how.output, o[c]);
      if (!how.recompute_delta) o[c] = Real(stored);
    }
    out.lse[(b * in.q.size.sequence + i) * in.q.size.heads + h] = lse;
    if (!backward) return;
    gradients(b, h, i, Real(lse));
    for (std::int64_t c = 0; c < d; ++c)
      row_of(out.d_q, in.q.size, b, i, h)[c] = rounded(how.gradient, Real(in.scale) * d_q[c]);
  }

  /// Fills raw, s, p and o; returns the LSE.
  double forward(std::int64_t b, std::int64_t h, std::int64_t i) {
    std::size_t const n = visible.size();
    raw.resize(n), s.resize(n), p.resize(n);
    if (n > 0) load(in.q, b, i, h, q.data());
    Real const nothing = -std::numeric_limits<Real>::infinity();
    Real sink_logit = nothing;
    if constexpr (has_sink<F>) sink_logit = f(row{std::int32_t(b), std::int32_t(h), std::int32_t(i)});
    Real largest = sink_logit, sum = 0;
    for (std::size_t x = 0; x < n; ++x) {
      raw[x] = Real(in.scale) * dot(q.data(), &k[visible[x] * d], d);
      s[x] = score_of(raw[x], at(b, h, i, visible[x]));
      largest = std::max(largest, s[x]);
    }
    if (largest == nothing) {  // no key, or only keys of weight zero
      visible.clear();
      return in.empty_lse == lanewise::empty_lse::zero ? 0 : -std::numeric_limits<double>::infinity();
    }
    for (std::size_t x = 0; x < n; ++x) {
      sum += p[x] = std::exp(s[x] - largest);
      add(Real(rounded(how.operand, p[x])), &v[visible[x] * d], o.data(), d);
    }
    if constexpr (has_sink<F>) sum += std::exp(sink_logit - largest);
    for (Real& x : o) x /= sum;
    return largest + std::log(sum);
  }

  /// Adds the row's share to d_q, d_k, d_v and the parameters.
  void gradients(std::int64_t b, std::int64_t h, std::int64_t i, Real lse) {
    Real delta = in.d_lse ? -Real(*in.d_lse.row(b, i, h)) : Real(0);
    if (!visible.empty()) {
      load(in.d_o, b, i, h, d_o.data());
      delta += dot(d_o.data(), o.data(), d);
    }
    for (std::size_t x = 0; x < visible.size(); ++x) {
      position const here = at(b, h, i, visible[x]);
      std::int64_t const j = visible[x] * d;
      Real const weight = std::exp(s[x] - lse);
      Real const ds = weight * (dot(d_o.data(), &v[j], d) - delta);
      Real const g = Real(rounded(how.operand, ds * grad_of(raw[x], here)));
      add(Real(rounded(how.operand, weight)), d_o.data(), &d_v[j], d);
      add(g, &k[j], d_q.data(), d);
      add(g, q.data(), &d_k[j], d);
      each_parameter([&]<int I>() {
        if constexpr (!parameter_is_sink<I, F>)
          if (!out.parameters[I].empty()) slot<I>(here) += ds * factor_of<I>(raw[x], here);
      });
    }
    if constexpr (has_sink<F>) {
      Real const logit = f(row{std::int32_t(b), std::int32_t(h), std::int32_t(i)});
      if (logit == -std::numeric_limits<Real>::infinity()) return;
      each_parameter([&]<int I>() {
        if constexpr (parameter_is_sink<I, F>)
          if (!out.parameters[I].empty()) slot<I>(at(b, h, i, 0)) -= std::exp(logit - lse) * delta;
      });
    }
  }

  static position at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    return {std::int32_t(b), std::int32_t(h), std::int32_t(i), std::int32_t(j)};
  }
  Real score_of(Real x, position where) const {
    if constexpr (std::is_same_v<Real, float>) return score(f, x, where);
    else return in_f64<F>::score(f, x, where);
  }
  Real grad_of(Real x, position where) const {
    if constexpr (std::is_same_v<Real, float>) return score_grad(f, x, where);
    else return in_f64<F>::grad(f, x, where);
  }
  template <int I>
  Real factor_of(Real x, position where) const {
    if constexpr (std::is_same_v<Real, float>) return parameter_factor<I>(f, x, where);
    else return in_f64<F>::template factor<I>(f, x, where);
  }

  template <class Call>
  static void each_parameter(Call const& call) {
    [&]<int... I>(std::integer_sequence<int, I...>) { (call.template operator()<I>(), ...); }
    (std::make_integer_sequence<int, parameter_count<F>>{});
  }
  /// Where the gradient of parameter I at this position is summed, in the extents of its view, dense.
  template <int I>
  double& slot(position where) const {
    parameter_view<float> const to = parameter_gradient<I>(f);
    std::int64_t const index[] = {where.batch, where.head, where.q, where.k};
    std::int64_t offset = 0;
    for (int x = 0; x < 4; ++x) offset = offset * to.size[x] + (to.size[x] == 1 ? 0 : index[x]);
    return out.parameters[I][offset];
  }
};

template <class Real, class T, class F>
void run(problem<T> const& in, F const& f, arithmetic how, result& out) {
  std::int64_t const groups = in.k.size.batch * in.k.size.heads;
  std::atomic<std::int64_t> next{0};
  auto const work = [&] {
    head_group<Real, T, F> group{in, f, how, out};
    for (std::int64_t i; (i = next++) < groups;) group.run(i / in.k.size.heads, i % in.k.size.heads);
  };
  std::vector<std::thread> others;
  bool const ordered =
      std::any_of(out.parameters.begin(), out.parameters.end(), [](auto const& p) { return !p.empty(); });
  for (int i = 1; i < in.threads && !ordered; ++i) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
}

}  // namespace detail

/// Attention, and its gradients where d_o is given. Throws std::invalid_argument where sizes do not fit.
template <class T, class F>
result attention(problem<T> const& in, F const& given, arithmetic how = exact) {
  extents const q = in.q.size, k = in.k.size;
  if (q.batch != k.batch || q.head_dim != k.head_dim || !(k == in.v.size) || (in.d_o && !(in.d_o.size == q)) ||
      (k.heads == 0 ? q.heads != 0 : q.heads % k.heads != 0))
    throw std::invalid_argument("reference: q [" + std::to_string(q.batch) + ", " + std::to_string(q.sequence) + ", " +
                                std::to_string(q.heads) + ", " + std::to_string(q.head_dim) + "] and k [" +
                                std::to_string(k.batch) + ", " + std::to_string(k.sequence) + ", " +
                                std::to_string(k.heads) + ", " + std::to_string(k.head_dim) + "], v or d_o do not fit");
  auto const f =
      bind(given, {std::int32_t(q.batch), std::int32_t(q.heads), std::int32_t(q.sequence), std::int32_t(k.sequence)});
  using bound_type = std::remove_const_t<decltype(f)>;
  result out;
  out.o.resize(q.count()), out.lse.resize(q.batch * q.sequence * q.heads);
  if (in.d_o) {
    out.d_q.resize(q.count()), out.d_k.resize(k.count()), out.d_v.resize(k.count());
    [&]<int... I>(std::integer_sequence<int, I...>) {
      (out.parameters.emplace_back(detail::wanted(parameter_gradient<I>(f))), ...);
    }
    (std::make_integer_sequence<int, parameter_count<bound_type>>{});
  }
  if (how.sums == number::f64) detail::run<double>(in, f, how, out);
  else detail::run<float>(in, f, how, out);
  return out;
}

}  // namespace lanewise::reference
