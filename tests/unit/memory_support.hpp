// What the tests of memory share.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <lanewise/status.hpp>
#include <memory>
#include <string>

namespace lanewise {

inline std::string text(status const& s) { return s.message(); }

}  // namespace lanewise

/// At least `bytes` bytes at a multiple of `align`.
struct aligned_buffer {
  std::unique_ptr<void, decltype(&std::free)> memory;
  explicit aligned_buffer(std::size_t bytes, std::size_t align = 4096)
      : memory(std::aligned_alloc(align, (bytes / align + 1) * align), &std::free) {}
  std::byte* data() const { return static_cast<std::byte*>(memory.get()); }
};
