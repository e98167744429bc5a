// Which settings fit a budget of memory, found over dry-run plans of the whole step: what is planned is what the run
// allocates, so an answer cannot be over its budget. lm_fit and dit_fit say what a search may change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <lanewise/memory/arena.hpp>
#include <optional>
#include <string>
#include <utility>

#include "levers.hpp"

namespace trainer {

template <class Settings>
struct fit_result {
  bool fits;
  Settings settings;          ///< that fit, or the smallest that were tried
  lanewise::arena_plan plan;  ///< theirs
  std::string refusal;        ///< where nothing fits: what else could be changed
};

/// What a command's plan depends on.
template <class Settings>
struct fit_space {
  std::int64_t shortest, longest;  ///< of its windows or crops; equal where it is set
  std::function<void(Settings&, std::int64_t)> set_length;
  std::int64_t fewest_layers;  ///< as many as there are: depth stays
  std::function<lanewise::arena_plan(Settings const&)> plan_of;
};

namespace detail {

/// With this length and depth the first that fits, of those with the fewest --ckpt the one with the largest --batch;
/// without one, the smallest.
template <class Settings>
fit_result<Settings> best_at(std::int64_t length, Settings const& wanted, fit_space<Settings> const& space,
                             std::size_t available) {
  bool const may_cut = !wanted.from_user.contains("ckpt");
  bool const may_split = !wanted.from_user.contains("batch") && !wanted.from_user.contains("accumulate");
  std::optional<fit_result<Settings>> best;
  Settings s = wanted;
  space.set_length(s, length);
  do {
    Settings split = s;
    do {
      fit_result<Settings> c{false, split, space.plan_of(split), {}};
      c.fits = c.plan.peak() <= available;
      if (c.fits) return c;
      if (!best || c.plan.peak() < best->plan.peak()) best = std::move(c);
    } while (may_split && smaller_batch(split));
  } while (may_cut && more_segments(s));
  return *std::move(best);
}

}  // namespace detail

/// The most layers that there is room for, with them the greatest length, with it the fewest --ckpt, and with those the
/// largest --batch, with as much more --accumulate, whose plan takes at most `available` bytes. What the user has set
/// stays as it is. fits is true exactly when plan.peak() <= available.
template <class Settings>
fit_result<Settings> search_fit(Settings wanted, fit_space<Settings> const& space, std::size_t available) {
  for (;; --wanted.layers, wanted.ckpt = std::min(wanted.ckpt, wanted.layers)) {
    auto const at = [&](std::int64_t length) { return detail::best_at(length, wanted, space, available); };
    lanewise::arena_fit const found =
        lanewise::fit(space.shortest, space.longest, available, [&](std::int64_t length) { return at(length).plan; });
    fit_result<Settings> best = at(found.size);
    if (best.fits || wanted.layers <= space.fewest_layers) return best;
  }
}

}  // namespace trainer
