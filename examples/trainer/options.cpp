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
  check_adapter(s, s.from_user, lm_sites);
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

namespace {

struct sizes {
  char const* name;
  std::int64_t layers, hidden, heads, kv_heads, head_dim, ffn, context, batch, steps;
  double learning_rate;
};

/// small: 0.8 million weights, half a minute on two Zen 4 cores; tiny: 0.1 million, a second. The others are the shapes
/// of published models, over bytes.
constexpr sizes all_sizes[] = {
    {"small", 4, 128, 4, 2, 32, 384, 256, 4, 500, 3e-3},
    {"tiny", 2, 64, 2, 1, 32, 128, 64, 4, 40, 3e-3},
    {"0.6b", 28, 1024, 16, 8, 128, 3072, 2113, 1, 1000, 1e-4},
    {"1.7b", 28, 2048, 16, 8, 128, 6144, 2113, 1, 1000, 1e-4},
    {"4b", 36, 2560, 32, 8, 128, 9728, 2113, 1, 1000, 1e-4},
    {"8b", 36, 4096, 32, 8, 128, 12288, 1850, 1, 1000, 1e-4},
};

}  // namespace

lm_options preset_named(std::string const& name) {
  auto const found = std::ranges::find_if(all_sizes, [&](sizes const& s) { return name == s.name; });
  require(found != std::end(all_sizes), "--preset: " + name + " is none of small, tiny, 0.6b, 1.7b, 4b, 8b");
  lm_options p;
  set_defaults(p);
  p.validation_share = 0.05;
  p.weight_decay = adamw_settings{}.weight_decay;
  p.sample_bytes = 240;
  p.layers = found->layers, p.hidden = found->hidden, p.ffn = found->ffn;
  p.heads = found->heads, p.kv_heads = found->kv_heads, p.head_dim = found->head_dim;
  p.context = found->context, p.batch = found->batch, p.steps = found->steps;
  p.learning_rate = found->learning_rate;
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
template lm_options continue_from(lm_options const&, std::string const&);

}  // namespace trainer
