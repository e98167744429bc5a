// What every part of one pass of the diffusion transformer shares; for dit_model.cpp and dit_layer.cpp alone.
#pragma once

#include <algorithm>

#include "dit_model.hpp"

namespace trainer {

template <class T>
struct dit_scene {
  ops<T> const& op;
  dit_ops<T> const& dit;
  step_memory& memory;
  dit_batch<T> const& in;
  projections<T> placed;
  T const *weights, *rotary;      ///< weights: layout.full()
  std::int64_t length;            ///< tokens of a batch element, with the prefix
  T const* embedding = nullptr;   ///< [batch, hidden]: the time's
  T const* caption = nullptr;     ///< [batch, caption_length, hidden]
  T const* projection = nullptr;  ///< [batch, 6 hidden]: the time's part of every layer's six vectors
  T *d_caption = nullptr, *d_projection = nullptr;

  std::int64_t rows() const { return in.batch * length; }
  std::int64_t caption_rows() const { return in.batch * in.caption_length; }
  /// Rows whose batch elements have vectors of `slots` times hidden numbers.
  sequence_shape modulated(std::int64_t hidden, std::int64_t slots) const {
    return {in.batch, length, hidden, slots * hidden};
  }
  bool is_frozen() const { return placed.layout.is_frozen(); }
  /// Null for a frozen weight.
  T* gradient(std::int64_t at) const { return placed.gradient(at); }
  /// Partial sums of gradients that a frozen weight does not have.
  buffer<T> partial(std::int64_t count) const { return is_frozen() ? buffer<T>() : take(count, "partial"); }
  buffer<T> take(std::int64_t count, char const* label) const { return memory.take<T>(count, label); }
  buffer<std::byte> scratch(std::size_t bytes) const { return memory.take<std::byte>(std::int64_t(bytes), "scratch"); }
};

/// hidden layer, its silu, embedding, its silu, projection (ace).
template <class T>
struct dit_time_tape {
  buffer<T> inner, active, embedding, embedding_active, projection;
};

/// What comes before the layers: the patches' embedding, the caption's, and the time's, both parts of it added up.
template <class T>
struct dit_start {
  dit_time_tape<T> time, time_gap;
  buffer<T> x, caption_bytes, caption, embedding, projection;
};

template <class T>
struct dit_ending {
  buffer<T> modulation, normed, inverse, rows;
};

}  // namespace trainer
