// Layout-compatible is not the same type: the element type comes from the config.
// error: view: a const input is given as an output, or the element type differs from the config's
#include <lanewise/attention.hpp>
constexpr lanewise::config c{.head_dim = 64, .precision = lanewise::precision::bf16};
#ifdef CONTROL
using element = lanewise::bf16;
#else
using element = lanewise::f16;
#endif
lanewise::status call(lanewise::view<element> x) {
  return lanewise::forward<c>(lanewise::on_cpu{}, {.q = x, .k = x, .v = x, .o = x});
}
