// One case with a stock variant as the type it is: what a user of the engine instantiates.
#pragma once

#include <chrono>

#include "engine.hpp"
#include "grid.hpp"

namespace parity {

/// Runs engine and reference under f. `trained` is the parameter whose gradient f writes, if it has one.
template <lanewise::config C, class F>
case_result stock_case(std::string name, problem const& p, F const& f, grid_options const& o,
                       parameter const* trained = nullptr) {
  using E = lanewise::element<C>;
  auto const start = std::chrono::steady_clock::now();
  case_result r;
  r.name = "stock: " + std::move(name);
  r.sizes = text_of({p.q.size.batch, p.q.size.heads, p.k.size.heads, p.q.size.sequence, p.k.size.sequence, C.head_dim},
                    C.precision, C.gradient);
  r.arithmetic = text_of(C.precision, C.gradient);
  lanewise::thread_pool pool(o.threads);
  outputs out = make_outputs(p);
  lanewise::status done = call_forward<C>(p, out, pool, f);
  if (done) done = call_backward<C>(p, out, pool, f);
  if (!done) {
    r.faults.push_back(std::string(name_of(done.code)) + ": " + done.message());
    return r;
  }
  lanewise::reference::problem<E> const in{.q = p.q.as<E>(),
                                           .k = p.k.as<E>(),
                                           .v = p.v.as<E>(),
                                           .d_o = p.d_o.as<E>(),
                                           .d_lse = p.d_lse.as<float>(),
                                           .scale = p.scale,
                                           .threads = o.threads};
  auto exact = lanewise::reference::attention(in, f);
  auto const rounded = lanewise::reference::attention(in, f, lanewise::reference::same_precision<C>);
  auto const parameters = std::move(exact.parameters);
  exact.parameters.clear();
  r.rows = compare(p, out, exact, rounded);
  if (trained)
    r.rows.push_back(compare_parameter(p, "dparameter", *trained, parameters.at(0), rounded.parameters.at(0)));
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return r;
}

inline constexpr lanewise::config stock_f32_128{.head_dim = 128, .gqa_ratio = 4};
inline constexpr lanewise::config stock_bf16_64{.head_dim = 64, .precision = lanewise::precision::bf16};

/// One variant in f32 at D 128, and in bf16 at D 64 where `narrow`. `make` builds it for a problem and returns
/// the parameter it trains, or null, through its second argument.
template <bool narrow = false, class Make>
void stock_cases(std::vector<case_result>& all, std::string const& name, grid_options const& o, std::uint64_t seed,
                 std::int64_t keys, Make const& make_variant) {
  auto const one = [&]<lanewise::config C>() {
    grid_case c;
    c.size = {2, 8, 2, 150, keys, C.head_dim};
    c.precision = C.precision;
    c.d_lse = true;
    problem p = problem_of(c, o, seed);
    parameter* trained = nullptr;
    auto const f = make_variant(p, trained);
    all.push_back(stock_case<C>(name, p, f, o, trained));
  };
  one.template operator()<stock_f32_128>();
  if constexpr (narrow) one.template operator()<stock_bf16_64>();
}

}  // namespace parity
