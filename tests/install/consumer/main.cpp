// A program outside the project: one query sees two keys with equal scores, so its output is the mean of their values.
#include <lanewise/attention_cpu.hpp>
#include <lanewise/variants.hpp>

#include <cstdio>

constexpr lanewise::config c{.head_dim = 8};
alignas(lanewise::workspace_alignment) char room[1 << 20];

int main() {
  using namespace lanewise;
  thread_pool pool(2);
  float const q[8] = {}, k[16] = {}, v[16] = {1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3};
  float o[8] = {};
  extents const one{1, 1, 1, 8}, two{1, 2, 1, 8};
  status const s = forward<c>(on_cpu{pool}, {.q = {q, one}, .k = {k, two}, .v = {v, two}, .o = {o, one}},
                              causal_bottom_right{}, {room, sizeof room});
  std::printf("lanewise %d.%d.%d: %s, o = %g\n", LANEWISE_VERSION_MAJOR, LANEWISE_VERSION_MINOR, LANEWISE_VERSION_PATCH,
              s.message(), o[7]);
  return s && o[7] == 2 ? 0 : 1;
}
