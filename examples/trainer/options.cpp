#include "options.hpp"

#include <algorithm>
#include <limits>

#include "adapter_files.hpp"
#include "base_checkpoint.hpp"
#include "option_table.hpp"

namespace trainer {
namespace {

void check(lm_settings const& s) {
  require_not_negative(s, [](field const& f, double value) { return std::string(f.name) == "factor" && value == -1; });
  require_at_most("context", s.context, largest_size);
  require_at_most("rank", s.rank, largest_size);
  check_run(s, s.context, "context");
  require(s.ablate == "none" || s.ablate == "attention", "--ablate: " + s.ablate + " is neither none nor attention");
  require(s.adapter == "none" || s.adapter == "lora" || s.adapter == "lokr",
          "--adapter: " + s.adapter + " is none of none, lora, lokr");
  require(s.adapter == "none" || !s.base.empty(), "--adapter " + s.adapter + " needs a --base to adapt");
  require(s.mirror == "f32" || s.mirror == "bf16" || s.mirror == "bf16-f32",
          "--mirror: " + s.mirror + " is none of f32, bf16, bf16-f32");
  require(s.mirror == "f32" || s.adapter != "none", "--mirror " + s.mirror + ": only frozen weights are mirrored");
  for (std::string const& site : s.adapted().sites)
    require(std::ranges::find(projection_sites, site) != std::end(projection_sites),
            "--sites: " + site + " is none of q, k, v, o, gate, up, down");
  require(s.documents == "file" || s.documents == "percent",
          "--documents: " + s.documents + " is neither file nor percent");
}

/// What comes from files: the sizes of --base, and what --adapter-from says. What the user set must say the same.
void take_base(lm_settings& s, lm_options const& o) {
  auto const take = [](char const* name, auto& value, auto const& asked, auto const& found, std::string const& from) {
    if (asked && *asked != found)
      throw bad_option(std::string("--") + name + " " + text_of(*asked) + ", but " + from + " has " + text_of(found));
    value = found;
  };
  if (!s.base.empty()) {
    base_checkpoint const base(s.base);
    model_shape const& m = base.shape();
    take("layers", s.layers, o.layers, m.layers, s.base);
    take("hidden", s.hidden, o.hidden, m.hidden, s.base);
    take("heads", s.heads, o.heads, m.q_heads, s.base);
    take("kv-heads", s.kv_heads, o.kv_heads, m.kv_heads, s.base);
    take("head-dim", s.head_dim, o.head_dim, m.head_dim, s.base);
    take("ffn", s.ffn, o.ffn, m.ffn, s.base);
    s.vocabulary_size = m.vocabulary;
    s.rope_theta = m.rope_theta;
    s.norm_epsilon = m.epsilon;
    s.tied = m.tied;
    if (!o.context) s.context = std::min(s.context, base.positions());
    require(s.context <= base.positions(),
            "--context: " + text_of(s.context) + " is more than the " + text_of(base.positions()) + " of " + s.base);
  }
  if (s.adapter_from.empty()) return;
  adaptation const found = read_peft_config(s.adapter_from);
  std::string sites;
  for (std::string const& site : found.sites) sites += (sites.empty() ? "" : ",") + site;
  std::string const kind = found.adapter.kind == adapter_kind::lora ? "lora" : "lokr";
  take("adapter", s.adapter, o.adapter, kind, s.adapter_from);
  take("rank", s.rank, o.rank, found.adapter.dim, s.adapter_from);
  take("alpha", s.alpha, o.alpha, found.adapter.alpha, s.adapter_from);
  take("factor", s.factor, o.factor, found.adapter.factor, s.adapter_from);
  take("sites", s.sites, o.sites, sites, s.adapter_from);
}

}  // namespace

adaptation lm_settings::adapted() const {
  adaptation how;
  if (adapter == "none") return how;
  how.adapter = {adapter == "lora" ? adapter_kind::lora : adapter_kind::lokr, rank, alpha, factor};
  how.storage = mirror == "bf16" ? mirror::bf16 : mirror == "bf16-f32" ? mirror::bf16_f32 : mirror::f32;
  for (std::size_t at = 0; at <= sites.size();) {
    std::size_t const end = std::min(sites.find(',', at), sites.size());
    how.sites.push_back(sites.substr(at, end - at));
    at = end + 1;
  }
  return how;
}

lm_options preset_named(std::string const& name) {
  lm_options p;
  set_defaults(p);
  p.validation_share = 0.05;
  p.weight_decay = adamw_settings{}.weight_decay;
  p.learning_rate = 3e-3;
  p.sample_bytes = 240;
  p.head_dim = 32;
  if (name == "small") {  // 0.8 million weights; half a minute on two Zen 4 cores
    p.layers = 4, p.hidden = 128, p.heads = 4, p.kv_heads = 2, p.ffn = 384;
    p.context = 256, p.batch = 4, p.steps = 500;
  } else if (name == "tiny") {  // 0.1 million weights; a second
    p.layers = 2, p.hidden = 64, p.heads = 2, p.kv_heads = 1, p.ffn = 128;
    p.context = 64, p.batch = 4, p.steps = 40;
  } else {
    throw bad_option("--preset: " + name + " is neither small nor tiny");
  }
  return p;
}

void add_lm_options(CLI::App& app, lm_options& o) {
  add_options(app, o, "text files, or directories of them. Default: the Debian package fortunes",
              {{"small", preset_named("small")}, {"tiny", preset_named("tiny")}});
}

lm_options parse_lm(std::vector<std::string> const& arguments) {
  return parse_arguments<lm_options>(arguments, add_lm_options);
}

lm_settings resolve(lm_options const& o) {
  lm_settings s;
  std::string const preset = o.preset.value_or("small");
  fill_from(s, o, preset_named(preset));
  s.preset = preset;
  s.adapter = o.adapter.value_or("none");
  s.rank = o.rank.value_or(16);
  s.factor = o.factor.value_or(8);
  s.sites = o.sites.value_or("q,k,v,o,gate,up,down");
  s.mirror = o.mirror.value_or("f32");
  resolve_run(s, o);
  take_base(s, o);
  if (s.adapter != "none") {
    if (!o.learning_rate) s.learning_rate = s.adapter == "lora" ? 1e-4 : 2e-3;
    if (!o.weight_decay) s.weight_decay = 0.01;
  }
  s.documents = o.documents.value_or(o.data.empty() ? "percent" : "file");
  check(s);
  return s;
}

template void forget_zeros(lm_options&);
template std::vector<std::string> arguments_of(lm_options const&);
template std::string describe(lm_settings const&);
template std::string to_json(lm_settings const&);
template lm_options continue_from(lm_options const&, std::string const&, std::set<std::string>&);

}  // namespace trainer
