#include "run_options.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <thread>

#include "error.hpp"

namespace trainer {
namespace {

template <class Number>
std::string digits_of(Number value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

}  // namespace

std::string text_of(double value) { return digits_of(value); }
std::string text_of(std::int64_t value) { return digits_of(value); }

void require(bool ok, std::string const& sentence) {
  if (!ok) throw bad_option(sentence);
}

void require_at_most(char const* name, std::int64_t value, std::int64_t limit) {
  require(value <= limit, std::string("--") + name + ": " + text_of(value) + " is more than " + text_of(limit));
}

std::unique_ptr<device> device_of(run_settings const& s) {
  if (s.device == "cpu") return make_cpu_device(int(s.threads));
  return make_cuda_device(
      std::ranges::find(all_arithmetic, s.precision, [](auto const& a) { return a.second; })->first);
}

adamw_settings adamw_of(run_settings const& s) { return {.weight_decay = s.weight_decay, .clip = s.clip}; }

attention_kind attention_of(run_settings const& s) {
  if (s.ablate == "attention") return attention_kind::ablated;
  return s.attn == "exact" ? attention_kind::exact : attention_kind::flash;
}

memory_budget budget_of(run_settings const& s, device const& on) {
  return s.memory_mb > 0 ? memory_budget{bytes_of_mebibytes(s.memory_mb), 0} : on.budget();
}

std::size_t bytes_of_mebibytes(double mebibytes) {
  return mebibytes < 0x1p43 ? std::size_t(mebibytes * 0x1p20) : std::size_t(1) << 63;
}

void set_defaults(run_fields<std::optional>& preset) {
  preset.clip = adamw_settings{}.clip;
  preset.seed = 1;
  preset.keep_last = 2;
  preset.min_free_gb = 0.1;
}

void resolve_run(run_settings& s, run_fields<std::optional> const& o) {
  if (!o.kv_heads && s.heads % s.kv_heads != 0) s.kv_heads = 1;
  if (!o.ffn && o.hidden) s.ffn = s.hidden <= std::numeric_limits<std::int64_t>::max() / 3 ? 3 * s.hidden : s.hidden;
  auto const part_of_steps = [&](std::int64_t parts) {
    return std::max<std::int64_t>(1, s.steps / parts + (s.steps % parts != 0));
  };
  s.warmup = o.warmup.value_or(part_of_steps(20));
  s.validate_every = o.validate_every.value_or(part_of_steps(8));
  s.checkpoint_every = o.checkpoint_every.value_or(part_of_steps(5));
  s.log_every = o.log_every.value_or(part_of_steps(20));
  s.accumulate = o.accumulate.value_or(1);
  s.ckpt = o.ckpt.value_or(1);
  s.optimizer = o.optimizer.value_or("adamw");
  s.attn = o.attn.value_or("flash");
  s.ablate = o.ablate.value_or("none");
  s.device = o.device.value_or("cpu");
  s.precision = o.precision.value_or("f32");
  s.threads = o.threads.value_or(std::max(1u, std::thread::hardware_concurrency()));
}

void check_run(run_settings const& s, std::int64_t sequence, std::string const& name) {
  constexpr std::int64_t most_layers = 10'000, most_threads = 4'096;
  constexpr double most_numbers = 0x1p50;
  require_at_most("layers", s.layers, most_layers);
  require_at_most("threads", s.threads, most_threads);
  require_at_most("hidden", s.hidden, largest_size);
  require_at_most("heads", s.heads, largest_size);
  require_at_most("kv-heads", s.kv_heads, largest_size);
  require_at_most("head-dim", s.head_dim, largest_size);
  require_at_most("ffn", s.ffn, largest_size);
  require_at_most("batch", s.batch, largest_size);
  require_at_most("accumulate", s.accumulate, largest_size);
  double const layers = double(s.layers), rows = double(s.batch) * double(sequence);
  double const width = double(s.hidden) + double(s.heads + 2 * s.kv_heads) * double(s.head_dim) + 3 * double(s.ffn);
  require(layers * double(s.hidden) * width <= most_numbers, "the model has more than 2^50 weights");
  require(rows * (layers * width + double(s.heads) * double(sequence)) <= most_numbers,
          "a step of --batch " + text_of(s.batch) + " and --" + name + " " + text_of(sequence) +
              " has more than 2^50 numbers");
  require(s.heads % s.kv_heads == 0,
          "--kv-heads: " + text_of(s.kv_heads) + " does not divide --heads " + text_of(s.heads));
  require(s.head_dim % 2 == 0 && s.head_dim <= 256,
          "--head-dim: " + text_of(s.head_dim) + " is not an even number up to 256");
  require(s.validation_share < 0.9, "--validation: " + text_of(s.validation_share) + " leaves too little to train on");
  require(s.ckpt <= s.layers, "--ckpt: " + text_of(s.ckpt) + " is more than --layers " + text_of(s.layers));
  require(s.warmup <= s.steps, "--warmup: " + text_of(s.warmup) + " is more than --steps " + text_of(s.steps));
  require(s.attn == "flash" || s.attn == "exact", "--attn: " + s.attn + " is neither flash nor exact");
  require(s.optimizer == "adamw" || s.optimizer == "muon",
          "--optimizer: " + s.optimizer + " is neither adamw nor muon");
  require(s.device == "cpu" || s.device == "cuda", "--device: " + s.device + " is neither cpu nor cuda");
  require(std::ranges::any_of(all_arithmetic, [&](auto const& a) { return s.precision == a.second; }),
          "--precision: " + s.precision + " is none of f32, f32_split, tf32, bf16");
  require(s.precision == "f32" || s.device == "cuda", "--precision " + s.precision + " needs --device cuda");
}

}  // namespace trainer
