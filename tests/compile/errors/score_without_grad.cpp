// error: variant: a score needs float grad(float, position) const before a backward can use it
#include <lanewise/attention_cpu.hpp>
constexpr lanewise::config c{.head_dim = 64};
struct squared {
  float operator()(float s, lanewise::position) const { return s * s; }
#ifdef CONTROL
  float grad(float s, lanewise::position) const { return 2 * s; }
#endif
};
lanewise::status call(lanewise::view<float> x) {
  return lanewise::backward<c>(lanewise::on_cpu{}, {.q = x, .k = x, .v = x, .o = x, .lse = x, .d_o = x, .d_q = x}, squared{});
}
