// Options that the commands share, and what is done with any command's. What the user did not set is not there
// (std::optional), so no number has to stand for "unset" and every value knows where it came from: user, or auto. One
// table says what the options of a command are (`table` of its fields); the command line, the log, the command that is
// printed back and the checkpoint all walk it.
//
// A command has a struct of fields over a Wrap, which is std::optional for what was asked, or `plain` for what will be
// done: its options and its settings. option_table.hpp has the code behind the templates, which each command
// instantiates once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "adamw.hpp"
#include "attention_site.hpp"
#include "device.hpp"

namespace CLI {
class App;
}

namespace trainer {

template <class T>
using plain = T;

/// What one option is, apart from its value.
struct field {
  char const* group;
  char const* name;  ///< without the dashes
  char const* help;
  bool zero_is_unset = true;   ///< 0 on the command line is the same as leaving the option out
  bool changes_result = true;  ///< a resumed run must have the value of the run that it continues
  char const* other_name = nullptr;
};
/// Words for the last members of a field.
inline constexpr bool zero_unset = true, zero_is_value = false, no_result = false;

/// f(field, set.member ...) for every option, with the same member of each set.
template <class F, class First, class... Rest>
void for_each_field(F&& f, First& first, Rest&... rest) {
  std::remove_cv_t<First>::table(f, first, rest...);
}

template <template <class> class Wrap>
struct run_fields {
  Wrap<std::string> preset, attn, ablate, prompt, optimizer, device, precision;
  Wrap<std::string> adapter, adapter_from, sites, mirror;
  Wrap<std::int64_t> rank, factor;
  Wrap<double> alpha;
  Wrap<std::int64_t> layers, hidden, heads, kv_heads, head_dim, ffn;
  Wrap<std::int64_t> batch, accumulate, ckpt, steps, warmup, seed, validate_every;
  Wrap<double> validation_share, learning_rate, weight_decay, clip;
  Wrap<std::int64_t> threads, checkpoint_every, keep_last, log_every;
  Wrap<double> min_free_gb, memory_mb;

 protected:
  template <class F, class... Sets>
  static void size_table(F&& f, Sets&... sets) {
    f(field{"Model", "layers", "transformer layers"}, sets.layers...);
    f(field{"Model", "hidden", "width of the residual stream"}, sets.hidden...);
    f(field{"Model", "heads", "query heads"}, sets.heads...);
    f(field{"Model", "kv-heads", "key/value heads, a divisor of --heads"}, sets.kv_heads...);
    f(field{"Model", "head-dim", "32, 64 or 128 with --attn flash, any even number up to 256 with exact"},
      sets.head_dim...);
    f(field{"Model", "ffn", "width of the SwiGLU layer; three times --hidden where that alone is set"}, sets.ffn...);
    f(field{"Model", "attn", "flash: through lanewise; exact: the materialised softmax chain on BLAS", zero_is_value},
      sets.attn...);
  }
  template <class F, class... Sets>
  static void adapter_table(F&& f, char const* sites_help, Sets&... sets) {
    f(field{"Base and adapter", "adapter",
            "none: every weight is trained; lora or lokr: the base is frozen and so much beside it is trained",
            zero_is_value},
      sets.adapter...);
    f(field{"Base and adapter", "adapter-from",
            "directory of a PEFT adapter to go on from, which says all of the below", zero_is_value},
      sets.adapter_from...);
    f(field{"Base and adapter", "rank",
            "rank of LoRA; of LoKR, where a factor is large enough to be split. Default: 16", zero_unset, true, "dim"},
      sets.rank...);
    f(field{"Base and adapter", "alpha", "the change is scaled by alpha / rank. Default: --rank"}, sets.alpha...);
    f(field{"Base and adapter", "factor",
            "LoKR: the largest first factor of a side; -1: as near the root as possible. Default: 8"},
      sets.factor...);
    f(field{"Base and adapter", "sites", sites_help, zero_is_value}, sets.sites...);
    f(field{"Base and adapter", "mirror",
            "how the frozen projections are stored and multiplied: f32; bf16: both in bf16; bf16-f32: stored in bf16, "
            "multiplied in f32",
            zero_is_value},
      sets.mirror...);
  }
  template <class F, class... Sets>
  static void training_table(F&& f, Sets&... sets) {
    f(field{"Training", "accumulate", "batches whose gradients make one step"}, sets.accumulate...);
    f(field{"Training", "ckpt",
            "runs of layers of which only the inputs are kept; the rest is computed again. 1: nothing is", zero_unset,
            no_result},
      sets.ckpt...);
    f(field{"Training", "steps", "optimiser steps"}, sets.steps...);
    f(field{"Training", "optimizer", "adamw; or muon for matrices of 16 or more rows and columns, AdamW for the rest",
            zero_is_value},
      sets.optimizer...);
    f(field{"Training", "warmup", "steps over which the learning rate rises; 0: none. Default: a twentieth of --steps",
            zero_is_value},
      sets.warmup...);
    f(field{"Training", "weight-decay", "decoupled, on matrices; 0: none", zero_is_value}, sets.weight_decay...);
    f(field{"Training", "clip", "largest global norm of the gradient"}, sets.clip...);
    f(field{"Training", "seed", "of weights, split, order and samples", zero_is_value}, sets.seed...);
    f(field{"Training", "validate-every", "steps between looks at the validation data. Default: an eighth of --steps"},
      sets.validate_every...);
  }
  template <class F, class... Sets>
  static void machine_table(F&& f, Sets&... sets) {
    f(field{"Machine", "device", "cpu, or cuda: the current NVIDIA GPU (lanewise-train-cuda)", zero_is_value},
      sets.device...);
    f(field{"Machine", "precision",
            "f32, or with --device cuda f32_split: flash attention reads two f16 limbs, 22 bits; tf32: products and "
            "attention read 10 bits of mantissa; bf16: flash attention reads 7, the rest 10",
            zero_is_value},
      sets.precision...);
    f(field{"Machine", "threads", "the result does not depend on it. Default: the processors at hand", zero_unset,
            no_result},
      sets.threads...);
    f(field{"Machine", "memory-mb",
            "budget of the planned memory, 2^20 bytes. Default: what the system has available, less 256", zero_unset,
            no_result},
      sets.memory_mb...);
    f(field{"Machine", "min-free-gb", "stop with disk-low rather than leave less than so many 10^9 bytes free",
            zero_unset, no_result},
      sets.min_free_gb...);
    f(field{"Output", "checkpoint-every", "steps between checkpoints. Default: a fifth of --steps", zero_unset,
            no_result},
      sets.checkpoint_every...);
    f(field{"Output", "keep-last", "checkpoints kept; older ones are deleted", zero_unset, no_result},
      sets.keep_last...);
    f(field{"Output", "log-every",
            "steps between progress lines where the output is no terminal. Default: a twentieth of --steps", zero_unset,
            no_result},
      sets.log_every...);
  }
};

/// What a command is asked beside its fields.
struct run_request {
  std::vector<std::string> data;
  std::string out = "lanewise-train-out";
  bool resume = false, overwrite = false;
  /// Of a run that is continued, every field of which holds a value: those that a user decided, then or now.
  std::optional<std::set<std::string>> from_user;
};

/// The fields as they are decided, as far as every command has them.
using run_settings = run_fields<plain>;

/// Where the data is, where the results go, and which fields the user decided.
struct run_places {
  std::vector<std::string> data;
  std::string out;
  std::set<std::string> from_user;
};

/// The device that the settings name. Throws no-device.
std::unique_ptr<device> device_of(run_settings const& settings);
adamw_settings adamw_of(run_settings const& settings);
attention_kind attention_of(run_settings const& settings);
/// The --memory-mb of the settings, or what the device has available.
memory_budget budget_of(run_settings const& settings, device const& on);
/// At most 2^63.
std::size_t bytes_of_mebibytes(double mebibytes);

/// What every preset of every command sets alike.
void set_defaults(run_fields<std::optional>& preset);
/// Decides what every command leaves open in the same way and presets do not set.
void resolve_run(run_settings& settings, run_fields<std::optional> const& asked);
/// Throws bad-option, with the numbers, where these do not fit, or where counts would leave 64 bits. sequence: tokens
/// of a batch element, which the option `name` sets.
void check_run(run_settings const& settings, std::int64_t sequence, std::string const& name);

inline constexpr std::int64_t largest_size = std::int64_t(1) << 31;
/// Throws bad-option unless `ok`.
void require(bool ok, std::string const& sentence);
void require_at_most(char const* name, std::int64_t value, std::int64_t limit);
std::string text_of(double value);
std::string text_of(std::int64_t value);
inline std::string text_of(std::string const& value) { return value; }

/// Adds the options to a CLI11 command, which fills `options` when it parses; call forget_zeros afterwards. data_help:
/// of --data. shown: presets whose values the help names, the default first.
template <class Options>
void add_options(CLI::App& app, Options& options, char const* data_help,
                 std::vector<std::pair<std::string, Options>> const& shown);
/// Makes unset what is documented as "0 is unset" and was given as 0.
template <class Options>
void forget_zeros(Options& options);

/// The arguments that parse to `options`; unset options leave no trace.
template <class Options>
std::vector<std::string> arguments_of(Options const& options);

/// The two log lines "options source=user: ..." and "options source=auto: ...".
template <class Settings>
std::string describe(Settings const& settings);

/// For the checkpoint: {"steps": {"value": 600, "source": "auto"}, ...} of what changes the result.
template <class Settings>
std::string to_json(Settings const& settings);

/// The options that continue the run whose to_json was saved: its values where `options` leaves them open, and its
/// sources. Throws resume-mismatch where a set value would change the result.
template <class Options>
Options continue_from(Options const& options, std::string const& saved);

}  // namespace trainer
