// Where a step's time goes. A profiled device is another device whose ops note the moments before and after every call
// in the queue of work; they change no result, and without one nothing is measured and nothing costs.
//
//   profiled_device on(*device);  lm_trainer trainer(settings, data, on, budget);
//   trainer.step(1);  on.profile().clear();  trainer.step(2);  profile_report r = on.profile().read();
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device.hpp"

namespace trainer {

/// Calls of one kind, with what they took together.
struct op_time {
  std::string group{}, name{};  ///< "products", "linear backward"; of attention the name is the site's
  std::int64_t calls = 0;
  double seconds = 0;
  double flop = 0;  ///< of products and of attention's live pairs; 0 where it is not counted
};

struct profile_report {
  std::vector<op_time> ops;  ///< the slowest group first, the slowest of a group first
  double between = 0;        ///< seconds of the queue between one call's end and the next one's beginning
  /// From the first call's beginning to the last one's end.
  double total() const;
};

/// What a site is, for a table: "causal 256x256, 4/2 heads of 32".
std::string site_name(attention_shape const& s);

class op_profile {
 public:
  explicit op_profile(std::unique_ptr<stopwatch> watch) : watch_(std::move(watch)) {}

  /// Runs call() and notes it.
  template <class Call>
  void measure(char const* group, std::string const& name, double flop, Call const& call) {
    if (!is_on_) return call();
    op_time& row = rows_.at(row_of(group, name));
    ++row.calls;
    row.flop += flop;
    watch_->mark();
    call();
    watch_->mark();
  }

  /// Off: calls pass by without a mark.
  void turn(bool on) { is_on_ = on; }
  /// What was measured since the last clear(). Waits for the work.
  profile_report read();
  void clear();

 private:
  std::size_t row_of(char const* group, std::string const& name);

  bool is_on_ = true;
  std::unique_ptr<stopwatch> watch_;
  std::vector<op_time> rows_;
  std::map<std::pair<std::string, std::string>, std::size_t> index_;
  std::vector<std::size_t> order_;  ///< the row of every call
};

/// `inner`, measured. It outlives this.
class profiled_device final : public device {
 public:
  explicit profiled_device(device& inner);
  ~profiled_device() override;
  op_profile& profile() { return profile_; }

  ops<float> const& op() const override;
  dit_ops<float> const& dit() const override;
  ops<float> const& planner() const override { return inner_->planner(); }
  dit_ops<float> const& dit_planner() const override { return inner_->dit_planner(); }
  plan_memory const& memory() const override { return inner_->memory(); }
  memory_budget budget() const override { return inner_->budget(); }
  std::size_t room() const override { return inner_->room(); }
  void give_room(void* room) override { inner_->give_room(room); }
  std::unique_ptr<stopwatch> make_stopwatch() const override { return inner_->make_stopwatch(); }
  std::string describe() const override { return inner_->describe(); }

 private:
  device* inner_;
  op_profile profile_;
  std::unique_ptr<ops<float>> op_;
  std::unique_ptr<dit_ops<float>> dit_;
};

}  // namespace trainer
