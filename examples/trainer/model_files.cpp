#include "model_files.hpp"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "adapter_files.hpp"
#include "checkpoint.hpp"

namespace trainer {

void save_model(run_directory const& directory, lm_settings const& settings, lm_trainer const& run) {
  model_shape const s = settings.model();
  safetensors::file f = weights_of(run);
  f.metadata["format"] = "pt";  // what transformers expects of a safetensors file
  directory.write("model.safetensors", f);
  nlohmann::ordered_json const config{{"architectures", {"Qwen3ForCausalLM"}},
                                      {"model_type", "qwen3"},
                                      {"vocab_size", s.vocabulary},
                                      {"hidden_size", s.hidden},
                                      {"intermediate_size", s.ffn},
                                      {"num_hidden_layers", s.layers},
                                      {"num_attention_heads", s.q_heads},
                                      {"num_key_value_heads", s.kv_heads},
                                      {"head_dim", s.head_dim},
                                      {"max_position_embeddings", run.positions()},
                                      {"eos_token_id", run.words().separator()},
                                      {"rms_norm_eps", s.epsilon},
                                      {"rope_theta", s.rope_theta},
                                      {"hidden_act", "silu"},
                                      {"attention_bias", false},
                                      {"tie_word_embeddings", s.tied},
                                      {"torch_dtype", "float32"}};
  directory.write("config.json", config.dump(2) + "\n");
  if (run.words().is_bytes()) return;
  std::ifstream in(std::filesystem::path(settings.base) / "tokenizer.json", std::ios::binary);
  directory.write("tokenizer.json", {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()});
}

void save_adapter(run_directory const& directory, weight_layout const& layout, std::span<float const> trained,
                  std::string const& base, std::string const& task) {
  directory.write("adapter_model.safetensors", peft_tensors(layout, trained));
  directory.write("adapter_config.json", peft_config(layout, base, task));
  if (layout.how().adapter.kind == adapter_kind::lokr)
    directory.write("lycoris.safetensors", lycoris_tensors(layout, trained));
}

}  // namespace trainer
