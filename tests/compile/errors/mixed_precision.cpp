// One config instantiates both directions: a backward in another storage type than its forward's o does not compile.
// error: view: a const input is given as an output, or the element type differs from the config's
#include <lanewise/attention.hpp>
using lanewise::view;
constexpr lanewise::config c{.head_dim = 64, .precision = lanewise::precision::bf16};
#ifdef CONTROL
using of_forward = lanewise::element<c>;
#else
using of_forward = float;
#endif
lanewise::status call(view<lanewise::bf16> x, view<of_forward> o, view<float> lse) {
  return lanewise::backward<c>(lanewise::on_cpu{}, {.q = x, .k = x, .v = x, .o = o, .lse = lse, .d_o = x, .d_q = x});
}
