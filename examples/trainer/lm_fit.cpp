#include "lm_fit.hpp"

#include <algorithm>
#include <optional>

#include "error.hpp"
#include "levers.hpp"

namespace trainer {
namespace {

constexpr std::int64_t smallest_width = 16;

constexpr lever<lm_settings> levers[] = {
    flash_for_exact,
    smaller_batch,
    [](lm_settings& s) { return s.adapter != "none" && s.mirror == "f32" && (s.mirror = "bf16-f32", true); },
    more_segments,
    [](lm_settings& s) { return !s.base.empty() && s.adapter == "none" && (s.adapter = "lora", true); },
    [](lm_settings& s) { return halve(s.context, shortest_context); },
    [](lm_settings& s) { return s.adapter != "none" && s.adapter_from.empty() && halve(s.rank, 1); },
    [](lm_settings& s) { return s.base.empty() && fewer_layers(s); },
    [](lm_settings& s) { return s.base.empty() && halve(s.ffn, smallest_width); },
    [](lm_settings& s) { return s.base.empty() && halve(s.hidden, smallest_width); },
};

struct candidate {
  lm_settings settings;
  lanewise::arena_plan plan;
};

/// The first of the candidates with this window that fits; without one, the smallest.
candidate best_at(std::int64_t context, lm_settings const& wanted, device const& on, std::size_t available) {
  bool const may_cut = !wanted.from_user.contains("ckpt");
  bool const may_split = !wanted.from_user.contains("batch") && !wanted.from_user.contains("accumulate");
  std::optional<candidate> best;
  lm_settings s = wanted;
  s.context = context;
  do {
    lm_settings split = s;
    do {
      candidate c{split, lm_trainer::plan_for(split, on)};
      if (c.plan.peak() <= available) return c;
      if (!best || c.plan.peak() < best->plan.peak()) best = std::move(c);
    } while (may_split && smaller_batch(split));
  } while (may_cut && more_segments(s));
  return *best;
}

}  // namespace

lm_fit fit_lm(lm_settings const& wanted, device const& on, std::size_t available, std::int64_t longest) {
  bool const may_shorten = !wanted.from_user.contains("context");
  std::int64_t const high = may_shorten ? longest : wanted.context;
  std::int64_t const low = may_shorten ? std::min(shortest_context, longest) : high;
  lanewise::arena_fit const found = lanewise::fit(
      low, high, available, [&](std::int64_t context) { return best_at(context, wanted, on, available).plan; });
  candidate best = best_at(found.size, wanted, on, available);
  lm_fit r{best.plan.peak() <= available, std::move(best.settings), std::move(best.plan), ""};
  if (!r.fits) r.refusal = cheapest_levers(r.settings, on, available);
  return r;
}

std::string cheapest_levers(lm_settings const& settings, device const& on, std::size_t available) {
  return cheapest_changes<lm_settings>(settings, levers, available,
                                       [&](lm_settings const& s) -> std::optional<std::size_t> {
                                         try {
                                           return lm_trainer::estimate(s, on);
                                         } catch (named_error const&) {
                                           return std::nullopt;
                                         }
                                       });
}

}  // namespace trainer
