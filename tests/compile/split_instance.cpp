// The file that instantiates: the only one that compiles the kernels of this config and variant.
#include <lanewise/attention_cpu.hpp>
#include <lanewise/variants/window.hpp>

inline constexpr lanewise::config mine{.head_dim = 64, .precision = lanewise::precision::bf16};

template lanewise::status lanewise::forward<mine>(on_cpu, forward_args<mine> const&, window const&, workspace) noexcept;
