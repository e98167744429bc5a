#include "dit_fit.hpp"

#include <algorithm>

#include "levers.hpp"

namespace trainer {
namespace {

/// Crops of so many tokens at most; the fewest frames follow where nobody set them.
void crop_to(dit_settings& s, std::int64_t tokens) {
  s.crop_max = tokens * s.patch;
  s.crop_min = s.from_user.contains("crop-min") ? std::min(s.crop_min, s.crop_max) : (s.crop_max + 1) / 2;
}

constexpr lever<dit_settings> levers[] = {
    flash_for_exact,
    smaller_batch,
    mirrored_base,
    more_segments,
    [](dit_settings& s) {
      std::int64_t tokens = s.tokens();
      if (!halve(tokens, shortest_crop)) return false;
      s.crop_max = tokens * s.patch;
      s.crop_min = std::min(s.crop_min, s.crop_max);
      return true;
    },
    smaller_rank,
    fewer_sites,
    fewer_layers,
    [](dit_settings& s) { return s.adapter == "none" && halve(s.ffn, smallest_width); },
    [](dit_settings& s) { return s.adapter == "none" && halve(s.hidden, s.bands * s.patch); },
};

}  // namespace

dit_fit fit_dit(dit_settings const& wanted, recordings const& data, device const& on, std::size_t available,
                std::int64_t longest, std::int64_t fewest_layers) {
  bool const is_set = wanted.from_user.contains("crop") || wanted.from_user.contains("crop-max");
  std::int64_t const most = (is_set ? wanted.crop_max : longest) / wanted.patch;
  fit_space<dit_settings> const space{
      .shortest = is_set ? most : std::min(shortest_crop, most),
      .longest = most,
      .set_length = is_set ? [](dit_settings&, std::int64_t) {} : crop_to,
      .fewest_layers = fewest_layers,
      .plan_of = [&](dit_settings const& s) { return dit_trainer::plan_for(s, data, on); }};
  dit_fit r = search_fit(wanted, space, available);
  if (!r.fits) r.refusal = cheapest_levers(r.settings, data, on, available);
  return r;
}

std::string cheapest_levers(dit_settings const& settings, recordings const& data, device const& on,
                            std::size_t available) {
  return cheapest_changes<dit_settings>(settings, levers, available,
                                        [&](dit_settings const& s) { return dit_trainer::estimate(s, data, on); });
}

}  // namespace trainer
