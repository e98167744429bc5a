// The file that instantiates: the only one that compiles the kernels of this config and variant.
#include <lanewise/attention_cpu.hpp>
#include <lanewise/variants/window.hpp>

inline constexpr lanewise::config mine{.head_dim = 64, .precision = lanewise::precision::bf16};

namespace lanewise {
template status forward<mine>(on_cpu, forward_args<mine> const&, window const&, workspace) noexcept;
template std::size_t forward_workspace<mine>(cpu_target, extents, extents, window const&) noexcept;
}  // namespace lanewise
