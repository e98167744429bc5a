#include "options.hpp"

#include <algorithm>
#include <limits>

#include "adapter_options.hpp"
#include "base_checkpoint.hpp"
#include "option_table.hpp"

namespace trainer {
namespace {

void check(lm_settings const& s) {
  require_not_negative(s, may_be_negative);
  require_at_most("context", s.context, largest_size);
  check_adapter(s, lm_sites);
  check_run(s, s.context, "context");
  require(s.ablate == "none" || s.ablate == "attention", "--ablate: " + s.ablate + " is neither none nor attention");
  require(s.adapter == "none" || !s.base.empty(), "--adapter " + s.adapter + " needs a --base to adapt");
  require(s.documents == "file" || s.documents == "percent",
          "--documents: " + s.documents + " is neither file nor percent");
}

/// The sizes of --base. What the user set must say the same.
void take_base(lm_settings& s, lm_options const& o) {
  if (!s.base.empty()) {
    base_checkpoint const base(s.base);
    model_shape const& m = base.shape();
    take_found("layers", s.layers, o.layers, m.layers, s.base);
    take_found("hidden", s.hidden, o.hidden, m.hidden, s.base);
    take_found("heads", s.heads, o.heads, m.q_heads, s.base);
    take_found("kv-heads", s.kv_heads, o.kv_heads, m.kv_heads, s.base);
    take_found("head-dim", s.head_dim, o.head_dim, m.head_dim, s.base);
    take_found("ffn", s.ffn, o.ffn, m.ffn, s.base);
    s.vocabulary_size = m.vocabulary;
    s.rope_theta = m.rope_theta;
    s.norm_epsilon = m.epsilon;
    s.tied = m.tied;
    if (!o.context) s.context = std::min(s.context, base.positions());
    require(s.context <= base.positions(),
            "--context: " + text_of(s.context) + " is more than the " + text_of(base.positions()) + " of " + s.base);
  }
}

}  // namespace

adaptation lm_settings::adapted() const { return adaptation_of(*this); }

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
  resolve_run(s, o);
  take_base(s, o);
  resolve_adapter(s, o, lm_sites);
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
