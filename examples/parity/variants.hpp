// The variants that parity is compiled for: stock ones, each switched on or off at run time, so that one instance of a
// kernel serves every combination on the command line, on the CPU and on a GPU.
#pragma once

#include <cstdint>
#include <lanewise/variant.hpp>
#include <lanewise/variants/alibi.hpp>
#include <lanewise/variants/bias.hpp>
#include <lanewise/variants/causal.hpp>
#include <lanewise/variants/documents.hpp>
#include <lanewise/variants/key_padding.hpp>
#include <lanewise/variants/sink.hpp>
#include <lanewise/variants/softcap.hpp>
#include <lanewise/variants/window.hpp>
#include <type_traits>

namespace parity {

/// F where `on`, nothing where not.
template <class F>
struct switched {
  using changes_nothing = void;

  bool on = false;
  F f{};

  constexpr switched() = default;
  LANEWISE_HD constexpr switched(F f) : on(true), f(f) {}
  LANEWISE_HD constexpr switched(bool on, F f) : on(on), f(f) {}

  LANEWISE_HD constexpr bool operator()(lanewise::position at) const requires lanewise::has_mask<F> {
    return !on || f(at);
  }
  LANEWISE_HD constexpr float operator()(float s, lanewise::position at) const requires lanewise::has_score<F> {
    return on ? f(s, at) : s;
  }
  LANEWISE_HD constexpr float grad(float s, lanewise::position at) const requires lanewise::has_grad<F> {
    return on ? f.grad(s, at) : 1.f;
  }
  LANEWISE_HD constexpr float operator()(lanewise::row at) const requires lanewise::has_sink<F> {
    return on ? f(at) : -lanewise::infinity;
  }
  LANEWISE_HD constexpr lanewise::cover cover_of(lanewise::block b) const {
    return on ? lanewise::cover_of(f, b) : lanewise::cover::full;
  }
  LANEWISE_HD constexpr auto bind(lanewise::shape s) const requires lanewise::has_bind<F> {
    return switched<lanewise::bound<F>>(on, f.bind(s));
  }
  lanewise::status validate(lanewise::shape s) const { return on ? lanewise::validate(f, s) : lanewise::status{}; }
  LANEWISE_HD constexpr lanewise::parameter_view<float> parameter_gradient() const requires lanewise::has_parameter<F> {
    return on ? f.parameter_gradient() : lanewise::parameter_view<float>{};
  }
  LANEWISE_HD constexpr float parameter_factor(float s, lanewise::position at) const
      requires(lanewise::has_parameter<F>&& lanewise::has_score<F>) {
    return f.parameter_factor(s, at);
  }
};

/// Query rows that see nothing: what a user's own mask may look like.
struct dead_rows {
  std::int32_t rows[3] = {-1, -1, -1};
  LANEWISE_HD constexpr bool operator()(lanewise::position at) const {
    return at.q != rows[0] && at.q != rows[1] && at.q != rows[2];
  }
};

template <class... F>
using all_of = lanewise::combine<switched<F>...>;

/// Masks alone: kernels with it never call a score operator.
using any_mask =
    all_of<lanewise::causal_top_left, lanewise::causal_bottom_right, lanewise::window, lanewise::key_padding,
           lanewise::self_padding, lanewise::key_padding_bits, lanewise::documents<>, dead_rows>;

/// Scores from left to right and a sink. Parameters: 0 the slopes, 1 the bias, 2 the logits.
using any_score = all_of<lanewise::softcap, lanewise::alibi, lanewise::bias, lanewise::sink>;

using any_variant = lanewise::combine<any_mask, any_score>;

/// What a command line or a case of the grid asks for.
struct choice {
  switched<lanewise::causal_top_left> causal_top_left;
  switched<lanewise::causal_bottom_right> causal_bottom_right;
  switched<lanewise::window> window;
  switched<lanewise::key_padding> key_padding;
  switched<lanewise::self_padding> self_padding;
  switched<lanewise::key_padding_bits> key_padding_bits;
  switched<lanewise::documents<>> documents;
  switched<dead_rows> dead;
  switched<lanewise::softcap> softcap;
  switched<lanewise::alibi> alibi;
  switched<lanewise::bias> bias;
  switched<lanewise::sink> sink;

  bool has_score() const { return softcap.on || alibi.on || bias.on || sink.on; }
  any_mask mask() const {
    return {causal_top_left, causal_bottom_right, window, key_padding, self_padding, key_padding_bits, documents, dead};
  }
  any_variant variant() const { return {mask(), any_score{softcap, alibi, bias, sink}}; }
};

}  // namespace parity
