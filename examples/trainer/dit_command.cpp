#include "dit_command.hpp"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "audio/wav.hpp"
#include "dit_trainer.hpp"
#include "model_files.hpp"
#include "run_loop.hpp"

namespace trainer {
namespace {

curve_words const words_of_curve{"squared error of the velocity", "linear predictor"};

class dit_run {
 public:
  dit_run(dit_settings const& settings, std::optional<checkpoint_header> const& resumed, run_directory const& directory)
      : directory_(directory), data_(load_recordings_of(settings)), settings_(with_data(settings, data_)),
        device_(device_of(settings_)), trainer_(settings_, data_, *device_, budget_of(settings_, *device_)),
        loop_(settings_, to_json(settings_), digest(data_), "the set of recordings", directory, trainer_, resumed) {
    if (!resumed) trainer_.start();
  }

  int run() {
    describe_run();
    std::optional<run_times> const times = loop_.run();
    return times ? finish(*times) : 0;
  }

 private:
  void describe_run() const {
    std::printf("%s", describe(settings_).c_str());
    dit_layout const& layout = trainer_.layout();
    std::string const frozen = std::to_string(layout.full().count() + layout.half().count());
    std::printf("model: %lld weights%s, crops of %lld to %lld frames, %lld a step\n",
                static_cast<long long>(layout.trained().count()),
                layout.is_frozen() ? (" beside " + frozen + " frozen ones, drawn from the seed").c_str() : "",
                static_cast<long long>(settings_.crop_min), static_cast<long long>(settings_.crop_max),
                static_cast<long long>(settings_.crops_per_step()));
    std::printf("device: %s\n", device_->describe().c_str());
    std::printf("attention: %s\n", trainer_.attention_kernels().c_str());
    lanewise::arena_plan const& plan = trainer_.plan();
    std::printf("memory: plan %.1f MiB for weights, optimiser, activations and scratch, fragmentation %.1f%%\n",
                double(plan.peak()) / (1 << 20), 100 * plan.statistics().fragmentation());
    if (loop_.done() > 0) std::printf("resumed after step %lld\n", static_cast<long long>(loop_.done()));
    std::fflush(stdout);
  }

  int finish(run_times const& times) {
    flow_validation const v = trainer_.validate();
    loop_.log_validation(v.loss);
    loop_.save();
    if (trainer_.layout().is_frozen())
      save_adapter(directory_, trainer_.layout(), trainer_.get(state_array::weights), "", "");
    else directory_.write("model.safetensors", weights_of(trainer_));
    loop_.show_curve(v.linear, words_of_curve, "Loss of lanewise-train dit");
    if (settings_.sample_steps > 0) write_sample();

    double const share = v.loss / v.linear;
    bool const learned = share < learned_share;
    loop_.write_summary(
        {{"validation_loss", v.loss}, {"linear_predictor", v.linear}, {"share", share}, {"learned", learned}}, times,
        trainer_.attention_kernels(), trainer_.plan().peak());
    std::printf("validation loss %.4f, best per-channel linear predictor %.4f: %.3f of it\n", v.loss, v.linear, share);
    std::printf("verdict: learned=%s (below %.1f of the linear predictor is asked for)\n", learned ? "yes" : "no",
                learned_share);
    return 0;
  }

  void write_sample() {
    sound const s{data_.rate, 1, data_.sound_of(trainer_.sample(settings_.prompt, settings_.sample_steps))};
    directory_.write("sample.wav", wav_bytes(s, sample_format::pcm16));
    std::printf("sample: %.2f s of '%s' in sample.wav\n", double(s.frames()) / double(s.rate),
                settings_.prompt.c_str());
  }

  run_directory const& directory_;
  recordings data_;
  dit_settings settings_;
  std::unique_ptr<device> device_;
  dit_trainer trainer_;
  run_loop loop_;
};

}  // namespace

recordings load_recordings_of(dit_settings const& s) {
  recordings_request request;
  request.paths.assign(s.data.begin(), s.data.end());
  request.bands = s.bands;
  request.patch = s.patch;
  request.validation_share = s.validation_share;
  request.seed = std::uint64_t(s.seed);
  recordings data = load_recordings(request);
  std::printf(
      "data: %zu recordings of %lld samples per second, %lld frames of %lld samples to train on, %lld held out\n",
      data.all.size(), static_cast<long long>(data.rate), static_cast<long long>(data.frames_of(data.train)),
      static_cast<long long>(data.bands), static_cast<long long>(data.frames_of(data.validation)));
  return data;
}

dit_settings with_data(dit_settings s, recordings const& data) {
  std::int64_t longest = 0;
  for (stretch const& part : data.train) longest = std::max(longest, part.frames);
  decide_crops(s, longest);
  if (s.prompt.empty()) s.prompt = data.all.front().caption;
  return s;
}

int run_dit(dit_options options) { return run_in_directory<dit_run>(std::move(options), "dit"); }

}  // namespace trainer
