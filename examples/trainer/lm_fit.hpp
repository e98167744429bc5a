// Which settings of `lm` fit a budget of memory, found over dry-run plans of the whole step: what is planned is what
// the run allocates, so an answer cannot be over its budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lm_trainer.hpp"

namespace trainer {

/// Shortest window that is looked at.
inline constexpr std::int64_t shortest_context = 16;

struct lm_fit {
  bool fits;
  lm_settings settings;       ///< that fit, or the smallest that were tried
  lanewise::arena_plan plan;  ///< theirs
  std::string refusal;        ///< where nothing fits: what else could be changed
};

/// The longest window up to `longest` tokens, and with it the fewest --ckpt, and with those the largest --batch, with
/// as much more --accumulate, whose plan takes at most `available` bytes. What the user has set stays as it is. fits is
/// true exactly when plan.peak() <= available.
lm_fit fit_lm(lm_settings const& wanted, device const& on, std::size_t available, std::int64_t longest);

/// The changes to settings whose plan is larger than `available` (levers.hpp): flash for exact, smaller batches, bf16
/// storage, layers computed again, an adapter, shorter windows, then a smaller model.
std::string cheapest_levers(lm_settings const& settings, device const& on, std::size_t available);

}  // namespace trainer
