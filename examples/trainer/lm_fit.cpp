#include "lm_fit.hpp"

#include <algorithm>

#include "levers.hpp"

namespace trainer {
namespace {

constexpr lever<lm_settings> levers[] = {
    flash_for_exact,
    smaller_batch,
    mirrored_base,
    more_segments,
    [](lm_settings& s) { return !s.base.empty() && s.adapter == "none" && (s.adapter = "lora", true); },
    [](lm_settings& s) { return halve(s.context, shortest_context); },
    smaller_rank,
    fewer_sites,
    [](lm_settings& s) { return s.base.empty() && fewer_layers(s); },
    [](lm_settings& s) { return s.base.empty() && halve(s.ffn, smallest_width); },
    [](lm_settings& s) { return s.base.empty() && halve(s.hidden, smallest_width); },
};

}  // namespace

lm_fit fit_lm(lm_settings const& wanted, device const& on, std::size_t available, std::int64_t longest,
              std::int64_t fewest_layers) {
  bool const is_set = wanted.from_user.contains("context");
  fit_space<lm_settings> const space{.shortest = is_set ? wanted.context : std::min(shortest_context, longest),
                                     .longest = is_set ? wanted.context : longest,
                                     .set_length = [](lm_settings& s, std::int64_t n) { s.context = n; },
                                     .fewest_layers = wanted.base.empty() ? fewest_layers : wanted.layers,
                                     .plan_of = [&](lm_settings const& s) { return lm_trainer::plan_for(s, on); }};
  lm_fit r = search_fit(wanted, space, available);
  if (!r.fits) r.refusal = cheapest_levers(r.settings, on, available);
  return r;
}

std::string cheapest_levers(lm_settings const& settings, device const& on, std::size_t available) {
  return cheapest_changes<lm_settings>(settings, levers, available,
                                       [&](lm_settings const& s) { return lm_trainer::estimate(s, on); });
}

}  // namespace trainer
