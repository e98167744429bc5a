#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>
#include <type_traits>

#include "adapter_files.hpp"
#include "base_checkpoint.hpp"
#include "error.hpp"

namespace trainer {
namespace {

std::string text_of(std::string const& value) { return value; }
template <class Number>
requires std::is_arithmetic_v<Number> std::string text_of(Number value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

template <class T>
bool is_zero(T const& value) {
  if constexpr (std::is_arithmetic_v<T>) return value == T(0);
  else return false;
}

void require(bool ok, std::string const& sentence) {
  if (!ok) throw bad_option(sentence);
}

/// Refuses sizes whose counts leave 64 bits or whose plan cannot be worked out; whether one fits is asked later.
void check_sizes(lm_settings const& s) {
  constexpr std::int64_t most = std::int64_t(1) << 31, most_layers = 10'000, most_threads = 4'096;
  constexpr double most_numbers = 0x1p50;
  auto const at_most = [](char const* name, std::int64_t value, std::int64_t limit) {
    require(value <= limit, std::string("--") + name + ": " + text_of(value) + " is more than " + text_of(limit));
  };
  at_most("layers", s.layers, most_layers);
  at_most("threads", s.threads, most_threads);
  at_most("hidden", s.hidden, most);
  at_most("heads", s.heads, most);
  at_most("kv-heads", s.kv_heads, most);
  at_most("head-dim", s.head_dim, most);
  at_most("ffn", s.ffn, most);
  at_most("context", s.context, most);
  at_most("batch", s.batch, most);
  at_most("rank", s.rank, most);
  at_most("accumulate", s.accumulate, most);
  double const layers = double(s.layers), rows = double(s.batch) * double(s.context);
  double const width = double(s.hidden) + double(s.heads + 2 * s.kv_heads) * double(s.head_dim) + 3 * double(s.ffn);
  require(layers * double(s.hidden) * width <= most_numbers, "the model has more than 2^50 weights");
  require(
      rows * (layers * width + double(s.heads) * double(s.context)) <= most_numbers,
      "a step of --batch " + text_of(s.batch) + " and --context " + text_of(s.context) + " has more than 2^50 numbers");
}

void check(lm_settings const& s) {
  for_each_field(
      [](field const& f, auto const& value) {
        if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(value)>>)
          require(value >= 0 || (std::string(f.name) == "factor" && value == -1),
                  std::string("--") + f.name + ": " + text_of(value) + " is negative");
      },
      s);
  check_sizes(s);
  require(s.heads % s.kv_heads == 0,
          "--kv-heads: " + text_of(s.kv_heads) + " does not divide --heads " + text_of(s.heads));
  require(s.head_dim % 2 == 0 && s.head_dim <= 256,
          "--head-dim: " + text_of(s.head_dim) + " is not an even number up to 256");
  require(s.validation_share < 0.9, "--validation: " + text_of(s.validation_share) + " leaves too little to train on");
  require(s.ckpt <= s.layers, "--ckpt: " + text_of(s.ckpt) + " is more than --layers " + text_of(s.layers));
  require(s.warmup <= s.steps, "--warmup: " + text_of(s.warmup) + " is more than --steps " + text_of(s.steps));
  require(s.attn == "flash" || s.attn == "exact", "--attn: " + s.attn + " is neither flash nor exact");
  require(s.device == "cpu" || s.device == "cuda", "--device: " + s.device + " is neither cpu nor cuda");
  require(s.precision == "f32" || s.precision == "tf32", "--precision: " + s.precision + " is neither f32 nor tf32");
  require(s.precision == "f32" || s.device == "cuda", "--precision tf32 needs --device cuda");
  require(s.ablate == "none" || s.ablate == "attention", "--ablate: " + s.ablate + " is neither none nor attention");
  require(s.adapter == "none" || s.adapter == "lora" || s.adapter == "lokr",
          "--adapter: " + s.adapter + " is none of none, lora, lokr");
  require(s.adapter == "none" || !s.base.empty(), "--adapter " + s.adapter + " needs a --base to adapt");
  require(s.mirror == "f32" || s.mirror == "bf16" || s.mirror == "bf16-f32",
          "--mirror: " + s.mirror + " is none of f32, bf16, bf16-f32");
  require(s.mirror == "f32" || s.adapter != "none", "--mirror " + s.mirror + ": only frozen weights are mirrored");
  require(s.optimizer == "adamw" || s.optimizer == "muon",
          "--optimizer: " + s.optimizer + " is neither adamw nor muon");
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

attention_kind lm_settings::attention() const {
  if (ablate == "attention") return attention_kind::ablated;
  return attn == "exact" ? attention_kind::exact : attention_kind::flash;
}

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
  p.validation_share = 0.05;
  p.weight_decay = adamw_settings{}.weight_decay;
  p.clip = adamw_settings{}.clip;
  p.learning_rate = 3e-3;
  p.seed = 1;
  p.keep_last = 2;
  p.min_free_gb = 0.1;
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
  app.add_option("--data", o.data, "text files, or directories of them. Default: the Debian package fortunes")
      ->group("Text");
  lm_options const small = preset_named("small"), tiny = preset_named("tiny");
  for_each_field(
      [&](field const& f, auto& value, auto const& in_small, auto const& in_tiny) {
        std::string help = f.help;
        if (in_small) help += ". Default: " + text_of(*in_small);
        if (in_small && *in_small != *in_tiny) help += ", tiny " + text_of(*in_tiny);
        if (f.zero_is_unset) help += ". 0: unset";
        std::string const names = std::string("--") + f.name + (f.other_name ? std::string(",--") + f.other_name : "");
        app.add_option(names, value, help)->group(f.group);
      },
      o, small, tiny);
  app.add_option("--out", o.out, "directory of everything that the run writes")->capture_default_str()->group("Output");
  app.add_flag("--resume", o.resume, "continue from the newest checkpoint in --out, bit for bit")->group("Output");
  app.add_flag("--overwrite", o.overwrite, "delete an earlier run's files in --out first")->group("Output");
}

void forget_zeros(lm_options& o) {
  for_each_field(
      [](field const& f, auto& value) {
        if (f.zero_is_unset && value && is_zero(*value)) value.reset();
      },
      o);
}

lm_options parse_lm(std::vector<std::string> const& arguments) {
  CLI::App app;
  lm_options o;
  add_lm_options(app, o);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (CLI::ParseError const& e) {
    throw bad_option(e.what());
  }
  forget_zeros(o);
  return o;
}

std::vector<std::string> arguments_of(lm_options const& o) {
  std::vector<std::string> arguments;
  if (!o.data.empty()) arguments.push_back("--data");
  arguments.insert(arguments.end(), o.data.begin(), o.data.end());
  for_each_field(
      [&](field const& f, auto const& value) {
        if (value) arguments.insert(arguments.end(), {std::string("--") + f.name, text_of(*value)});
      },
      o);
  if (o.out != lm_options{}.out) arguments.insert(arguments.end(), {"--out", o.out});
  if (o.resume) arguments.push_back("--resume");
  if (o.overwrite) arguments.push_back("--overwrite");
  return arguments;
}

lm_settings resolve(lm_options const& o) {
  lm_settings s;
  s.data = o.data;
  s.out = o.out;
  for_each_field(
      [&](field const& f, auto const& asked) {
        if (asked) s.from_user.insert(f.name);
      },
      o);

  // The preset fills what is open and pins nothing.
  lm_options const p = preset_named(o.preset.value_or("small"));
  for_each_field(
      [](field const&, auto& value, auto const& asked, auto const& preset) {
        if (asked) value = *asked;
        else if (preset) value = *preset;
        else value = {};
      },
      s, o, p);
  s.preset = o.preset.value_or("small");
  if (!o.kv_heads && s.heads % s.kv_heads != 0) s.kv_heads = 1;
  if (!o.ffn && o.hidden) s.ffn = s.hidden <= std::numeric_limits<std::int64_t>::max() / 3 ? 3 * s.hidden : s.hidden;

  s.adapter = o.adapter.value_or("none");
  s.rank = o.rank.value_or(16);
  s.factor = o.factor.value_or(8);
  s.sites = o.sites.value_or("q,k,v,o,gate,up,down");
  s.mirror = o.mirror.value_or("f32");
  s.optimizer = o.optimizer.value_or("adamw");
  s.accumulate = o.accumulate.value_or(1);
  s.ckpt = o.ckpt.value_or(1);
  take_base(s, o);
  if (s.adapter != "none") {
    if (!o.learning_rate) s.learning_rate = s.adapter == "lora" ? 1e-4 : 2e-3;
    if (!o.weight_decay) s.weight_decay = 0.01;
  }

  auto const part_of_steps = [&](std::int64_t parts) {
    return std::max<std::int64_t>(1, (s.steps + parts - 1) / parts);
  };
  s.warmup = o.warmup.value_or(part_of_steps(20));
  s.validate_every = o.validate_every.value_or(part_of_steps(8));
  s.checkpoint_every = o.checkpoint_every.value_or(part_of_steps(5));
  s.log_every = o.log_every.value_or(part_of_steps(20));

  s.documents = o.documents.value_or(o.data.empty() ? "percent" : "file");
  s.attn = o.attn.value_or("flash");
  s.ablate = o.ablate.value_or("none");
  s.device = o.device.value_or("cpu");
  s.precision = o.precision.value_or("f32");
  s.threads = o.threads.value_or(std::max(1u, std::thread::hardware_concurrency()));
  check(s);
  return s;
}

std::string describe(lm_settings const& s) {
  std::string user = "options source=user:", automatic = "options source=auto:";
  if (!s.data.empty()) {
    user += " --data";
    for (std::string const& d : s.data) user += " " + d;
  }
  for_each_field(
      [&](field const& f, auto const& value) {
        bool const open = f.zero_is_unset && is_zero(value);
        std::string text = text_of(value);
        if constexpr (std::is_same_v<decltype(text), std::remove_cvref_t<decltype(value)>>) text = "'" + text + "'";
        (s.from_user.contains(f.name) ? user : automatic) +=
            std::string(" --") + f.name + " " + (open ? "unset" : text);
      },
      s);
  return user + "\n" + automatic + "\n";
}

std::string to_json(lm_settings const& s) {
  nlohmann::json j;
  for_each_field(
      [&](field const& f, auto const& value) {
        if (f.changes_result)
          j[f.name] = {{"value", value}, {"source", s.from_user.contains(f.name) ? "user" : "auto"}};
      },
      s);
  return j.dump();
}

lm_options continue_from(lm_options const& options, std::string const& saved, std::set<std::string>& from_user) {
  lm_options merged = options;
  nlohmann::json const j = nlohmann::json::parse(saved);
  for_each_field(
      [&](field const& f, auto& value) {
        if (!f.changes_result) {
          if (value) from_user.insert(f.name);
          return;
        }
        using type = typename std::remove_cvref_t<decltype(value)>::value_type;
        type const before = j.at(f.name).at("value").template get<type>();
        if (value && *value != before)
          throw resume_mismatch(std::string("--") + f.name + " is " + text_of(*value) +
                                ", but the run to continue has " + text_of(before) +
                                "; the result would be neither run's");
        value = before;
        if (j.at(f.name).at("source") == "user") from_user.insert(f.name);
      },
      merged);
  forget_zeros(merged);
  return merged;
}

}  // namespace trainer
