// What a model trains or keeps frozen: named tensors that lie one after another in a flat array, so that the optimiser,
// the checkpoint and the clipping of the gradient each walk one range.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

/// One tensor of the flat array.
struct parameter {
  std::string name;
  std::vector<std::int64_t> shape;  ///< outermost first
  std::int64_t offset, count;
  bool is_matrix;  ///< decayed by the optimiser and drawn at random; a norm's gain is neither and starts at 1
};

class parameter_list {
 public:
  /// Appends a tensor; returns its offset.
  std::int64_t add(std::string name, std::vector<std::int64_t> shape) {
    std::int64_t count = 1;
    for (std::int64_t n : shape) count *= n;
    bool const is_matrix = shape.size() > 1;
    all_.push_back({std::move(name), std::move(shape), count_, count, is_matrix});
    count_ += count;
    return count_ - count;
  }
  std::vector<parameter> const& all() const { return all_; }
  /// Elements of all tensors together.
  std::int64_t count() const { return count_; }

 private:
  std::vector<parameter> all_;
  std::int64_t count_ = 0;
};

}  // namespace trainer
