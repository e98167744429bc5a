// error: view: a const input is given as an output, or the element type differs from the config's
#include <lanewise/attention.hpp>
constexpr lanewise::config c{.head_dim = 64};
#ifdef CONTROL
using output = float;
#else
using output = float const;
#endif
lanewise::status call(lanewise::view<float const> x, lanewise::view<output> o) {
  return lanewise::forward<c>(lanewise::on_cpu{}, {.q = x, .k = x, .v = x, .o = o});
}
