#include "base_checkpoint.hpp"

#include <fstream>
#include <nlohmann/json.hpp>

#include "../common/safetensors.hpp"
#include "error.hpp"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

json parse(fs::path const& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw bad_base(path.string() + ": cannot open");
  try {
    return json::parse(in);
  } catch (json::exception const& e) {
    throw bad_base(path.string() + ": " + e.what());
  }
}

safetensors::reader open(fs::path const& path) {
  try {
    return safetensors::reader(path);
  } catch (std::runtime_error const& e) {
    throw bad_base(e.what());
  }
}

/// The sizes that config.json states. Older files have rope_theta beside them, newer ones in rope_parameters.
model_shape shape_of(json const& j, std::string const& name) {
  auto const refuse = [&](std::string const& what) { throw bad_base(name + ": " + what); };
  auto const size = [&](char const* key) {
    auto const value = j.at(key).get<std::int64_t>();
    constexpr std::int64_t most = 1 << 24;
    if (value < 1 || value > most) refuse(std::string(key) + " is " + std::to_string(value));
    return value;
  };
  if (j.at("model_type") != "qwen3") refuse("model_type is " + j.at("model_type").dump() + ", not qwen3");
  if (j.value("hidden_act", "silu") != "silu") refuse("hidden_act is " + j.at("hidden_act").dump() + ", not silu");
  if (j.value("attention_bias", false)) refuse("attention_bias is set");
  if (j.value("use_sliding_window", false)) refuse("use_sliding_window is set");
  for (json const& type : j.value("layer_types", json::array()))
    if (type != "full_attention") refuse("a layer's type is " + type.dump() + ", not full_attention");
  json const rope = j.value("rope_parameters", json::object()), scaling = j.value("rope_scaling", json());
  if (!scaling.is_null() && scaling.value("rope_type", "default") != "default") refuse("rope_scaling is set");
  if (rope.value("rope_type", "default") != "default") refuse("rope_type is " + rope.at("rope_type").dump());

  model_shape const s{.vocabulary = size("vocab_size"),
                      .layers = size("num_hidden_layers"),
                      .hidden = size("hidden_size"),
                      .q_heads = size("num_attention_heads"),
                      .kv_heads = size("num_key_value_heads"),
                      .head_dim = j.contains("head_dim") ? size("head_dim") : 128,  // transformers' default for Qwen3
                      .ffn = size("intermediate_size"),
                      .rope_theta = rope.contains("rope_theta") ? rope.at("rope_theta").get<double>()
                                                                : j.at("rope_theta").get<double>(),
                      .epsilon = j.at("rms_norm_eps").get<double>(),
                      .tied = j.value("tie_word_embeddings", false)};
  if (s.q_heads % s.kv_heads != 0) refuse("num_key_value_heads does not divide num_attention_heads");
  if (!(s.rope_theta > 0)) refuse("rope_theta is not above 0");
  if (!(s.epsilon >= 0)) refuse("rms_norm_eps is below 0");
  if (s.head_dim % 2 != 0 || s.head_dim > 256) refuse("head_dim is not an even number up to 256");
  return s;
}

}  // namespace

base_checkpoint::base_checkpoint(fs::path directory) : directory_(std::move(directory)) {
  if (!fs::is_directory(directory_)) throw bad_base("--base: there is no directory " + directory_.string());
  fs::path const config = directory_ / "config.json", whole = directory_ / "model.safetensors",
                 index = directory_ / "model.safetensors.index.json";
  json const j = parse(config);
  try {
    shape_ = shape_of(j, config.string());
    positions_ = j.value("max_position_embeddings", std::int64_t(32768));  // transformers' default for Qwen3
    if (positions_ < 1) throw bad_base(config.string() + ": max_position_embeddings is " + std::to_string(positions_));
    json const end = j.value("eos_token_id", json());
    if (end.is_number_integer()) separator_ = end.get<std::int64_t>();
    if (end.is_array() && !end.empty()) separator_ = end.at(0).get<std::int64_t>();
  } catch (json::exception const& e) {
    throw bad_base(config.string() + ": " + e.what());
  }
  if (fs::exists(index)) {
    json const map = parse(index);
    if (!map.contains("weight_map") || !map.at("weight_map").is_object())
      throw bad_base(index.string() + ": no weight_map");
    for (auto const& [tensor, file] : map.at("weight_map").items()) {
      if (!file.is_string() || fs::path(file.get<std::string>()).has_parent_path())
        throw bad_base(index.string() + ": the file of " + tensor + " is " + file.dump());
      files_.emplace(tensor, directory_ / file.get<std::string>());
    }
  } else {
    for (std::string const& tensor : open(whole).names()) files_.emplace(tensor, whole);
  }
}

void base_checkpoint::load(parameter_layout const& layout, place const& in_full, place const& in_half) const {
  std::map<std::string, std::pair<parameter const*, place const*>> wanted;
  for (parameter const& p : layout.full().all()) wanted.emplace(p.name, std::pair(&p, &in_full));
  for (parameter const& p : layout.half().all()) wanted.emplace(p.name, std::pair(&p, &in_half));
  for (auto const& [name, file] : files_)
    if (!wanted.contains(name) && !(shape_.tied && name == "lm_head.weight"))
      throw bad_base(file.string() + ": tensor " + name + " is not part of this model");

  std::map<fs::path, safetensors::reader> open_files;
  for (auto const& [name, to] : wanted) {
    auto const [p, put] = to;
    auto const file = files_.find(name);
    if (file == files_.end()) throw bad_base(directory_.string() + ": no tensor " + name);
    auto at = open_files.find(file->second);
    if (at == open_files.end()) at = open_files.emplace(file->second, open(file->second)).first;
    try {
      safetensors::tensor const t = at->second.read(name);
      if (t.shape != p->shape)
        throw bad_base(file->second.string() + ": tensor " + name + " has shape " + safetensors::text_of(t.shape) +
                       ", config.json says " + safetensors::text_of(p->shape));
      if (t.dtype != "F32" && t.dtype != "F16" && t.dtype != "BF16")
        throw bad_base(file->second.string() + ": tensor " + name + " is " + t.dtype + ", not F32, F16 or BF16");
      (*put)(*p, safetensors::numbers<float>(t));
    } catch (named_error const&) {
      throw;
    } catch (std::runtime_error const& e) {
      throw bad_base(e.what());
    }
  }
}

}  // namespace trainer
