// Tensors of a run: storage type, extents and strides known at run time, memory shared between slices of one buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <lanewise/reference.hpp>
#include <lanewise/tensor.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace parity {

using lanewise::extents;
using lanewise::strides;
using lanewise::reference::number;

char const* name_of(number type);
std::size_t bytes_of(number type);

/// A [batch, sequence, heads, head_dim] tensor; without bytes it is "not given". An LSE has head_dim 1.
struct array {
  number type = number::f32;
  extents size{};
  strides stride{};
  std::int64_t offset = 0;  ///< of element 0 in `bytes`, in elements
  std::shared_ptr<std::vector<std::byte>> bytes;

  explicit operator bool() const { return bytes != nullptr; }

  template <class T>
  lanewise::view<T> as() const {
    if (!bytes) return {};
    return {reinterpret_cast<T*>(bytes->data()) + offset, size, stride};
  }
};

/// Strides of a dense tensor whose dimensions lie in this order, outermost first: "bshd", "bhsd", ...
/// Throws std::runtime_error where `order` is not the four letters.
strides strides_of(extents size, std::string_view order);

/// New memory, every byte 0xff: whatever the engine fails to write is NaN.
array make(number type, extents size, std::string_view order = "bshd");
array make(number type, extents size, strides stride, std::int64_t elements, std::int64_t offset);

/// One element, and one element set (rounded to the storage type).
double at(array const& x, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d);
void set(array const& x, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d, double value);

/// All elements, dense in [b, s, h, d] order.
std::vector<double> values_of(array const& x);
/// The same elements in another type and order of dimensions.
array converted(array const& x, number type, std::string_view order = "bshd");
/// True where both hold the same bits, element for element.
bool same_bits(array const& x, array const& y);

enum class distribution { normal, normal3, heavy };
char const* name_of(distribution d);

/// Fills x with N(0, 1), N(0, 9) or Student's t of 4 degrees of freedom. The value at an index depends on the seed and
/// the dense index alone, on any machine with correctly rounded sqrt and the same libm.
void fill(array const& x, std::uint64_t seed, distribution d = distribution::normal);
/// The i-th number of that stream, N(0, 1).
double normal(std::uint64_t seed, std::uint64_t i);

std::string text_of(extents e);

}  // namespace parity
