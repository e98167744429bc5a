// Masks and scores: one struct says which pairs (q, k) are kept, how a score is changed, and its derivative.
//
//   struct capped_window {
//     float cap; int width;
//     LANEWISE_HD bool  operator()(position at) const { return at.k <= at.q && at.q - at.k < width; }    // keep?
//     LANEWISE_HD float operator()(float s, position) const { return cap * tanhf(s / cap); }             // new score
//     LANEWISE_HD float grad(float s, position) const { float t = tanhf(s / cap); return 1 - t * t; }    // d new / d s
//   };
//
// Results depend only on unnamed call operators, so nothing that matters can be misspelt. Everything else is optional:
//   cover cover_of(block) const        empty, partial or full: speed only; verify_cover proves it by brute force
//   block hull_of(block) const         the part of a block outside which nothing is kept: likewise
//   static constexpr bool sees_one_run = true    every query row sees one run of keys, the hull of its row: likewise
//   auto bind(shape) const             the variant that really runs, when it depends on the sequence lengths
//   float operator()(row) const        logit of one more key whose value is zero (an attention sink)
//   auto parameter_gradient() const    parameter_view<float>: where the gradient of the variant's parameter goes
//   float parameter_factor(float s, position) const   d new score / d parameter at the score s before this variant
//   status validate(shape) const       host only: what is wrong with the run-time values; every call asks it first
// The score operator sees s = scale * q.k; masks are decided on the mask alone, never on a score.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "host_device.hpp"
#include "math.hpp"
#include "status.hpp"
#include "tensor.hpp"

namespace lanewise {

/// A pair of one batch element and query head: q and k index the query and key sequence. Which of them is a row of a
/// tile is the kernel's business alone.
struct position {
  std::int32_t batch, head, q, k;
};

/// One query row; the argument of a sink.
struct row {
  std::int32_t batch, head, q;
};

/// The rectangle q_begin <= q < q_end, k_begin <= k < k_end of one batch element and query head.
struct block {
  std::int32_t batch, head, q_begin, q_end, k_begin, k_end;
};
/// No pair lies in b.
LANEWISE_HD constexpr bool is_empty(block b) { return b.q_begin >= b.q_end || b.k_begin >= b.k_end; }

/// How much of a block a mask keeps. `partial` is always a right answer; the others must hold for every pair.
enum class cover { empty, partial, full };

/// The lengths of a call, given to a variant's bind(): batch elements, query heads, query and key sequence.
struct shape {
  std::int32_t batch, heads, q, k;
};
/// The shape of a call with these q and k.
constexpr shape shape_of(extents q, extents k) {
  return {std::int32_t(q.batch), std::int32_t(q.heads), std::int32_t(q.sequence), std::int32_t(k.sequence)};
}
/// Query heads per key/value head; 1 where there are none.
constexpr std::int32_t head_ratio(extents q, extents k) { return k.heads > 0 ? std::int32_t(q.heads / k.heads) : 1; }

template <class F>
concept has_mask = requires(F const& f, position at) {
  { f(at) } -> std::same_as<bool>;
};
template <class F>
concept has_score = requires(F const& f, position at, float s) {
  { f(s, at) } -> std::same_as<float>;
};
template <class F>
concept has_sink = requires(F const& f, row at) {
  { f(at) } -> std::same_as<float>;
};
template <class F>
concept has_grad = requires(F const& f, position at, float s) {
  { f.grad(s, at) } -> std::same_as<float>;
};
template <class F>
concept has_cover = requires(F const& f, block b) {
  { f.cover_of(b) } -> std::same_as<cover>;
};
template <class F>
concept has_hull = requires(F const& f, block b) {
  { f.hull_of(b) } -> std::same_as<block>;
};
template <class F>
concept has_bind = requires(F const& f, shape s) { f.bind(s); };
template <class F>
concept has_validate = requires(F const& f, shape s) {
  { f.validate(s) } -> std::same_as<status>;
};
template <class F>
concept has_parameter = requires(F const& f) { f.parameter_gradient(); };

/// A variant changes something: it has a mask, a score or a sink, or says outright that it changes nothing.
template <class F>
concept variant =
    has_mask<F> || has_score<F> || has_sink<F> || has_bind<F> || requires { typename F::changes_nothing; };

/// What a backward can differentiate: a score comes with its grad.
template <class F>
concept differentiable = variant<F> && (!has_score<F> || has_grad<F>);

/// Every key is visible, every score stays.
struct full {
  using changes_nothing = void;
  LANEWISE_HD constexpr cover cover_of(block) const { return cover::full; }
};

// How the engine asks a variant; an absent hook costs nothing.

template <class F>
LANEWISE_HD constexpr auto bind(F const& f, shape s) {
  if constexpr (has_bind<F>) return f.bind(s);
  else return f;
}

/// The type that runs in a kernel.
template <class F>
using bound = decltype(lanewise::bind(std::declval<F const&>(), shape{}));

template <class F>
LANEWISE_HD constexpr bool keep(F const& f, position at) {
  if constexpr (has_mask<F>) return f(at);
  else return true;
}

template <class F>
LANEWISE_HD constexpr float score(F const& f, float s, position at) {
  if constexpr (has_score<F>) return f(s, at);
  else return s;
}

template <class F>
LANEWISE_HD constexpr float score_grad(F const& f, float s, position at) {
  if constexpr (has_score<F>) return f.grad(s, at);
  else return 1.f;
}

template <class F>
LANEWISE_HD constexpr cover cover_of(F const& f, block b) {
  if constexpr (has_cover<F>) return f.cover_of(b);
  else return has_mask<F> ? cover::partial : cover::full;
}

/// A block inside b that holds every pair of b that the mask keeps; where it keeps none, an end may lie at or before
/// its begin. b itself is always a right answer. A part of b that the hull leaves out, cut along q or along k alone, is
/// empty by cover_of too: kernels that walk by hulls and kernels that ask for covers visit the same tiles.
template <class F>
LANEWISE_HD constexpr block hull_of(F const& f, block b) {
  if constexpr (has_hull<F>) return f.hull_of(b);
  else return b;
}

/// Every query row sees the keys of one run and no others, and hull_of a block of that one row is the run, so that a
/// kernel compares with two bounds a row instead of asking for every pair.
template <class F>
inline constexpr bool sees_one_run = !has_mask<F>;
template <class F>
  requires(has_mask<F> && has_hull<F> && requires { F::sees_one_run; })
inline constexpr bool sees_one_run<F> = F::sees_one_run;

/// What is wrong with a variant's run-time values (a null table, an extent that does not fit, a negative width) in a
/// call of this shape. Host only; the shape's heads are query heads. It reads no memory that a variant points to.
template <class F>
constexpr status validate(F const& f, shape s) {
  if constexpr (has_validate<F>) return f.validate(s);
  else return {};
}

// Parameters. A plain variant has none or one; combine has those of its parts.

template <class F>
inline constexpr int parameter_count = has_parameter<F> ? 1 : 0;
template <class F>
  requires requires { F::parameters; }
inline constexpr int parameter_count<F> = F::parameters;

/// Where the gradient of parameter I goes; data == nullptr: not wanted.
template <int I, class F>
LANEWISE_HD constexpr parameter_view<float> parameter_gradient(F const& f) {
  if constexpr (requires { f.template parameter_gradient_of<I>(); }) return f.template parameter_gradient_of<I>();
  else return f.parameter_gradient();
}

/// Parameter I is the sink's logit rather than part of the score.
template <int I, class F>
inline constexpr bool parameter_is_sink = has_sink<F> && !has_score<F>;
template <int I, class F>
  requires requires { F::template sink_parameter<I>; }
inline constexpr bool parameter_is_sink<I, F> = F::template sink_parameter<I>;

/// d (final score) / d (parameter I) at the pair `at`, whose score before the variant was s.
template <int I, class F>
LANEWISE_HD constexpr float parameter_factor(F const& f, float s, position at) {
  if constexpr (requires { f.template parameter_factor_of<I>(s, at); }) return f.template parameter_factor_of<I>(s, at);
  else return f.parameter_factor(s, at);
}

// combine{a, b, ...}: masks AND, scores left to right, grad by the chain rule, at most one sink.

template <class... F>
struct combine;

template <class Last>
struct combine<Last> : Last {
  constexpr combine() = default;
  LANEWISE_HD constexpr combine(Last last) : Last(last) {}
};

template <class First, class... Rest>
struct combine<First, Rest...> {
  using rest_type = combine<Rest...>;
  using changes_nothing = void;
  static_assert(variant<First>,
                "combine: each part needs bool operator()(position) const or float operator()(float, position) const");
  static_assert(!(has_sink<First> && has_sink<rest_type>), "combine: at most one part may be a sink");
  static_assert(!has_score<First> || !has_score<rest_type> || has_grad<First> == has_grad<rest_type>,
                "combine: either every score has float grad(float, position) const, or none has");

  First first;
  rest_type rest;

  constexpr combine() = default;
  LANEWISE_HD constexpr combine(First first, Rest... rest) : first(first), rest(rest...) {}
  LANEWISE_HD constexpr combine(First first, rest_type rest, int) : first(first), rest(rest) {}

  LANEWISE_HD constexpr bool operator()(position at) const
    requires(has_mask<First> || has_mask<rest_type>)
  {
    return keep(first, at) && keep(rest, at);
  }
  LANEWISE_HD constexpr float operator()(float s, position at) const
    requires(has_score<First> || has_score<rest_type>)
  {
    return score(rest, score(first, s, at), at);
  }
  LANEWISE_HD constexpr float grad(float s, position at) const
    requires((has_score<First> || has_score<rest_type>) && differentiable<First> && differentiable<rest_type>)
  {
    return score_grad(first, s, at) * score_grad(rest, score(first, s, at), at);
  }
  LANEWISE_HD constexpr float operator()(row at) const
    requires(has_sink<First> || has_sink<rest_type>)
  {
    if constexpr (has_sink<First>) return first(at);
    else return rest(at);
  }
  LANEWISE_HD constexpr cover cover_of(block b) const {
    cover const x = lanewise::cover_of(first, b);
    if (x == cover::empty) return x;
    cover const y = lanewise::cover_of(rest, b);
    return y == cover::full ? x : y;
  }
  /// Where the two hulls meet. Where they do not, nothing is kept, yet a tile that reaches into both is partial by
  /// cover_of: the hull is then what such a tile has to cross.
  LANEWISE_HD constexpr block hull_of(block b) const {
    block const x = lanewise::hull_of(first, b), y = lanewise::hull_of(rest, b);
    if (is_empty(x)) return x;
    if (is_empty(y)) return y;
    cut_or_gap(x.q_begin, x.q_end, y.q_begin, y.q_end, b.q_begin, b.q_end);
    cut_or_gap(x.k_begin, x.k_end, y.k_begin, y.k_end, b.k_begin, b.k_end);
    return b;
  }
  /// Two runs meet in one, but where they do not the hull is what has to be crossed.
  static constexpr bool sees_one_run = lanewise::sees_one_run<First> && lanewise::sees_one_run<rest_type> &&
                                       !(has_mask<First> && has_mask<rest_type>);
  LANEWISE_HD constexpr auto bind(shape s) const
    requires(has_bind<First> || has_bind<rest_type>)
  {
    auto a = lanewise::bind(first, s);
    auto b = lanewise::bind(rest, s);
    return join(a, b);
  }

  constexpr status validate(shape s) const {
    status const wrong = lanewise::validate(first, s);
    return wrong ? lanewise::validate(rest, s) : wrong;
  }

  static constexpr int parameters = parameter_count<First> + parameter_count<rest_type>;
  template <int I>
    requires(I < parameters)
  LANEWISE_HD constexpr parameter_view<float> parameter_gradient_of() const {
    constexpr int n = parameter_count<First>;
    if constexpr (I < n) return parameter_gradient<I>(first);
    else return parameter_gradient<I - n>(rest);
  }
  template <int I>
    requires(I < parameters)
  static constexpr bool sink_parameter = [] {
    constexpr int n = parameter_count<First>;
    if constexpr (I < n) return parameter_is_sink<I, First>;
    else return parameter_is_sink<I - n, rest_type>;
  }();
  template <int I>
    requires(I < parameters)
  LANEWISE_HD constexpr float parameter_factor_of(float s, position at) const {
    constexpr int n = parameter_count<First>;
    if constexpr (I < n) return parameter_factor<I>(first, s, at) * score_grad(rest, score(first, s, at), at);
    else return parameter_factor<I - n>(rest, score(first, s, at), at);
  }

 private:
  /// Of two ranges that are not empty, what they share, or from the last of the one to the first of the other.
  LANEWISE_HD static constexpr void cut_or_gap(std::int32_t x_begin, std::int32_t x_end, std::int32_t y_begin,
                                               std::int32_t y_end, std::int32_t& begin, std::int32_t& end) {
    std::int32_t const last_begin = x_begin > y_begin ? x_begin : y_begin, first_end = x_end < y_end ? x_end : y_end;
    bool const meet = last_begin < first_end;
    begin = meet ? last_begin : first_end - 1;
    end = meet ? first_end : last_begin + 1;
  }
  template <class A, class... B>
  LANEWISE_HD static constexpr combine<A, B...> join(A a, combine<B...> b) {
    return combine<A, B...>(a, b, 0);
  }
  template <class A, class B>
  LANEWISE_HD static constexpr combine<A, B> join(A a, B b) {
    return combine<A, B>(a, b);
  }
};
template <class... F>
combine(F...) -> combine<F...>;

namespace detail {

/// `strip` is cut every `step` along k, or along q. Tiles that cover_of does not call empty reach into the hull of all
/// that lies before each cut, or of all from it on. `wrong` receives one that does not.
template <class F>
constexpr bool hulls_hold(F const& f, block strip, bool along_k, std::int32_t step, block& wrong) {
  std::int32_t const end = along_k ? strip.k_end : strip.q_end;
  auto const part = [&](std::int32_t from, std::int32_t to) {
    block b = strip;
    (along_k ? b.k_begin : b.q_begin) = from, (along_k ? b.k_end : b.q_end) = to;
    return b;
  };
  auto const meet = [](block const& x, block const& y) {
    return !is_empty(y) && x.q_begin < y.q_end && y.q_begin < x.q_end && x.k_begin < y.k_end && y.k_begin < x.k_end;
  };
  for (std::int32_t cut = step; cut < end; cut += step) {
    block const before = hull_of(f, part(0, cut)), after = hull_of(f, part(cut, end));
    for (std::int32_t at = 0; at < end; at += step) {
      block const tile = part(at, at + step < end ? at + step : end);
      if (cover_of(f, tile) == cover::empty || meet(tile, at < cut ? before : after)) continue;
      wrong = tile;
      return false;
    }
  }
  return true;
}

}  // namespace detail

/// True where f.cover_of, f.hull_of and f.sees_one_run agree with its mask, and with each other, on every tile of
/// block_q x block_k; brute force, for tests. On disagreement `wrong`, if given, receives the block.
template <class F>
constexpr bool verify_cover(F const& given, shape s, std::int32_t block_q, std::int32_t block_k, block* wrong = nullptr) {
  auto const f = lanewise::bind(given, s);
  auto const end_of = [](std::int32_t from, std::int32_t step, std::int32_t end) {
    return from + step < end ? from + step : end;
  };
  block unused{};
  block& found = wrong ? *wrong : unused;
  for (std::int32_t b = 0; b < s.batch; ++b)
    for (std::int32_t h = 0; h < s.heads; ++h) {
      for (std::int32_t q = 0; q < s.q; q += block_q)
        for (std::int32_t k = 0; k < s.k; k += block_k) {
          block const tile{b, h, q, end_of(q, block_q, s.q), k, end_of(k, block_k, s.k)};
          block const hull = hull_of(f, tile);
          bool any = false, all = true, inside = true;
          for (std::int32_t i = tile.q_begin; i < tile.q_end; ++i) {
            block const run = hull_of(f, {b, h, i, i + 1, tile.k_begin, tile.k_end});
            for (std::int32_t j = tile.k_begin; j < tile.k_end; ++j) {
              bool const kept = keep(f, {b, h, i, j});
              (kept ? any : all) = kept;
              inside &= !kept || (hull.q_begin <= i && i < hull.q_end && hull.k_begin <= j && j < hull.k_end);
              inside &= !sees_one_run<std::remove_const_t<decltype(f)>> || kept == (run.k_begin <= j && j < run.k_end);
            }
          }
          inside &= hull.q_begin >= tile.q_begin && hull.q_end <= tile.q_end;
          inside &= hull.k_begin >= tile.k_begin && hull.k_end <= tile.k_end;
          cover const said = cover_of(f, tile);
          if (!inside || (said == cover::empty && any) || (said == cover::full && !all)) {
            found = tile;
            return false;
          }
        }
      for (std::int32_t q = 0; q < s.q; q += block_q)
        if (!detail::hulls_hold(f, {b, h, q, end_of(q, block_q, s.q), 0, s.k}, true, block_k, found)) return false;
      for (std::int32_t k = 0; k < s.k; k += block_k)
        if (!detail::hulls_hold(f, {b, h, 0, s.q, k, end_of(k, block_k, s.k)}, false, block_q, found)) return false;
    }
  return true;
}

}  // namespace lanewise
