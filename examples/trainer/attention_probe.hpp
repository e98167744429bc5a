// One forward and backward of an attention site on zeros, before training: whatever the engine refuses is found there,
// and the log can name the kernels that will run.
#pragma once

#include <cstddef>
#include <string>

#include "ops.hpp"

namespace trainer {

/// Bytes that probe_attention works in.
std::size_t probe_bytes(ops<float> const& op, attention_site const& site);

/// Names of the kernels that run, forward and backward, or of what stands for both. memory: probe_bytes(). Throws
/// attn-unsupported.
std::string probe_attention(ops<float> const& op, attention_site const& site, void* memory);

}  // namespace trainer
