#include "adapter_files.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "error.hpp"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

constexpr std::string_view peft_prefix = "base_model.model.";

/// "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.lokr_w1", and the rest.
std::pair<std::string, std::string> module_and_tensor(std::string const& name) {
  std::size_t const at = std::min(name.rfind(".lora_"), name.rfind(".lokr_"));
  return {name.substr(0, at), name.substr(at)};
}

/// What PEFT calls the site: the last part of its module's name, or all of it where two sites end alike.
std::string target_of(projection_site const& site, std::span<projection_site const> sites) {
  std::string const module = site.module, last = module.substr(module.rfind('.'));
  auto const ends_alike = [&](projection_site const& s) { return std::string(s.module).ends_with(last); };
  return std::ranges::count_if(sites, ends_alike) > 1 ? module : last.substr(1);
}

/// A whole number without a point, as PEFT's own configurations have it.
json number(double value) { return value == double(std::int64_t(value)) ? json(std::int64_t(value)) : json(value); }

}  // namespace

void copy_tensor(safetensors::tensor const& t, parameter const& p, std::span<float> array) {
  std::span<float> const to = part_of(array, p);
  if (t.shape != p.shape)
    throw std::length_error(p.name + ": shape " + safetensors::text_of(t.shape) + ", " + safetensors::text_of(p.shape) +
                            " is needed");
  if (t.dtype != "F32" && t.dtype != "F16" && t.dtype != "BF16")
    throw std::runtime_error(p.name + ": " + t.dtype + ", not F32, F16 or BF16");
  std::vector<float> const values = safetensors::numbers<float>(t);
  if (values.size() != to.size())
    throw std::length_error(p.name + ": " + std::to_string(values.size()) + " elements for " +
                            std::to_string(to.size()));
  std::ranges::copy(values, to.begin());
}

safetensors::file peft_tensors(weight_layout const& layout, std::span<float const> trained) {
  safetensors::file f;
  for (parameter const& p : layout.adapters().all())
    f.tensors[std::string(peft_prefix) + p.name] = safetensors::make<float>(p.shape, part_of(trained, p));
  f.metadata["format"] = "pt";
  return f;
}

std::string peft_config(weight_layout const& layout, std::string const& base, std::string const& task) {
  adaptation const& how = layout.how();
  bool const is_lora = how.adapter.kind == adapter_kind::lora;
  double const alpha = how.adapter.alpha == 0 ? double(how.adapter.dim) : how.adapter.alpha;
  json modules = json::array(), exceptions = json::object();
  for (std::string const& name : how.sites)
    modules.push_back(target_of(
        *std::ranges::find(layout.sites(), name, [](projection_site const& s) { return std::string(s.name); }),
        layout.sites()));
  // PEFT scales a whole w2 by alpha / r as well, which LyCORIS and this program do not.
  layout.for_each_adapter([&](adapter const& a) {
    if (a.scale() != alpha / double(how.adapter.dim)) exceptions[a.module()] = how.adapter.dim;
  });
  nlohmann::ordered_json j{{"peft_type", is_lora ? "LORA" : "LOKR"},
                           {"task_type", task.empty() ? json() : json(task)},
                           {"base_model_name_or_path", base.empty() ? json() : json(base)},
                           {"inference_mode", true},
                           {"target_modules", modules},
                           {"r", how.adapter.dim},
                           {is_lora ? "lora_alpha" : "alpha", number(alpha)},
                           {"rank_pattern", json::object()},
                           {"alpha_pattern", exceptions}};
  if (is_lora) {
    j["lora_dropout"] = 0.0;
    j["bias"] = "none";
    j["fan_in_fan_out"] = false;
    j["use_rslora"] = false;
    j["use_dora"] = false;
  } else {
    j["decompose_factor"] = how.adapter.factor;
    j["decompose_both"] = false;
    j["rank_dropout"] = 0.0;
    j["module_dropout"] = 0.0;
  }
  return j.dump(2) + "\n";
}

safetensors::file lycoris_tensors(weight_layout const& layout, std::span<float const> trained) {
  safetensors::file f;
  auto const name = [](std::string module) {
    std::ranges::replace(module, '.', '_');
    return "lycoris_" + module;
  };
  for (parameter const& p : layout.adapters().all()) {
    auto const [module, tensor] = module_and_tensor(p.name);
    f.tensors[name(module) + tensor] = safetensors::make<float>(p.shape, part_of(trained, p));
  }
  layout.for_each_adapter([&](adapter const& a) {
    f.tensors[name(a.module()) + ".alpha"] =
        safetensors::make<float>({}, std::vector<float>{float(a.scale() * double(layout.how().adapter.dim))});
  });
  f.metadata["format"] = "pt";
  return f;
}

adaptation read_peft_config(fs::path const& directory, std::span<projection_site const> sites) {
  fs::path const path = directory / "adapter_config.json";
  auto const refuse = [&](std::string const& what) { throw bad_base(path.string() + ": " + what); };
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse("cannot open");
  try {
    json const j = json::parse(in);
    adaptation how;
    std::string const type = j.at("peft_type").get<std::string>();
    if (type != "LORA" && type != "LOKR") refuse("peft_type is " + type + ", not LORA or LOKR");
    bool const is_lora = type == "LORA";
    how.adapter.kind = is_lora ? adapter_kind::lora : adapter_kind::lokr;
    how.adapter.dim = j.at("r").get<std::int64_t>();
    how.adapter.alpha = j.at(is_lora ? "lora_alpha" : "alpha").get<double>();
    how.adapter.factor = is_lora ? adapter_settings{}.factor : j.at("decompose_factor").get<std::int64_t>();
    if (how.adapter.dim < 1) refuse("r is " + std::to_string(how.adapter.dim));
    if (how.adapter.factor == 0 || how.adapter.factor < -1) refuse("decompose_factor is not -1 or above 0");
    for (char const* key : {"use_dora", "use_rslora", "lora_bias", "decompose_both", "fan_in_fan_out"})
      if (j.contains(key) && j.at(key) == true) refuse(std::string(key) + " is set");
    if (j.contains("bias") && j.at("bias") != "none") refuse("bias is " + j.at("bias").dump());
    if (j.contains("rank_pattern") && !j.at("rank_pattern").empty()) refuse("rank_pattern is not empty");
    for (json const& module : j.at("target_modules")) {
      auto const name = module.get<std::string>();
      auto const site = std::ranges::find_if(
          sites, [&](projection_site const& s) { return name == s.module || name == target_of(s, sites); });
      if (site == sites.end()) refuse("target module " + module.dump() + " has no adapter here");
      how.sites.push_back(site->name);
    }
    return how;
  } catch (json::exception const& e) {
    throw bad_base(path.string() + ": " + e.what());
  }
}

void read_peft_tensors(fs::path const& directory, weight_layout const& layout, std::span<float> trained) {
  fs::path const path = directory / "adapter_model.safetensors";
  try {
    safetensors::file const f = safetensors::read(path);
    if (f.tensors.size() != layout.adapters().all().size())
      throw std::length_error("it has " + std::to_string(f.tensors.size()) + " tensors, this model's adapters have " +
                              std::to_string(layout.adapters().all().size()));
    for (parameter const& p : layout.adapters().all())
      copy_tensor(safetensors::at(f, std::string(peft_prefix) + p.name), p, trained);
  } catch (std::length_error const& e) {
    throw bad_base(path.string() + ": " + e.what());
  } catch (std::runtime_error const& e) {
    throw bad_base(e.what());
  }
}

}  // namespace trainer
