// error: config: head_dim must be 8 ... 256 in steps of 8
#include <lanewise/attention.hpp>
#ifdef CONTROL
constexpr lanewise::config c{.head_dim = 104};
#else
constexpr lanewise::config c{.head_dim = 100};
#endif
lanewise::status call(lanewise::view<float> x) {
  return lanewise::forward<c>(lanewise::on_cpu{}, {.q = x, .k = x, .v = x, .o = x});
}
