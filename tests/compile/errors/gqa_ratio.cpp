// error: config: gqa_ratio is the number of query heads per key/value head; 0 takes it from the tensors
#include <lanewise/attention.hpp>
#ifdef CONTROL
constexpr lanewise::config c{.head_dim = 64, .gqa_ratio = 4};
#else
constexpr lanewise::config c{.head_dim = 64, .gqa_ratio = -4};
#endif
lanewise::status call(lanewise::view<float> x) {
  return lanewise::forward<c>(lanewise::on_cpu{}, {.q = x, .k = x, .v = x, .o = x});
}
