// The tiny Qwen3 models of data/, read and ready to run on the batch of a reference there.
#pragma once

#include <algorithm>

#include "../../examples/common/safetensors.hpp"
#include "base_checkpoint.hpp"
#include "support.hpp"

namespace test {

/// A copy of a folder of data.
struct copied {
  scratch dir;
  explicit copied(std::string const& name) {
    for (auto const& entry : std::filesystem::directory_iterator(data(name)))
      std::filesystem::copy(entry.path(), dir.path / entry.path().filename());
  }
};

struct loaded_qwen3 {
  trainer::base_checkpoint base;
  safetensors::file reference;
  trainer::parameter_layout layout;
  trainer::language_model<float> model;
  std::vector<float> full, adapters, gradients, loss, rotary;
  std::vector<lanewise::bf16> half;
  std::vector<std::int32_t> tokens, targets;
  lanewise::thread_pool pool{2};
  trainer::step_memory memory;

  explicit loaded_qwen3(std::string const& name, trainer::attention_kind kind = trainer::attention_kind::exact,
                        trainer::adaptation const& how = {}, std::string const& with_reference = "")
      : base(data(name)),
        reference(safetensors::read(data(with_reference.empty() ? name : with_reference) / "reference.safetensors")),
        layout(base.shape(), how), model(base.shape(), kind, layout), full(std::size_t(layout.full().count())),
        adapters(std::size_t(layout.adapters().count())), gradients(std::size_t(layout.trained().count())), loss(42),
        rotary(std::size_t(21 * base.shape().head_dim)), half(std::size_t(layout.half().count())),
        tokens(safetensors::values<std::int32_t>(safetensors::at(reference, "tokens"))),
        targets(safetensors::values<std::int32_t>(safetensors::at(reference, "targets"))) {
    using trainer::parameter;
    base.load(
        layout,
        [&](parameter const& p, std::span<float const> values) {
          std::copy(values.begin(), values.end(), full.begin() + p.offset);
        },
        [&](parameter const& p, std::span<float const> values) {
          for (std::size_t i = 0; i < values.size(); ++i)
            half[std::size_t(p.offset) + i] = lanewise::from_float<lanewise::bf16>(values[i]);
        });
    trainer::fill_rotary_table(21, base.shape().head_dim, base.shape().rope_theta, rotary.data());
    trainer::cpu_ops<float> const planning(trainer::workers::planning_for(2));
    memory.graph(0);
    model.train(planning, memory, {2, 21, nullptr, nullptr}, {}, nullptr, 0, nullptr, nullptr);
    memory.plan();
    memory.bind();
  }

  /// The mean loss over what has a target; gradients afterwards hold its derivatives.
  double train() {
    auto const count =
        float(std::count_if(targets.begin(), targets.end(), [](int t) { return t != trainer::no_target; }));
    std::fill(gradients.begin(), gradients.end(), 0.f);
    memory.graph(0);
    model.train(trainer::cpu_ops<float>{trainer::workers(pool)}, memory, {2, 21, tokens.data(), targets.data()},
                {full.data(), half.data(), adapters.data()}, rotary.data(), 1 / count, gradients.data(), loss.data());
    double sum = 0;
    for (float l : loss) sum += double(l);
    return sum / double(count);
  }
};

}  // namespace test
