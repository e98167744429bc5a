#include "two_units.hpp"

#include <vector>

float in_other_file(lanewise::view<float const> q, lanewise::view<float const> k) {
  using namespace lanewise;
  float o[8] = {};
  std::vector<char> room(forward_workspace<shared_config>(target_of(on_cpu{}), q.size, k.size) + workspace_alignment);
  std::size_t const skip = workspace_alignment - reinterpret_cast<std::uintptr_t>(room.data()) % workspace_alignment;
  status const s = forward<shared_config>(on_cpu{}, {.q = q, .k = k, .v = k, .o = {o, q.size}}, full{},
                                          {room.data() + skip, room.size() - skip});
  return s ? o[0] : -1;
}
