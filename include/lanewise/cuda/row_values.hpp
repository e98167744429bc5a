// What a backward takes from each query row beside its operands, in the workspace: the LSE in log2 units and delta.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../tensor.hpp"

namespace lanewise::gpu {

/// Rows of a head in the workspace: the sequence rounded up, so that any tile of rows can be read whole.
inline constexpr std::int64_t row_padding = 128;
constexpr std::int64_t padded_rows(std::int64_t sequence) {
  return (sequence + row_padding - 1) / row_padding * row_padding;
}

/// [batch][query heads][padded rows], f32.
struct row_values {
  float* base;   ///< LSE in log2 units, 0 in empty and padding rows
  float* delta;  ///< rowsum(dO * O) - dLSE, 0 in padding rows

  static std::int64_t count(extents q) { return q.batch * q.heads * padded_rows(q.sequence); }
  static std::size_t bytes(extents q) { return std::size_t(2 * count(q)) * sizeof(float); }
  static row_values in(void* scratch, extents q) {
    float* const first = static_cast<float*>(scratch);
    return {first, first + count(q)};
  }
};

}  // namespace lanewise::gpu
