// A plan against what memory there is: it is bound, or refused with the numbers and the cheapest ways out.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "device.hpp"

namespace trainer {

/// "12.3 MiB".
std::string mebibytes(std::size_t bytes);

/// Binds the plan on the device. Throws out-of-memory with est, free, reserve and ways_out(bytes
/// that there are).
void bind_plan(step_memory& memory, device& on, memory_budget budget,
               std::function<std::string(std::size_t)> const& ways_out);

}  // namespace trainer
