// What a plan's bytes are for: the tensors that lie in the buffer at the moment when it is fullest, by their names.
#pragma once

#include <algorithm>
#include <cstddef>
#include <lanewise/memory/arena.hpp>
#include <map>
#include <string>
#include <vector>

namespace trainer {

struct memory_term {
  std::string name;
  std::size_t bytes, tensors;
};

/// Largest first, then "idle between them"; the bytes sum to plan.peak().
inline std::vector<memory_term> terms_of(lanewise::arena_plan const& plan) {
  std::map<std::string, memory_term> by_name;
  std::size_t sum = 0;
  for (lanewise::placement const& p : plan.tensors()) {
    if (p.parent || p.bytes == 0 || p.first > plan.peak_op() || p.last < plan.peak_op()) continue;
    memory_term& term = by_name.try_emplace(p.name.text, memory_term{p.name.text, 0, 0}).first->second;
    std::size_t const bytes = *lanewise::room_of(p.bytes, p.align);
    term.bytes += bytes;
    ++term.tensors;
    sum += bytes;
  }
  std::vector<memory_term> terms;
  for (auto const& [name, term] : by_name) terms.push_back(term);
  std::ranges::stable_sort(terms, [](memory_term const& a, memory_term const& b) { return a.bytes > b.bytes; });
  terms.push_back({"idle between them", plan.peak() - sum, 0});
  return terms;
}

}  // namespace trainer
