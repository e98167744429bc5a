// Which window of the stream a step trains on. An epoch cuts the stream, from a random phase, into windows that do not
// overlap, and visits each once in a random order; both are functions of (seed, epoch), so the position in the order is
// all that a resumed run needs to know.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model.hpp"
#include "random.hpp"

namespace trainer {

class window_order {
 public:
  /// A window is `length` tokens and the one after them; `size` tokens must hold at least one window.
  window_order(std::int64_t size, std::int64_t length, std::uint64_t seed)
      : length_(length), seed_(seed), slack_((size - 1) % length), order_(std::size_t((size - 1) / length)) {
    if (order_.size() > 1) {  // one window less, so that every phase has room
      order_.pop_back();
      slack_ = length - 1;
    }
    shuffle(0);
  }

  std::int64_t windows_per_epoch() const { return std::int64_t(order_.size()); }

  /// First token of the window at `position` in the order of all epochs.
  std::int64_t begin_of(std::int64_t position) {
    std::int64_t const epoch = position / windows_per_epoch();
    if (epoch != epoch_) shuffle(epoch);
    return phase_ + std::int64_t(order_[std::size_t(position % windows_per_epoch())]) * length_;
  }

 private:
  void shuffle(std::int64_t epoch) {
    random_numbers draw(seed_, stream::windows, std::uint64_t(epoch));
    epoch_ = epoch;
    phase_ = std::int64_t(draw.below(std::uint64_t(slack_ + 1)));
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = std::uint32_t(i);
    for (std::size_t i = order_.size() - 1; i > 0; --i) std::swap(order_[i], order_[draw.below(i + 1)]);
  }

  std::int64_t length_;
  std::uint64_t seed_;
  std::int64_t slack_, epoch_ = 0, phase_ = 0;
  std::vector<std::uint32_t> order_;
};

/// Copies the window at `begin` into one row of a batch; beyond the stream's end targets are no_target and tokens 0.
inline void copy_window(std::span<std::int32_t const> stream, std::int64_t begin, std::int64_t length,
                        std::int32_t* tokens, std::int32_t* targets) {
  auto const size = std::int64_t(stream.size());
  for (std::int64_t i = 0; i < length; ++i) {
    std::int64_t const at = begin + i;
    bool const has_target = at + 1 < size;
    tokens[i] = has_target ? stream[std::size_t(at)] : 0;
    targets[i] = has_target ? stream[std::size_t(at + 1)] : no_target;
  }
}

}  // namespace trainer
