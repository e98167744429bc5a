// Options of `lanewise-train lm`. What the user did not set is not there (std::optional), so no number has to stand for
// "unset" and every value knows where it came from: user, or auto. One list, for_each_field, says what the options are;
// the command line, the log, the command that is printed back and the checkpoint all walk it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "adamw.hpp"
#include "model.hpp"

namespace CLI {
class App;
}

namespace trainer {

/// Wrap is std::optional for what was asked, or `plain` for what will be done.
template <template <class> class Wrap>
struct lm_fields {
  Wrap<std::string> preset, documents, attn, ablate, prompt, device, precision;
  Wrap<std::string> base, adapter, adapter_from, sites, mirror, optimizer;
  Wrap<std::int64_t> rank, factor, accumulate, ckpt;
  Wrap<double> alpha;
  Wrap<std::int64_t> max_len, seed, layers, hidden, heads, kv_heads, head_dim, ffn, context, batch, steps, warmup;
  Wrap<double> validation_share, learning_rate, weight_decay, clip;
  Wrap<std::int64_t> threads, validate_every, checkpoint_every, keep_last, log_every, sample_bytes;
  Wrap<double> min_free_gb, memory_mb;
};
template <class T>
using plain = T;

struct lm_options : lm_fields<std::optional> {
  std::vector<std::string> data;
  std::string out = "lanewise-train-out";
  bool resume = false, overwrite = false;
};

/// Every value decided, and which of them the user decided.
struct lm_settings : lm_fields<plain> {
  std::vector<std::string> data;
  std::string out;
  std::set<std::string> from_user;

  /// What a base checkpoint says of its model beside the fields.
  std::int64_t vocabulary_size = model_shape{}.vocabulary;
  double rope_theta = model_shape{}.rope_theta, norm_epsilon = model_shape{}.epsilon;
  bool tied = true;

  model_shape model() const {
    return {vocabulary_size, layers, hidden, heads, kv_heads, head_dim, ffn, rope_theta, norm_epsilon, tied};
  }
  adaptation adapted() const;
  /// Windows of a step.
  std::int64_t windows_per_step() const { return batch * accumulate; }
  adamw_settings optimiser() const { return {.weight_decay = weight_decay, .clip = clip}; }
  attention_kind attention() const;
};

/// What one option is, apart from its value.
struct field {
  char const* group;
  char const* name;  ///< without the dashes
  char const* help;
  bool zero_is_unset = true;   ///< 0 on the command line is the same as leaving the option out
  bool changes_result = true;  ///< a resumed run must have the value of the run that it continues
  char const* other_name = nullptr;
};

/// f(field, set.member ...) for every option, with the same member of each set.
template <class F, class... Sets>
void for_each_field(F&& f, Sets&... sets) {
  constexpr bool unset = true, is_value = false, no_result = false;
  f(field{"Text", "documents",
          "file: a file is one document; percent: lines of a single % part its documents. Default: percent for the "
          "default text, file for --data",
          is_value},
    sets.documents...);
  f(field{"Text", "max-len",
          "leave out documents longer than so many bytes; nothing is ever cut. Default: none are left out"},
    sets.max_len...);
  f(field{"Text", "validation", "share of the documents kept for validation"}, sets.validation_share...);
  f(field{"Model", "preset", "sizes to start from: small or tiny", is_value}, sets.preset...);
  f(field{"Model", "layers", "transformer layers"}, sets.layers...);
  f(field{"Model", "hidden", "width of the residual stream"}, sets.hidden...);
  f(field{"Model", "heads", "query heads"}, sets.heads...);
  f(field{"Model", "kv-heads", "key/value heads, a divisor of --heads"}, sets.kv_heads...);
  f(field{"Model", "head-dim", "32, 64 or 128 with --attn flash, any even number up to 256 with exact"},
    sets.head_dim...);
  f(field{"Model", "ffn", "width of the SwiGLU layer; three times --hidden where that alone is set"}, sets.ffn...);
  f(field{"Model", "attn", "flash: through lanewise; exact: the materialised softmax chain on BLAS", is_value},
    sets.attn...);
  f(field{"Model", "ablate", "none, or attention: its output is zero, to see what it is worth", is_value},
    sets.ablate...);
  f(field{"Base and adapter", "base",
          "directory of a Hugging Face Qwen3 checkpoint to start from; its sizes and its tokenizer.json, if it has "
          "one, "
          "are taken",
          is_value},
    sets.base...);
  f(field{"Base and adapter", "adapter",
          "none: every weight is trained; lora or lokr: the base is frozen and so much beside it is trained", is_value},
    sets.adapter...);
  f(field{"Base and adapter", "adapter-from", "directory of a PEFT adapter to go on from, which says all of the below",
          is_value},
    sets.adapter_from...);
  f(field{"Base and adapter", "rank", "rank of LoRA; of LoKR, where a factor is large enough to be split. Default: 16",
          unset, true, "dim"},
    sets.rank...);
  f(field{"Base and adapter", "alpha", "the change is scaled by alpha / rank. Default: --rank"}, sets.alpha...);
  f(field{"Base and adapter", "factor",
          "LoKR: the largest first factor of a side; -1: as near the root as possible. Default: 8"},
    sets.factor...);
  f(field{"Base and adapter", "sites", "projections with an adapter, of q,k,v,o,gate,up,down. Default: all", is_value},
    sets.sites...);
  f(field{"Base and adapter", "mirror",
          "how the frozen projections are stored and multiplied: f32; bf16: both in bf16; bf16-f32: stored in bf16, "
          "multiplied in f32",
          is_value},
    sets.mirror...);
  f(field{"Training", "context", "tokens of a window"}, sets.context...);
  f(field{"Training", "batch", "windows that are computed at once"}, sets.batch...);
  f(field{"Training", "accumulate", "batches whose gradients make one step"}, sets.accumulate...);
  f(field{"Training", "ckpt",
          "runs of layers of which only the inputs are kept; the rest is computed again. 1: nothing is", unset,
          no_result},
    sets.ckpt...);
  f(field{"Training", "steps", "optimiser steps"}, sets.steps...);
  f(field{"Training", "optimizer", "adamw; or muon for matrices of 16 or more rows and columns, AdamW for the rest",
          is_value},
    sets.optimizer...);
  f(field{"Training", "lr", "peak learning rate. Default with --adapter lora 0.0001, lokr 0.002"},
    sets.learning_rate...);
  f(field{"Training", "warmup", "steps over which the learning rate rises; 0: none. Default: a twentieth of --steps",
          is_value},
    sets.warmup...);
  f(field{"Training", "weight-decay", "decoupled, on matrices; 0: none", is_value}, sets.weight_decay...);
  f(field{"Training", "clip", "largest global norm of the gradient"}, sets.clip...);
  f(field{"Training", "seed", "of weights, split, order and samples", is_value}, sets.seed...);
  f(field{"Training", "validate-every",
          "steps between looks at part of the validation text. Default: an eighth of --steps"},
    sets.validate_every...);
  f(field{"Machine", "device", "cpu, or cuda: the current NVIDIA GPU (lanewise-train-cuda)", is_value}, sets.device...);
  f(field{"Machine", "precision",
          "f32, or with --device cuda tf32: products and attention read their operands with 10 bits of mantissa",
          is_value},
    sets.precision...);
  f(field{"Machine", "threads", "the result does not depend on it. Default: the processors at hand", unset, no_result},
    sets.threads...);
  f(field{"Machine", "memory-mb",
          "budget of the planned memory, 2^20 bytes. Default: what the system has available, less 256", unset,
          no_result},
    sets.memory_mb...);
  f(field{"Machine", "min-free-gb", "stop with disk-low rather than leave less than so many 10^9 bytes free", unset,
          no_result},
    sets.min_free_gb...);
  f(field{"Output", "checkpoint-every", "steps between checkpoints. Default: a fifth of --steps", unset, no_result},
    sets.checkpoint_every...);
  f(field{"Output", "keep-last", "checkpoints kept; older ones are deleted", unset, no_result}, sets.keep_last...);
  f(field{"Output", "log-every",
          "steps between progress lines where the output is no terminal. Default: a twentieth of --steps", unset,
          no_result},
    sets.log_every...);
  f(field{"Output", "sample-bytes", "length of the text generated before and after; 0: none", is_value, no_result},
    sets.sample_bytes...);
  f(field{"Output", "prompt", "what the samples begin with. Default: the start of a document", is_value, no_result},
    sets.prompt...);
}

/// Adds the options to a CLI11 command, which fills `options` when it parses; call forget_zeros afterwards.
void add_lm_options(CLI::App& app, lm_options& options);
/// Makes unset what is documented as "0 is unset" and was given as 0.
void forget_zeros(lm_options& options);

/// The options that a preset sets, "small" or "tiny". Throws bad-option.
lm_options preset_named(std::string const& name);

/// The options of an argument list, program and subcommand left out. Throws bad-option; an option that is documented as
/// "0 is unset" and given 0 comes out unset.
lm_options parse_lm(std::vector<std::string> const& arguments);

/// The arguments that parse_lm turns into `options`; unset options leave no trace.
std::vector<std::string> arguments_of(lm_options const& options);

/// Decides every value that `options` leaves open. Throws bad-option, with the numbers, where values do not fit.
lm_settings resolve(lm_options const& options);

/// The two log lines "options source=user: ..." and "options source=auto: ...".
std::string describe(lm_settings const& settings);

/// For the checkpoint: {"steps": {"value": 600, "source": "auto"}, ...} of what changes the result.
std::string to_json(lm_settings const& settings);

/// The options that continue the run whose to_json was saved: its values where `options` leaves them open. Throws
/// resume-mismatch where a set value would change the result. The run's own sources are kept in `from_user`.
lm_options continue_from(lm_options const& options, std::string const& saved, std::set<std::string>& from_user);

}  // namespace trainer
