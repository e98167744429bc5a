// error: variant: needs bool operator()(position) const, float operator()(float, position) const
#include <lanewise/attention_cpu.hpp>
constexpr lanewise::config c{.head_dim = 64};
struct odd_keys {
#ifdef CONTROL
  bool operator()(lanewise::position at) const { return at.k % 2; }
#else
  int operator()(lanewise::position at) const { return at.k % 2; }
#endif
};
lanewise::status call(lanewise::view<float> x) {
  return lanewise::forward<c>(lanewise::on_cpu{}, {.q = x, .k = x, .v = x, .o = x}, odd_keys{});
}
