// The gradient of a bias is f32 whatever the bias is stored in.
// error: parameter_view
#include <lanewise/variants.hpp>
#ifdef CONTROL
using gradient = float;
#else
using gradient = lanewise::bf16;
#endif
lanewise::bias_bf16 with(lanewise::parameter_view<lanewise::bf16 const> b, lanewise::parameter_view<gradient> d_b) {
  return {.b = b, .d_b = d_b};
}
