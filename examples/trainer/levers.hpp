// What to change when a plan does not fit: a command lists its levers, the cheapest first, and this pulls them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"
#include "plan_budget.hpp"
#include "run_options.hpp"

namespace trainer {

/// Makes a plan smaller by one notch; false where there is none left. Cheap is what changes the result or the speed
/// least.
template <class Settings>
using lever = bool (*)(Settings&);

/// Levers that every command has.
template <class Settings>
bool flash_for_exact(Settings& s) {
  return s.attn == "exact" && s.ablate != "attention" && (s.attn = "flash", true);
}
/// The next smaller batch that divides what a step takes, which stays as much.
template <class Settings>
bool smaller_batch(Settings& s) {
  std::int64_t const whole = s.batch * s.accumulate;
  std::int64_t batch = s.batch / 2;
  while (batch > 1 && whole % batch != 0) --batch;
  if (batch < 1) return false;
  s.batch = batch;
  s.accumulate = whole / batch;
  return true;
}
template <class Settings>
bool more_segments(Settings& s) {
  if (s.ckpt == s.layers) return false;
  s.ckpt = std::min(2 * s.ckpt, s.layers);
  return true;
}
/// Of --ffn and --hidden.
inline constexpr std::int64_t smallest_width = 16;
inline bool halve(std::int64_t& value, std::int64_t smallest) {
  if (value <= smallest) return false;
  value = std::max(value / 2, smallest);
  return true;
}
template <class Settings>
bool mirrored_base(Settings& s) {
  return s.adapter != "none" && s.mirror == "f32" && (s.mirror = "bf16-f32", true);
}
template <class Settings>
bool smaller_rank(Settings& s) {
  return s.adapter != "none" && s.adapter_from.empty() && halve(s.rank, 1);
}
/// The two projections that LoRA's authors adapt (Hu et al. 2021, 4.2).
template <class Settings>
bool fewer_sites(Settings& s) {
  return s.adapter != "none" && s.adapter_from.empty() && s.sites != "q,v" && (s.sites = "q,v", true);
}
template <class Settings>
bool fewer_layers(Settings& s) {
  return halve(s.layers, 1) && (s.ckpt = std::min(s.ckpt, s.layers), true);
}

/// The options in which two settings differ, as arguments.
template <class Settings>
std::string difference(Settings const& from, Settings const& to) {
  std::string text;
  for_each_field(
      [&](field const& f, auto const& a, auto const& b) {
        if (a != b) text += std::string(text.empty() ? "" : " ") + "--" + f.name + " " + text_of(b);
      },
      from, to);
  return text;
}

/// The three cheapest changes to settings whose plan is larger than `available`, each with the plan that it leads to;
/// first those that are enough alone. estimate(settings): bytes of their plan; throws where there is no kernel for
/// them.
template <class Settings, class Estimate>
std::string cheapest_changes(Settings const& settings, std::span<lever<Settings> const> levers, std::size_t available,
                             Estimate const& estimate) {
  auto const bytes_of = [&](Settings const& s) -> std::optional<std::size_t> {
    try {
      return estimate(s);
    } catch (named_error const&) {
      return std::nullopt;
    }
  };
  std::vector<std::string> enough, too_little;
  for (lever<Settings> const pull : levers) {
    Settings s = settings;
    std::optional<std::pair<std::size_t, std::string>> smallest;
    while (pull(s)) {
      std::optional<std::size_t> const bytes = bytes_of(s);
      if (!bytes) break;
      if (!smallest || *bytes < smallest->first) smallest = {*bytes, difference(settings, s)};
      if (*bytes <= available) break;
    }
    if (!smallest) continue;
    bool const fits = smallest->first <= available;
    (fits ? enough : too_little)
        .push_back(smallest->second + " (" + mebibytes(smallest->first) + (fits ? ")" : ", not enough alone)"));
  }
  std::string text;
  for (std::size_t i = 0; i < 3 && i < enough.size() + too_little.size(); ++i)
    text += (i ? ", " : "") + (i < enough.size() ? enough[i] : too_little[i - enough.size()]);
  if (text.empty()) return "nothing is left to change";
  if (!enough.empty()) return "these would fit: " + text;
  Settings together = settings;
  for (lever<Settings> const pull : levers)
    while (pull(together))
      if (std::optional<std::size_t> const bytes = bytes_of(together); bytes && *bytes <= available)
        return "the cheapest changes: " + text + "; together " + difference(settings, together) + " (" +
               mebibytes(*bytes) + ") would fit";
  return "the cheapest changes: " + text + "; not even all of them would fit";
}

}  // namespace trainer
