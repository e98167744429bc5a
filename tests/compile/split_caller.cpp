// A file that calls: it sees declarations only, and links against the instances in split_instance.cpp.
#include <lanewise/attention.hpp>
#include <lanewise/variants/window.hpp>

inline constexpr lanewise::config mine{.head_dim = 64, .precision = lanewise::precision::bf16};

int main() {
  using namespace lanewise;
  on_cpu const on;
  extents const one{1, 1, 1, 64};
  view<bf16> const nothing;
  bool const sized = forward_workspace<mine>(target_of(on), one, one, window{128, 0}) > 0;
  status const s = forward<mine>(on, {.q = nothing, .k = nothing, .v = nothing, .o = nothing}, window{128, 0});
  return sized && s.code == status_code::null_view ? 0 : 1;
}
