// Options of `lanewise-train lm`, beside those that the commands share (run_options.hpp).
#pragma once

#include "model.hpp"
#include "run_options.hpp"

namespace trainer {

template <template <class> class Wrap>
struct lm_fields : run_fields<Wrap> {
  Wrap<std::string> documents, base;
  Wrap<std::int64_t> max_len, context, sample_bytes;

  /// f(field, set.member ...) for every option, with the same member of each set.
  template <class F, class... Sets>
  static void table(F&& f, Sets&... sets) {
    f(field{"Text", "documents",
            "file: a file is one document; percent: lines of a single % part its documents. Default: percent for the "
            "default text, file for --data",
            zero_is_value},
      sets.documents...);
    f(field{"Text", "max-len",
            "leave out documents longer than so many bytes; nothing is ever cut. Default: none are left out"},
      sets.max_len...);
    f(field{"Text", "validation", "share of the documents kept for validation"}, sets.validation_share...);
    f(field{"Model", "preset", "sizes to start from: small, tiny, 0.6b, 1.7b, 4b or 8b", zero_is_value},
      sets.preset...);
    run_fields<Wrap>::size_table(f, sets...);
    f(field{"Model", "ablate", "none, or attention: its output is zero, to see what it is worth", zero_is_value},
      sets.ablate...);
    f(field{"Base and adapter", "base",
            "directory of a Hugging Face Qwen3 checkpoint to start from; its sizes and its tokenizer.json, if it has "
            "one, "
            "are taken",
            zero_is_value},
      sets.base...);
    run_fields<Wrap>::adapter_table(f, "projections with an adapter, of q,k,v,o,gate,up,down. Default: all", sets...);
    f(field{"Training", "context", "tokens of a window"}, sets.context...);
    f(field{"Training", "batch", "windows that are computed at once"}, sets.batch...);
    f(field{"Training", "lr", "peak learning rate. Default with --adapter lora 0.0001, lokr 0.002"},
      sets.learning_rate...);
    run_fields<Wrap>::training_table(f, sets...);
    run_fields<Wrap>::machine_table(f, sets...);
    f(field{"Output", "sample-bytes", "length of the text generated before and after; 0: none", zero_is_value,
            no_result},
      sets.sample_bytes...);
    f(field{"Output", "prompt", "what the samples begin with. Default: the start of a document", zero_is_value,
            no_result},
      sets.prompt...);
  }
};

struct lm_options : lm_fields<std::optional>, run_request {};

/// Every value decided, and which of them the user decided.
struct lm_settings : lm_fields<plain>, run_places {
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
};

/// The options that a preset sets. Throws bad-option.
lm_options preset_named(std::string const& name);

/// Adds the options to a CLI11 command, which fills `options` when it parses; call forget_zeros afterwards.
void add_lm_options(CLI::App& app, lm_options& options);
/// The options of an argument list, program and subcommand left out. Throws bad-option; an option that is documented as
/// "0 is unset" and given 0 comes out unset.
lm_options parse_lm(std::vector<std::string> const& arguments);

/// Decides every value that `options` leaves open. Throws bad-option, with the numbers, where values do not fit.
lm_settings resolve(lm_options const& options);

}  // namespace trainer
