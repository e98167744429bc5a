// A file that calls: it sees declarations only, and links against the instance in split_instance.cpp.
#include <lanewise/attention.hpp>
#include <lanewise/variants/window.hpp>

inline constexpr lanewise::config mine{.head_dim = 64, .precision = lanewise::precision::bf16};

int main() {
  using namespace lanewise;
  view<bf16> const nothing;
  status const s = forward<mine>(on_cpu{}, {.q = nothing, .k = nothing, .v = nothing, .o = nothing}, window{128, 0});
  return s.code == status_code::null_view ? 0 : 1;
}
