// Causal attention of 4 query heads on 2 key/value heads, forward and backward, on two CPU threads.
#include <lanewise/attention_cpu.hpp>
#include <lanewise/variants.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

constexpr lanewise::config mine{.head_dim = 64};
struct alignas(lanewise::workspace_alignment) line { char bytes[lanewise::workspace_alignment]; };

int main() {
  using namespace lanewise;
  extents const eq{1, 128, 4, 64}, ek{1, 128, 2, 64}, rows{1, 128, 4, 1};  // batch, sequence, heads, head_dim
  std::vector<float> q(eq.count()), k(ek.count()), v(ek.count()), o(eq.count()), lse(rows.count());
  std::vector<float> d_o(eq.count(), 1.f), d_q(eq.count()), d_k(ek.count()), d_v(ek.count());
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = std::sin(float(i));
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = std::cos(float(i)), v[i] = std::sin(3 * float(i));

  thread_pool pool(2);
  on_cpu const on{pool};
  causal_bottom_right const mask;
  std::size_t const bytes = std::max(forward_workspace<mine>(target_of(on), eq, ek, mask),
                                     backward_workspace<mine>(target_of(on), eq, ek, mask));
  std::vector<line> memory(bytes / sizeof(line) + 1);
  workspace const scratch{memory.data(), bytes};

  status s = forward<mine>(on, {.q = {q.data(), eq}, .k = {k.data(), ek}, .v = {v.data(), ek}, .o = {o.data(), eq},
                                .lse = {lse.data(), rows}}, mask, scratch);
  if (s) s = backward<mine>(on, {.q = {q.data(), eq}, .k = {k.data(), ek}, .v = {v.data(), ek}, .o = {o.data(), eq},
                                 .lse = {lse.data(), rows}, .d_o = {d_o.data(), eq}, .d_q = {d_q.data(), eq},
                                 .d_k = {d_k.data(), ek}, .d_v = {d_v.data(), ek}}, mask, scratch);
  if (!s) return std::printf("%s\n", s.message()), 1;

  // Query 0 sees key 0 alone, so its o is that key's v; a row's weights sum to 1, so d_v sums to what d_o does.
  double const sum = std::accumulate(d_v.begin(), d_v.end(), 0.0), given = double(d_o.size());
  std::printf("%s: o[1] = %g, v[1] = %g; sum of d_v = %.1f, of d_o = %.1f\n", s.kernel, o[1], v[1], sum, given);
  return o[1] == v[1] && std::abs(sum - given) < 0.5 ? 0 : 1;
}
