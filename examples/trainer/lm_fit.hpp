// Which settings of `lm` fit a budget of memory (fit_search.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "fit_search.hpp"
#include "lm_trainer.hpp"

namespace trainer {

/// Shortest window that is looked at.
inline constexpr std::int64_t shortest_context = 16;

using lm_fit = fit_result<lm_settings>;

/// search_fit over windows of up to `longest` tokens, at least `fewest_layers` layers, and the batch.
lm_fit fit_lm(lm_settings const& wanted, device const& on, std::size_t available, std::int64_t longest,
              std::int64_t fewest_layers);
inline lm_fit fit_lm(lm_settings const& wanted, device const& on, std::size_t available, std::int64_t longest) {
  return fit_lm(wanted, on, available, longest, wanted.layers);
}

/// The changes to settings whose plan is larger than `available` (levers.hpp): flash for exact, smaller batches, bf16
/// storage, layers computed again, an adapter, shorter windows, then a smaller model.
std::string cheapest_levers(lm_settings const& settings, device const& on, std::size_t available);

}  // namespace trainer
