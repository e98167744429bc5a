// Options of `lanewise-train dit`, beside those that the commands share (run_options.hpp).
#pragma once

#include "dit_model.hpp"
#include "flow.hpp"
#include "run_options.hpp"

namespace trainer {

template <template <class> class Wrap>
struct dit_fields : run_fields<Wrap> {
  Wrap<std::string> style;
  Wrap<std::int64_t> bands, patch, caption_width, window, crop, crop_min, crop_max, sample_steps;
  Wrap<double> caption_dropout, time_mean, time_deviation;

  /// f(field, set.member ...) for every option, with the same member of each set.
  template <class F, class... Sets>
  static void table(F&& f, Sets&... sets) {
    f(field{"Data", "bands", "channels of a latent: a frame of so many samples becomes as many coefficients"},
      sets.bands...);
    f(field{"Data", "validation", "share of each recording that is held out for validation"}, sets.validation_share...);
    f(field{"Model", "preset", "sizes to start from: small, tiny, tiny-mm3, 2b, xl or mm3", zero_is_value},
      sets.preset...);
    f(field{"Model", "style", "ace: as ACE-Step 1.5; mm3: as MM3, which knows no captions", zero_is_value},
      sets.style...);
    run_fields<Wrap>::size_table(f, sets...);
    f(field{"Model", "patch", "frames of a token"}, sets.patch...);
    f(field{"Model", "window", "ace: every other layer sees keys at most so many tokens away"}, sets.window...);
    f(field{"Model", "caption-width", "width of the captions' embedding"}, sets.caption_width...);
    f(field{"Model", "ablate",
            "none; attention: its output is zero; targets: a crop's targets change places at random, so that nothing "
            "can be learned",
            zero_is_value},
      sets.ablate...);
    run_fields<Wrap>::adapter_table(
        f,
        "projections with an adapter, of q,k,v,o,gate,up,down,cross_q,cross_k,cross_v,cross_o. Default: all that the "
        "style has",
        sets...);
    f(field{"Training", "crop", "frames of every crop: --crop-min and --crop-max in one"}, sets.crop...);
    f(field{"Training", "crop-min", "fewest frames of a crop. Default: half of --crop-max"}, sets.crop_min...);
    f(field{"Training", "crop-max",
            "most frames of a crop. Default: the longest stretch of the recordings, up to the preset's bound"},
      sets.crop_max...);
    f(field{"Training", "batch", "crops that are computed at once"}, sets.batch...);
    f(field{"Training", "caption-dropout", "share of the crops that are seen without their caption; 0: none",
            zero_is_value},
      sets.caption_dropout...);
    f(field{"Training", "time-mean", "mean of the logit of the time t (1: noise)", zero_is_value}, sets.time_mean...);
    f(field{"Training", "time-deviation", "its standard deviation", zero_is_value}, sets.time_deviation...);
    f(field{"Training", "lr", "peak learning rate"}, sets.learning_rate...);
    run_fields<Wrap>::training_table(f, sets...);
    run_fields<Wrap>::machine_table(f, sets...);
    f(field{"Output", "sample-steps", "steps of the sample's way from noise to sound; 0: no sample", zero_is_value,
            no_result},
      sets.sample_steps...);
    // The captions of a batch are as long as the longest, this one too, and sums are cut by their length.
    f(field{"Output", "prompt", "the sample's caption. Default: that of the first recording", zero_is_value},
      sets.prompt...);
  }
};

struct dit_options : dit_fields<std::optional>, run_request {};

/// Every value decided but the crops, which depend on the recordings; and which of them the user decided.
struct dit_settings : dit_fields<plain>, run_places {
  dit_shape model() const;
  adaptation adapted() const;
  flow_times times() const { return {time_mean, time_deviation}; }
  /// Crops of a step.
  std::int64_t crops_per_step() const { return batch * accumulate; }
  std::int64_t tokens() const { return crop_max / patch; }
};

/// A preset of `dit`, and how long its crops are by default at most.
struct dit_preset {
  dit_options values;
  std::int64_t longest_exact, longest_flash;  ///< frames
};
/// Throws bad-option.
dit_preset dit_preset_named(std::string const& name);

void add_dit_options(CLI::App& app, dit_options& options);
/// The options of an argument list, program and subcommand left out. Throws bad-option.
dit_options parse_dit(std::vector<std::string> const& arguments);

/// Decides what `options` leaves open. Throws bad-option, with the numbers, where values do not fit.
dit_settings resolve(dit_options const& options);
/// Decides the crops: longest is the frames of the longest stretch to train on. Throws bad-option.
void decide_crops(dit_settings& settings, std::int64_t longest);

}  // namespace trainer
