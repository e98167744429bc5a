// error: no matching function for call to 'backward
#include <lanewise/attention.hpp>
constexpr lanewise::config c{.head_dim = 64};
lanewise::status call(lanewise::view<float> x) {
#ifdef CONTROL
  return lanewise::backward<c>(lanewise::on_cpu{}, {.q = x, .k = x, .v = x, .o = x, .lse = x, .d_o = x, .d_q = x});
#else
  return lanewise::backward<c>(lanewise::on_cpu{}, {.q = x, .k = x, .v = x, .o = x, .lse = x, .d_o = x, .dq = x});
#endif
}
