// error: config: head_dim_v other than head_dim is not supported yet; leave it 0
#include <lanewise/attention.hpp>
#ifdef CONTROL
constexpr lanewise::config c{.head_dim = 192, .head_dim_v = 192};
#else
constexpr lanewise::config c{.head_dim = 192, .head_dim_v = 128};
#endif
lanewise::status call(lanewise::view<float> x) {
  return lanewise::forward<c>(lanewise::on_cpu{}, {.q = x, .k = x, .v = x, .o = x});
}
