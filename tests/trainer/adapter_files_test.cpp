// Adapters in PEFT's and LyCORIS's layouts: PEFT's own files give PEFT's loss and gradients (data/README.md), and what
// is written is read back to the same bits.
#include "adapter_files.hpp"

#include <nlohmann/json.hpp>

#include "error.hpp"
#include "loaded_qwen3.hpp"

using namespace trainer;
using test::copied, test::has, test::loaded_qwen3, test::relative_error;
using json = nlohmann::json;

namespace {

template <class F>
std::string error_of(F const& f) {
  try {
    f();
  } catch (named_error const& e) {
    return e.name + ": " + e.what();
  } catch (std::length_error const& e) {
    return std::string("length: ") + e.what();
  }
  return "no error";
}

std::vector<std::string> const all_sites{"q", "k", "v", "o", "gate", "up", "down"};

/// LoRA; LoKR with whole, with mixed and with factorised w2; on all sites and on some.
std::vector<adaptation> every_adaptation() {
  return {{{adapter_kind::lora, 3, 5, 0}, all_sites, mirror::f32},
          {{adapter_kind::lora, 8, 0, 0}, {"q", "down"}, mirror::f32},
          {{adapter_kind::lokr, 512, 7, 6}, all_sites, mirror::f32},
          {{adapter_kind::lokr, 12, 30, 4}, all_sites, mirror::f32},
          {{adapter_kind::lokr, 2, 3, -1}, {"v", "o", "gate"}, mirror::f32}};
}

void write(std::filesystem::path const& folder, parameter_layout const& layout, std::span<float const> trained) {
  safetensors::write(folder / "adapter_model.safetensors", peft_tensors(layout, trained));
  std::ofstream(folder / "adapter_config.json") << peft_config(layout, "qwen3_tied", "CAUSAL_LM");
  if (layout.how().adapter.kind == adapter_kind::lokr)
    safetensors::write(folder / "lycoris.safetensors", lycoris_tensors(layout, trained));
}

}  // namespace

TEST_CASE("an adapter that PEFT wrote gives PEFT's loss and gradients") {
  for (char const* const name : {"peft_lora", "peft_lokr"})
    for (attention_kind const kind : {attention_kind::exact, attention_kind::flash}) {
      CAPTURE(name);
      loaded_qwen3 m("qwen3_tied", kind, read_peft_config(test::data(name), lm_sites), name);
      read_peft_tensors(test::data(name), m.layout, m.adapters);
      double const expected = safetensors::numbers<double>(safetensors::at(m.reference, "loss"))[0];
      CHECK(std::abs(m.train() - expected) <= 1e-5);
      REQUIRE(m.reference.tensors.size() == m.layout.adapters().all().size() + 3);
      for (parameter const& p : m.layout.adapters().all()) {
        CAPTURE(p.name);
        std::vector<float> const ours(m.gradients.begin() + p.offset, m.gradients.begin() + p.offset + p.count);
        std::string const theirs = "gradient.base_model.model." + p.name;
        CHECK(relative_error(ours, safetensors::numbers<double>(safetensors::at(m.reference, theirs))) <= 1e-4);
      }
    }
}

TEST_CASE("what is written is read back to the same bits, for every kind and shape") {
  for (adaptation const& how : every_adaptation()) {
    test::scratch dir;
    loaded_qwen3 m("qwen3_tied", attention_kind::exact, how);
    m.adapters = test::normal<float>(m.adapters.size(), 5, 0.2);
    double const loss = m.train();
    write(dir.path, m.layout, m.adapters);

    adaptation const read = read_peft_config(dir.path, lm_sites);
    CHECK(read.adapter.kind == how.adapter.kind);
    loaded_qwen3 again("qwen3_tied", attention_kind::exact, read);
    read_peft_tensors(dir.path, again.layout, again.adapters);
    CHECK(again.adapters == m.adapters);
    CHECK(again.train() == loss);
    CHECK(again.loss == m.loss);
    CHECK(again.gradients == m.gradients);
    loaded_qwen3 plain("qwen3_tied");
    CHECK(std::abs(plain.train() - loss) > 1e-3);  // the adapter does change something
  }
}

TEST_CASE("a file for PEFT scales as this program does, LyCORIS's says its alpha") {
  parameter_layout const layout(base_checkpoint(test::data("qwen3_tied")).shape(), every_adaptation()[3]);
  json const config = json::parse(peft_config(layout, "base", "CAUSAL_LM"));
  CHECK(config.at("alpha") == 30);
  CHECK(config.at("decompose_factor") == 4);
  // dim 12: k and v (48 -> 64) have a whole w2 of 16 x 12, which alpha does not scale; q's of 32 x 12 is factorised.
  CHECK(config.at("alpha_pattern").at("model.layers.1.self_attn.k_proj") == 12);
  CHECK_FALSE(config.at("alpha_pattern").contains("model.layers.1.self_attn.q_proj"));
  std::vector<float> const trained(std::size_t(layout.adapters().count()));
  safetensors::file const f = lycoris_tensors(layout, trained);
  auto const alpha = [&](char const* module) {
    return safetensors::numbers<double>(safetensors::at(f, std::string("lycoris_model_layers_0_") + module + ".alpha"));
  };
  CHECK(alpha("self_attn_q_proj") == std::vector<double>{30});
  CHECK(alpha("self_attn_k_proj") == std::vector<double>{12});
  CHECK(f.tensors.contains("lycoris_model_layers_1_self_attn_o_proj.lokr_w2_b"));
  CHECK(f.tensors.size() == layout.adapters().all().size() + 14);
}

TEST_CASE("a copy that does not fit is an error, and writes nothing") {
  parameter const p{"w", {2, 3}, 4, 6, true};
  std::vector<float> array(10, 7.f);
  auto const tensor = [](std::vector<std::int64_t> shape, std::size_t count) {
    return safetensors::make<float>(std::move(shape), std::vector<float>(count, 1.f));
  };
  CHECK(error_of([&] { copy_tensor(tensor({2, 3}, 6), p, array); }) == "no error");
  CHECK(array == std::vector<float>{7, 7, 7, 7, 1, 1, 1, 1, 1, 1});
  array.assign(9, 7.f);  // one element short of where w ends
  CHECK(error_of([&] { copy_tensor(tensor({2, 3}, 6), p, array); }) == "length: w: elements 4 to 10 of an array of 9");
  CHECK(error_of([&] { copy_tensor(tensor({2, 4}, 8), p, array); }) == "length: w: elements 4 to 10 of an array of 9");
  array.assign(12, 7.f);
  CHECK(error_of([&] { copy_tensor(tensor({2, 4}, 8), p, array); }) == "length: w: shape [2, 4], [2, 3] is needed");
  CHECK(error_of([&] { copy_tensor(tensor({3, 2}, 6), p, array); }) == "length: w: shape [3, 2], [2, 3] is needed");
  CHECK(array == std::vector<float>(12, 7.f));
  parameter_layout const layout(base_checkpoint(test::data("qwen3_tied")).shape(), every_adaptation()[0]);
  std::vector<float> const small(std::size_t(layout.adapters().count() - 1));
  CHECK(has(error_of([&] { peft_tensors(layout, small); }), "length: "));
}

TEST_CASE("adapters that this program would compute otherwise, or that are not whole, are refused by name") {
  auto const config = [](auto const& change) {
    copied const c("peft_lora");
    json j = json::parse(std::ifstream(c.dir.path / "adapter_config.json"));
    change(j);
    c.dir.write("adapter_config.json", j.dump());
    return error_of([&] { read_peft_config(c.dir.path, lm_sites); });
  };
  CHECK(config([](json&) {}) == "no error");
  CHECK(has(config([](json& j) { j["peft_type"] = "LOHA"; }), "bad-base: "));
  CHECK(has(config([](json& j) { j["use_dora"] = true; }), "use_dora is set"));
  CHECK(has(config([](json& j) { j["use_rslora"] = true; }), "use_rslora is set"));
  CHECK(has(config([](json& j) { j["r"] = 0; }), "r is 0"));
  CHECK(has(config([](json& j) { j["rank_pattern"] = {{"q_proj", 4}}; }), "rank_pattern is not empty"));
  CHECK(has(config([](json& j) { j["target_modules"] = {"lm_head"}; }), "\"lm_head\" has no adapter here"));
  CHECK(has(config([](json& j) { j.erase("target_modules"); }), "target_modules"));
  CHECK(has(error_of([] { read_peft_config("nowhere", lm_sites); }),
            "bad-base: nowhere/adapter_config.json: cannot open"));

  auto const tensors = [](auto const& spoil) {
    copied const c("peft_lora");
    spoil(c.dir.path / "adapter_model.safetensors");
    parameter_layout const layout(base_checkpoint(test::data("qwen3_tied")).shape(),
                                  read_peft_config(c.dir.path, lm_sites));
    std::vector<float> trained(std::size_t(layout.adapters().count()));
    return error_of([&] { read_peft_tensors(c.dir.path, layout, trained); });
  };
  using path = std::filesystem::path;
  CHECK(tensors([](path const&) {}) == "no error");
  CHECK(has(tensors([](path const& p) { std::filesystem::resize_file(p, 9'000); }), "bad-base: "));
  CHECK(has(tensors([](path const& p) { std::filesystem::remove(p); }), "cannot open"));
  CHECK(has(tensors([](path const& p) {
              safetensors::file f = safetensors::read(p);
              f.tensors.erase(f.tensors.begin());
              safetensors::write(p, f);
            }),
            "it has 19 tensors, this model's adapters have 20"));
  CHECK(has(
      tensors([](path const& p) {
        safetensors::file f = safetensors::read(p);
        f.tensors.begin()->second.shape = {1, f.tensors.begin()->second.shape[0] * f.tensors.begin()->second.shape[1]};
        safetensors::write(p, f);
      }),
      "is needed"));
}
