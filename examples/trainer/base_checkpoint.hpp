// A Qwen3 checkpoint of Hugging Face's, read from its directory: config.json, and the tensors of model.safetensors or
// of the shards that model.safetensors.index.json names, in f32, f16 or bf16. What this program would compute otherwise
// than transformers does (biases, sliding windows, scaled rotary embeddings) is refused, never ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "model.hpp"

namespace trainer {

class base_checkpoint {
 public:
  /// Reads config.json and learns where the tensors are. Throws bad-base, naming the file and what is wrong.
  explicit base_checkpoint(std::filesystem::path directory);

  model_shape const& shape() const { return shape_; }
  std::filesystem::path const& directory() const { return directory_; }
  /// Positions that the model was made for.
  std::int64_t positions() const { return positions_; }
  /// The id between documents: eos_token_id of config.json, the first where there are several; -1: none.
  std::int64_t separator() const { return separator_; }

  /// Calls place(parameter, its elements in f32) once for every tensor of the lists, one tensor in memory at a time.
  /// Throws bad-base where one is missing, has another shape or is not a floating-point tensor, or where the checkpoint
  /// has a tensor that neither list has.
  using place = std::function<void(parameter const&, std::span<float const>)>;
  void load(parameter_layout const& layout, place const& in_full, place const& in_half) const;

 private:
  std::filesystem::path directory_;
  model_shape shape_;
  std::int64_t positions_ = 0, separator_ = -1;
  std::map<std::string, std::filesystem::path> files_;  ///< of each tensor
};

}  // namespace trainer
