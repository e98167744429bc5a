// The memory of everything that a run computes, planned to the byte before it begins. The code of a step is walked
// through twice: once recording, when every buffer is only noted with its lifetime and nothing is computed, and from
// then on for real, when the same calls in the same order get the planned addresses. So the plan cannot differ from
// what is used, and a step allocates nothing.
//
//   memory.graph(0); train_step(...);  memory.graph(1); evaluate(...);     // recording; graphs follow one another in
//   memory.plan(); memory.bind(device.memory());                           // time, so they share their room
//   memory.graph(0); train_step(...);  memory.graph(0); train_step(...);   // for real, in any order
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <lanewise/memory/arena.hpp>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"

namespace trainer {

/// Where a plan's bytes lie: the host's memory, or a GPU's.
class plan_memory {
 public:
  virtual ~plan_memory() = default;
  /// `bytes` zeroed bytes, a multiple of `align`, which they are aligned to. Throws out-of-memory.
  virtual std::byte* allocate(std::size_t bytes, std::size_t align) const = 0;
  virtual void release(std::byte* p) const noexcept = 0;
  /// Every byte = value, after whatever was queued before.
  virtual void fill(void* p, std::uint8_t value, std::size_t bytes) const noexcept = 0;
};

/// The host's memory; it has no state.
inline plan_memory const& host_memory() {
  class host final : public plan_memory {
    std::byte* allocate(std::size_t bytes, std::size_t align) const override {
      auto* const p = static_cast<std::byte*>(std::aligned_alloc(align, bytes));
      if (!p) throw out_of_memory("the system refused a buffer of " + std::to_string(bytes) + " bytes");
      std::memset(p, 0, bytes);
      return p;
    }
    void release(std::byte* p) const noexcept override { std::free(p); }
    void fill(void* p, std::uint8_t value, std::size_t bytes) const noexcept override { std::memset(p, value, bytes); }
  };
  static host const memory;
  return memory;
}

class step_memory;

/// A planned range of T, given back at the end of its scope. Its address is null while the plan is recorded.
template <class T>
class buffer {
 public:
  buffer() = default;
  buffer(step_memory* owner, std::size_t index, T* data) : owner_(owner), index_(index), data_(data) {}
  buffer(buffer&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)), index_(other.index_), data_(std::exchange(other.data_, nullptr)) {
  }
  buffer& operator=(buffer&& other) noexcept {
    buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~buffer();
  operator T*() const { return data_; }
  T* get() const { return data_; }

 private:
  void swap(buffer& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(index_, other.index_);
    std::swap(data_, other.data_);
  }
  step_memory* owner_ = nullptr;
  std::size_t index_ = 0;
  T* data_ = nullptr;
};

class step_memory {
 public:
  step_memory() = default;
  step_memory(step_memory const&) = delete;
  step_memory& operator=(step_memory const&) = delete;

  /// Begins graph i. While recording, graphs begin in the order 0, 1, 2 ...
  void graph(std::size_t i) {
    if (!bound()) {
      if (i != graphs_.size()) throw std::logic_error("step_memory: graphs are recorded in their order");
      graphs_.emplace(i, takes_.size());
    }
    next_ = graphs_.at(i);
  }

  /// count elements until the buffer's end of scope. label: text that outlives this object.
  template <class T>
  buffer<T> take(std::int64_t count, char const* label) {
    std::size_t const index = next_++;
    std::size_t const bytes = std::size_t(count) * sizeof(T);
    if (!bound()) {
      takes_.push_back(builder_.tensor(bytes, label));
      builder_.op({}, {takes_.back()}, label);
      return {this, index, nullptr};
    }
    if (index >= takes_.size() || plan_[takes_[index]].bytes != bytes)
      throw std::logic_error(std::string("step_memory: ") + label + " differs from what was recorded");
    return {this, index, arena_.at<T>(takes_[index])};
  }

  /// count elements with a place of their own from start to end; the address comes from `at` once bound.
  template <class T>
  lanewise::tensor_id persistent(std::int64_t count, char const* label) {
    return builder_.persistent(std::size_t(count) * sizeof(T), label);
  }
  template <class T>
  T* at(lanewise::tensor_id id) const {
    return arena_.at<T>(id);
  }

  /// Plans what was recorded; peak() and plan() are valid from here on.
  void plan() {
    plan_ = builder_.plan();
    if (!plan_) throw std::logic_error(plan_.result().message());
  }
  lanewise::arena_plan const& planned() const { return plan_; }
  std::size_t peak() const { return plan_.peak(); }

  /// Allocates exactly peak() bytes, zeroed. `from` outlives this. Throws out-of-memory.
  void bind(plan_memory const& from = host_memory()) {
    std::size_t const align = plan_.alignment(), bytes = (peak() + align - 1) / align * align;
    storage_ = {from.allocate(bytes, align), deleter(&from)};
    if (lanewise::status s = plan_.bind(storage_.get(), bytes, arena_); !s) throw out_of_memory(s.message());
  }
  bool bound() const { return storage_ != nullptr; }
  std::byte const* storage() const { return storage_.get(); }

  /// Tests: fill a buffer with NaN when it is given back, so that a late reader is found.
  void poison_released(bool on) { poison_ = on; }

 private:
  template <class T>
  friend class buffer;
  void release(std::size_t index) noexcept {
    if (!bound()) {
      builder_.op({takes_[index]}, {}, "release");
    } else if (poison_) {
      lanewise::placement const& p = plan_[takes_[index]];
      storage_.get_deleter().from->fill(arena_.at<std::byte>(takes_[index]), 0xff, p.bytes);
    }
  }

  struct deleter {
    plan_memory const* from;
    deleter() : from(nullptr) {}
    explicit deleter(plan_memory const* from) : from(from) {}
    void operator()(std::byte* p) const { from->release(p); }
  };
  lanewise::arena_builder builder_;
  lanewise::arena_plan plan_;
  lanewise::arena arena_;
  std::vector<lanewise::tensor_id> takes_;
  std::map<std::size_t, std::size_t> graphs_;  ///< graph -> its first buffer
  std::size_t next_ = 0;
  std::unique_ptr<std::byte, deleter> storage_;
  bool poison_ = false;
};

template <class T>
buffer<T>::~buffer() {
  if (owner_) owner_->release(index_);
}

}  // namespace trainer
