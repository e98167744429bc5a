// error: 'gqa'
#include <lanewise/attention.hpp>
#ifdef CONTROL
constexpr lanewise::config c{.head_dim = 64, .gqa_ratio = 4};
#else
constexpr lanewise::config c{.head_dim = 64, .gqa = 4};
#endif
static_assert(c.head_dim == 64);
