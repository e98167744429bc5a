#include "lm_fit.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "error.hpp"
#include "plan_budget.hpp"

namespace trainer {
namespace {

/// The options in which two settings differ, as arguments.
std::string difference(lm_settings const& from, lm_settings const& to) {
  std::string text;
  for_each_field(
      [&](field const& f, auto const& a, auto const& b) {
        if (a != b) text += std::string(text.empty() ? "" : " ") + "--" + f.name + " " + text_of(b);
      },
      from, to);
  return text;
}

/// The next smaller batch that divides the windows of a step, which stay as many.
bool smaller_batch(lm_settings& s) {
  std::int64_t const windows = s.windows_per_step();
  std::int64_t batch = s.batch / 2;
  while (batch > 1 && windows % batch != 0) --batch;
  if (batch < 1) return false;
  s.batch = batch;
  s.accumulate = windows / batch;
  return true;
}

bool more_segments(lm_settings& s) {
  if (s.ckpt == s.layers) return false;
  s.ckpt = std::min(2 * s.ckpt, s.layers);
  return true;
}

bool halve(std::int64_t& value, std::int64_t smallest) {
  if (value <= smallest) return false;
  value = std::max(value / 2, smallest);
  return true;
}

constexpr std::int64_t smallest_width = 16;

/// Makes a plan smaller by one notch; false where there is none left. Cheapest first.
using lever = bool (*)(lm_settings&);
constexpr lever levers[] = {
    [](lm_settings& s) { return s.attn == "exact" && s.ablate == "none" && (s.attn = "flash", true); },
    smaller_batch,
    [](lm_settings& s) { return s.adapter != "none" && s.mirror == "f32" && (s.mirror = "bf16-f32", true); },
    more_segments,
    [](lm_settings& s) {
      if (s.base.empty() || s.adapter != "none") return false;
      s.adapter = "lora";
      return true;
    },
    [](lm_settings& s) { return halve(s.context, shortest_context); },
    [](lm_settings& s) { return s.adapter != "none" && s.adapter_from.empty() && halve(s.rank, 1); },
    [](lm_settings& s) { return s.base.empty() && halve(s.layers, 1) && (s.ckpt = std::min(s.ckpt, s.layers), true); },
    [](lm_settings& s) { return s.base.empty() && halve(s.ffn, smallest_width); },
    [](lm_settings& s) { return s.base.empty() && halve(s.hidden, smallest_width); },
};

/// Nothing where there is no kernel for the settings.
std::optional<std::size_t> bytes_of(lm_settings const& s, device const& on) {
  try {
    return lm_trainer::estimate(s, on);
  } catch (named_error const&) {
    return std::nullopt;
  }
}

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
  std::vector<std::string> enough, too_little;
  lm_settings together = settings;
  for (lever const pull : levers) {
    lm_settings s = settings;
    std::optional<std::pair<std::size_t, std::string>> smallest;
    while (pull(s)) {
      std::optional<std::size_t> const bytes = bytes_of(s, on);
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
  for (lever const pull : levers)
    while (pull(together))
      if (std::optional<std::size_t> const bytes = bytes_of(together, on); bytes && *bytes <= available)
        return "the cheapest changes: " + text + "; together " + difference(settings, together) + " (" +
               mebibytes(*bytes) + ") would fit";
  return "the cheapest changes: " + text + "; not even all of them would fit";
}

}  // namespace trainer
