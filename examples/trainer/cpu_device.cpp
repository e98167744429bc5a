#include <chrono>
#include <fstream>

#include "device.hpp"
#include "error.hpp"

namespace trainer {
namespace {

/// Work is done when its call returns, so that a moment is the clock's.
class clock_stopwatch final : public stopwatch {
 public:
  void mark() override { marks_.push_back(clock::now()); }
  std::vector<double> laps() override {
    std::vector<double> seconds;
    for (std::size_t i = 1; i < marks_.size(); ++i)
      seconds.push_back(std::chrono::duration<double>(marks_[i] - marks_[i - 1]).count());
    marks_.clear();
    return seconds;
  }

 private:
  using clock = std::chrono::steady_clock;
  std::vector<clock::time_point> marks_;
};

class cpu_device final : public device {
 public:
  explicit cpu_device(int threads)
      : pool_(threads), op_(workers(pool_)), planner_(workers::planning_for(threads)), dit_(workers(pool_)),
        dit_planner_(workers::planning_for(threads)), threads_(threads) {}
  ops<float> const& op() const override { return op_; }
  dit_ops<float> const& dit() const override { return dit_; }
  ops<float> const& planner() const override { return planner_; }
  dit_ops<float> const& dit_planner() const override { return dit_planner_; }
  plan_memory const& memory() const override { return host_memory(); }
  memory_budget budget() const override {
    std::ifstream in("/proc/meminfo");
    std::string name;
    for (std::size_t kibibytes; in >> name >> kibibytes; in.ignore(64, '\n'))
      if (name == "MemAvailable:") return {kibibytes * 1024, std::size_t(256) << 20};
    throw out_of_memory("/proc/meminfo does not say what is available; give a budget with --memory-mb");
  }
  std::size_t room() const override { return 0; }
  void give_room(void*) override {}
  std::unique_ptr<stopwatch> make_stopwatch() const override { return std::make_unique<clock_stopwatch>(); }
  std::string describe() const override { return "CPU, " + std::to_string(threads_) + " threads"; }

 private:
  lanewise::thread_pool pool_;
  cpu_ops<float> op_, planner_;
  cpu_dit_ops<float> dit_, dit_planner_;
  int threads_;
};

}  // namespace

std::unique_ptr<device> make_cpu_device(int threads) { return std::make_unique<cpu_device>(threads); }

}  // namespace trainer
