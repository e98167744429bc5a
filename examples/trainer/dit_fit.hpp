// Which settings of `dit` fit a budget of memory (fit_search.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "dit_trainer.hpp"
#include "fit_search.hpp"

namespace trainer {

/// Shortest crop that is looked at, in tokens.
inline constexpr std::int64_t shortest_crop = 16;

using dit_fit = fit_result<dit_settings>;

/// search_fit over crops of up to `longest` frames, at least `fewest_layers` layers, and the batch. Of `data` only the
/// captions count.
dit_fit fit_dit(dit_settings const& wanted, recordings const& data, device const& on, std::size_t available,
                std::int64_t longest, std::int64_t fewest_layers);

/// The changes to settings whose plan is larger than `available` (levers.hpp): flash for exact, smaller batches, bf16
/// storage, layers computed again, shorter crops, a smaller rank, fewer sites, fewer layers.
std::string cheapest_levers(dit_settings const& settings, recordings const& data, device const& on,
                            std::size_t available);

}  // namespace trainer
