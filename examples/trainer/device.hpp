// What a run computes on: the CPU, or a GPU. It owns the queue of work, and says what memory there is.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dit_ops.hpp"
#include "ops.hpp"
#include "step_memory.hpp"

namespace trainer {

/// What memory there is for a plan, in bytes.
struct memory_budget {
  std::size_t free, reserve;  ///< the plan may take free - reserve
};

/// Moments in a device's queue of work, and the times between them.
class stopwatch {
 public:
  virtual ~stopwatch() = default;
  /// The moment when all that is queued so far is done.
  virtual void mark() = 0;
  /// Seconds from each mark to the next, and forgets them; waits for the last.
  virtual std::vector<double> laps() = 0;
};

class device {
 public:
  virtual ~device() = default;
  virtual ops<float> const& op() const = 0;
  virtual dit_ops<float> const& dit() const = 0;
  /// The same ops while a plan is recorded.
  virtual ops<float> const& planner() const = 0;
  virtual dit_ops<float> const& dit_planner() const = 0;
  virtual plan_memory const& memory() const = 0;
  /// What is free now, and how much of it is to be left alone.
  virtual memory_budget budget() const = 0;
  /// Bytes of memory() that op() works in as long as it runs; planned with the rest, then given once. 0: none.
  virtual std::size_t room() const = 0;
  virtual void give_room(void* room) = 0;
  virtual std::unique_ptr<stopwatch> make_stopwatch() const = 0;
  /// For the log: what it is.
  virtual std::string describe() const = 0;
};

/// The CPU with so many threads. The result does not depend on their number.
std::unique_ptr<device> make_cpu_device(int threads);

/// How products and attention read f32 numbers on a GPU. Sums are f32.
enum class arithmetic {
  f32,        ///< as they are
  f32_split,  ///< attention by lanewise as two f16 limbs, 22 bits: f32-class on the tensor cores; the rest as they are
  tf32,       ///< rounded to 10 bits of mantissa: several times faster
  bf16        ///< attention by lanewise rounded to 7 bits, the rest as tf32
};
inline constexpr std::pair<arithmetic, char const*> all_arithmetic[] = {{arithmetic::f32, "f32"},
                                                                        {arithmetic::f32_split, "f32_split"},
                                                                        {arithmetic::tf32, "tf32"},
                                                                        {arithmetic::bf16, "bf16"}};
constexpr char const* name_of(arithmetic a) {
  for (auto const& [value, name] : all_arithmetic)
    if (value == a) return name;
  return "unknown";
}

/// The current NVIDIA GPU. Throws no-device where there is none, or where the program was built without CUDA.
std::unique_ptr<device> make_cuda_device(arithmetic how);

}  // namespace trainer
