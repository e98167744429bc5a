// A checkpoint of Hugging Face's, read and run: loss and gradients against transformers' (data/README.md), and what a
// checkpoint may not be.
#include <nlohmann/json.hpp>

#include "error.hpp"
#include "loaded_qwen3.hpp"

using namespace trainer;
using test::copied, test::has, test::loaded_qwen3, test::relative_error;
using json = nlohmann::json;

namespace {

/// A copy of a checkpoint, to be spoiled.
struct copied_model : copied {
  using copied::copied;
  template <class F>
  void change_config(F const& f) const {
    json j = json::parse(std::ifstream(dir.path / "config.json"));
    f(j);
    dir.write("config.json", j.dump());
  }
  template <class F>
  void change_tensors(F const& f) const {
    safetensors::file file = safetensors::read(dir.path / "model.safetensors");
    f(file.tensors);
    safetensors::write(dir.path / "model.safetensors", file);
  }
  std::string error() const {
    try {
      base_checkpoint const base(dir.path);
      base.load(parameter_layout(base.shape()), [](parameter const&, std::span<float const>) {}, {});
    } catch (named_error const& e) {
      return e.name + ": " + e.what();
    }
    return "no error";
  }
};

}  // namespace

TEST_CASE("loss and gradients are transformers', for a tied bf16 model and an untied one in shards") {
  for (char const* const name : {"qwen3_tied", "qwen3_untied"})
    for (attention_kind const kind : {attention_kind::exact, attention_kind::flash}) {
      CAPTURE(name);
      loaded_qwen3 m(name, kind);
      double const expected = safetensors::numbers<double>(safetensors::at(m.reference, "loss"))[0];
      CHECK(std::abs(m.train() - expected) <= 1e-5);
      REQUIRE(m.reference.tensors.size() == m.layout.full().all().size() + 3);
      for (parameter const& p : m.layout.full().all()) {
        CAPTURE(p.name);
        std::vector<float> const ours(m.gradients.begin() + p.offset, m.gradients.begin() + p.offset + p.count);
        CHECK(relative_error(ours, safetensors::numbers<double>(safetensors::at(m.reference, "gradient." + p.name))) <=
              1e-4);
      }
    }
}

TEST_CASE("config.json: the sizes, and what is not computed here is refused") {
  base_checkpoint const tied(test::data("qwen3_tied")), untied(test::data("qwen3_untied"));
  CHECK(tied.shape() == model_shape{.vocabulary = 120,
                                    .layers = 2,
                                    .hidden = 48,
                                    .q_heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = 32,
                                    .ffn = 80,
                                    .rope_theta = 500,
                                    .epsilon = 1e-5,
                                    .tied = true});
  CHECK(untied.shape().rope_theta == 1e6);
  CHECK_FALSE(untied.shape().tied);
  CHECK(tied.positions() == 64);
  CHECK(tied.separator() == 0);
  auto const error = [](auto const& change) {
    copied_model const c("qwen3_tied");
    c.change_config(change);
    return c.error();
  };
  CHECK(error([](json&) {}) == "no error");
  CHECK(error([](json& j) {
          j.erase("rope_parameters");
          j["rope_theta"] = 500.0;
        }) == "no error");
  CHECK(has(error([](json& j) { j["model_type"] = "llama"; }), "bad-base: "));
  CHECK(has(error([](json& j) { j["model_type"] = "llama"; }), "model_type is \"llama\", not qwen3"));
  CHECK(has(error([](json& j) { j["attention_bias"] = true; }), "attention_bias is set"));
  CHECK(has(error([](json& j) { j["use_sliding_window"] = true; }), "use_sliding_window is set"));
  CHECK(has(error([](json& j) { j["layer_types"][1] = "sliding_attention"; }), "not full_attention"));
  CHECK(has(error([](json& j) { j["rope_parameters"]["rope_type"] = "yarn"; }), "rope_type is \"yarn\""));
  CHECK(has(error([](json& j) { j["rope_scaling"] = {{"rope_type", "yarn"}}; }), "rope_scaling is set"));
  CHECK(has(error([](json& j) { j["max_position_embeddings"] = 0; }), "max_position_embeddings is 0"));
  CHECK(has(error([](json& j) { j["rms_norm_eps"] = -1e-6; }), "rms_norm_eps is below 0"));
  CHECK(has(error([](json& j) { (j.contains("rope_parameters") ? j["rope_parameters"] : j)["rope_theta"] = 0; }),
            "rope_theta is not above 0"));
  CHECK(has(error([](json& j) { j["hidden_act"] = "gelu"; }), "hidden_act is \"gelu\", not silu"));
  CHECK(has(error([](json& j) { j["num_key_value_heads"] = 3; }), "does not divide"));
  CHECK(has(error([](json& j) { j["hidden_size"] = -4; }), "hidden_size is -4"));
  CHECK(has(error([](json& j) { j["hidden_size"] = "many"; }), "bad-base: "));
  CHECK(has(error([](json& j) { j.erase("num_hidden_layers"); }), "num_hidden_layers"));
}

TEST_CASE("a checkpoint that is missing, cut short or another model's is refused by name") {
  CHECK(has(copied_model("qwen3_tied").error(), "no error"));
  auto const spoiled = [](char const* model, auto const& spoil) {
    copied_model const c(model);
    spoil(c);
    return c.error();
  };
  CHECK(has(
      spoiled("qwen3_tied", [](copied_model const& c) { std::filesystem::remove(c.dir.path / "model.safetensors"); }),
      "model.safetensors: cannot open"));
  CHECK(has(spoiled("qwen3_tied", [](copied_model const& c) { std::filesystem::remove(c.dir.path / "config.json"); }),
            "config.json: cannot open"));
  CHECK(has(spoiled("qwen3_tied", [](copied_model const& c) { c.dir.write("config.json", "{"); }), "bad-base: "));
  CHECK(has(
      spoiled("qwen3_tied",
              [](copied_model const& c) { std::filesystem::resize_file(c.dir.path / "model.safetensors", 100'000); }),
      "bad-base: "));
  CHECK(has(
      spoiled("qwen3_untied",
              [](copied_model const& c) { std::filesystem::remove(c.dir.path / "model-00002-of-00003.safetensors"); }),
      "model-00002-of-00003.safetensors: cannot open"));
  CHECK(has(spoiled("qwen3_untied",
                    [](copied_model const& c) {
                      c.dir.write("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../b\"}}");
                    }),
            "the file of a is \"../b\""));
  auto const tensors = [&](auto const& change) {
    return spoiled("qwen3_tied", [&](copied_model const& c) { c.change_tensors(change); });
  };
  std::string const down = "model.layers.1.mlp.down_proj.weight", norm = "model.norm.weight";
  CHECK(has(tensors([&](auto& t) { t.erase(down); }), "no tensor " + down));
  CHECK(has(tensors([&](auto& t) { t["model.layers.0.self_attn.q_proj.bias"] = t[norm]; }),
            "q_proj.bias is not part of this model"));
  CHECK(has(tensors([&](auto& t) { t[down].shape = {80, 48}; }), "has shape [80, 48], config.json says [48, 80]"));
  CHECK(has(tensors([&](auto& t) { t[norm] = safetensors::make<std::int32_t>({48}, std::vector<std::int32_t>(48)); }),
            "is I32, not F32, F16 or BF16"));
  CHECK(has(tensors([&](auto& t) { t["lm_head.weight"] = t["model.embed_tokens.weight"]; }), "no error"));
}
