// Two keys with equal scores: o is the mean of their values, 2, from the same instance in both files.
#include "two_units.hpp"

#include <cstdio>
#include <vector>

int main() {
  using namespace lanewise;
  extents const one{1, 1, 1, 8}, two{1, 2, 1, 8};
  float const q[8] = {};
  float k[16] = {1, 0, 0, 0, 0, 0, 0, 0, 3};
  float o[8] = {};
  std::vector<char> room(forward_workspace<shared_config>(target_of(on_cpu{}), one, two) + workspace_alignment);
  std::size_t const skip = workspace_alignment - reinterpret_cast<std::uintptr_t>(room.data()) % workspace_alignment;
  view<float const> const keys{k, two};
  status const s = forward<shared_config>(on_cpu{}, {.q = {q, one}, .k = keys, .v = keys, .o = {o, one}}, full{},
                                          {room.data() + skip, room.size() - skip});
  float const other = in_other_file({q, one}, keys);
  std::printf("%s: %g here, %g there\n", s.message(), o[0], other);
  return s && o[0] == 2 && other == 2 ? 0 : 1;
}
