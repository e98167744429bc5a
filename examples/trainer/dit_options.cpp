#include "dit_options.hpp"

#include <algorithm>

#include "adapter_options.hpp"
#include "option_table.hpp"
#include "unicode.hpp"

namespace trainer {
namespace {

/// What a preset of models that are published says.
struct sizes {
  char const *name, *style;
  std::int64_t layers, hidden, heads, kv_heads, head_dim, ffn, bands, patch, caption_width;
  std::int64_t batch, steps, longest_exact, longest_flash;
  double learning_rate;
};

constexpr sizes all_sizes[] = {
    {"small", "ace", 3, 128, 4, 2, 32, 384, 64, 1, 64, 8, 500, 256, 256, 2e-3},
    {"tiny", "ace", 2, 64, 2, 1, 32, 128, 32, 1, 32, 4, 40, 64, 64, 3e-3},
    {"tiny-mm3", "mm3", 2, 64, 2, 2, 32, 128, 32, 1, 32, 4, 40, 64, 64, 3e-3},
    {"2b", "ace", 24, 2048, 16, 8, 128, 6144, 64, 2, 2048, 1, 1000, 1250, 6000, 1e-4},
    {"xl", "ace", 32, 2560, 32, 8, 128, 9728, 64, 2, 2048, 1, 1000, 1250, 6000, 1e-4},
    {"mm3", "mm3", 36, 2048, 32, 32, 64, 8192, 128, 1, 2048, 1, 1000, 1378, 2584, 1e-4},
};

/// An unknown style is check's to refuse.
std::span<projection_site const> sites_of(dit_settings const& s) {
  return dit_sites(s.style == "mm3" ? dit_style::mm3 : dit_style::ace);
}

void check(dit_settings const& s) {
  require_not_negative(
      s, [](field const& f, double value) { return std::string(f.name) == "time-mean" || may_be_negative(f, value); });
  for (auto const& [name, value] : {std::pair{"bands", s.bands},
                                    {"patch", s.patch},
                                    {"caption-width", s.caption_width},
                                    {"window", s.window},
                                    {"crop-max", s.crop_max}})
    require_at_most(name, value, largest_size);
  check_run(s, s.crop_max, "crop-max");
  check_adapter(s, s.from_user, sites_of(s));
  require(s.style == "ace" || s.style == "mm3", "--style: " + s.style + " is neither ace nor mm3");
  require(s.ablate == "none" || s.ablate == "attention" || s.ablate == "targets",
          "--ablate: " + s.ablate + " is none of none, attention, targets");
  require(s.bands % 2 == 0, "--bands: " + text_of(s.bands) + " is not even");
  require(unicode::is_utf8(s.prompt), "--prompt is not UTF-8");
  require(s.caption_dropout <= 1, "--caption-dropout: " + text_of(s.caption_dropout) + " is more than 1");
}

}  // namespace

dit_shape dit_settings::model() const {
  bool const ace = style == "ace";
  return {.style = ace ? dit_style::ace : dit_style::mm3,
          .layers = layers,
          .hidden = hidden,
          .q_heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .ffn = ffn,
          .channels = bands,
          .context = 0,
          .patch = patch,
          .caption_width = caption_width,
          .window = window,
          .rotated = ace ? head_dim : head_dim / 4 * 2,
          .epsilon = ace ? 1e-6 : 1e-5};
}

adaptation dit_settings::adapted() const { return adaptation_of(*this); }

dit_preset dit_preset_named(std::string const& name) {
  auto const found = std::ranges::find_if(all_sizes, [&](sizes const& s) { return name == s.name; });
  require(found != std::end(all_sizes), "--preset: " + name + " is none of small, tiny, tiny-mm3, 2b, xl, mm3");
  dit_options p;
  set_defaults(p);
  p.style = found->style;
  p.layers = found->layers, p.hidden = found->hidden, p.ffn = found->ffn;
  p.heads = found->heads, p.kv_heads = found->kv_heads, p.head_dim = found->head_dim;
  p.bands = found->bands, p.patch = found->patch, p.caption_width = found->caption_width;
  p.batch = found->batch, p.steps = found->steps, p.learning_rate = found->learning_rate;
  p.window = 128;
  p.validation_share = 0.2;
  p.weight_decay = 0.01;
  p.caption_dropout = 0.15;
  p.time_mean = flow_times{}.mean, p.time_deviation = flow_times{}.deviation;
  p.sample_steps = 50;
  return {p, found->longest_exact, found->longest_flash};
}

void add_dit_options(CLI::App& app, dit_options& o) {
  add_options(app, o, "WAV files, or directories of them, with captions. Default: the Debian package alsa-utils",
              {{"small", dit_preset_named("small").values}, {"tiny", dit_preset_named("tiny").values}});
}

dit_options parse_dit(std::vector<std::string> const& arguments) {
  return parse_arguments<dit_options>(arguments, add_dit_options);
}

dit_settings resolve(dit_options const& o) {
  dit_settings s;
  std::string const preset = o.preset.value_or("small");
  fill_from(s, o, dit_preset_named(preset).values);
  s.preset = preset;
  resolve_run(s, o);
  resolve_adapter(s, o, sites_of(s));
  if (!o.crop_max) s.crop_max = s.crop;
  if (!o.crop_min) s.crop_min = s.crop;
  check(s);
  return s;
}

void decide_crops(dit_settings& s, std::int64_t longest) {
  dit_preset const preset = dit_preset_named(s.preset);
  if (s.crop_max == 0)
    s.crop_max = std::min(longest, s.attn == "exact" ? preset.longest_exact : preset.longest_flash) / s.patch * s.patch;
  require(s.crop_max <= longest, "--crop-max: " + text_of(s.crop_max) +
                                     " frames are more than the longest stretch to train on has, " + text_of(longest));
  require(s.crop_max % s.patch == 0,
          "--crop-max: " + text_of(s.crop_max) + " is no multiple of --patch " + text_of(s.patch));
  if (s.crop_min == 0) s.crop_min = (s.crop_max + 1) / 2;
  require(s.crop_min <= s.crop_max,
          "--crop-min: " + text_of(s.crop_min) + " is more than the " + text_of(s.crop_max) + " of the longest crop");
  check(s);
}

template void forget_zeros(dit_options&);
template std::vector<std::string> arguments_of(dit_options const&);
template std::string describe(dit_settings const&);
template std::string to_json(dit_settings const&);
template dit_options continue_from(dit_options const&, std::string const&);

}  // namespace trainer
