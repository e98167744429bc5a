// The files that a finished language model leaves:
//
//   model.safetensors, config.json  the final weights, as Hugging Face's Qwen3 has them, and its tokenizer.json if the
//                                   base has one; or, where the base was frozen, the adapter alone:
//   adapter_model.safetensors, adapter_config.json, lycoris.safetensors     as PEFT and LyCORIS read them
#pragma once

#include "lm_trainer.hpp"
#include "run_directory.hpp"

namespace trainer {

/// The files of the final model, or of its adapter.
void save_model(run_directory const& directory, lm_settings const& settings, lm_trainer const& run);
/// base, task: as peft_config says. trained: the array of layout.adapters().
void save_adapter(run_directory const& directory, weight_layout const& layout, std::span<float const> trained,
                  std::string const& base, std::string const& task);

}  // namespace trainer
