#include "plan_budget.hpp"

#include <cstdio>

#include "error.hpp"

namespace trainer {

std::string mebibytes(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", double(bytes) / double(1 << 20));
  return text;
}

void bind_plan(step_memory& memory, device& on, memory_budget budget,
               std::function<std::string(std::size_t)> const& ways_out) {
  std::size_t const available = budget.free > budget.reserve ? budget.free - budget.reserve : 0;
  std::string const numbers =
      "est " + mebibytes(memory.peak()) + ", free " + mebibytes(budget.free) + ", reserve " + mebibytes(budget.reserve);
  if (memory.peak() > available) throw out_of_memory(numbers + "; " + ways_out(available));
  try {
    memory.bind(on.memory());
  } catch (named_error const& refused) {
    throw out_of_memory(numbers + ": " + refused.what());
  }
}

}  // namespace trainer
