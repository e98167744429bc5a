#include "lm_command.hpp"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "lm_trainer.hpp"
#include "model_files.hpp"
#include "run_loop.hpp"

namespace trainer {
namespace {

curve_words const words_of_curve{"nats per token", "add-one bigram"};

/// Text as it can be shown: printable UTF-8 stays, every other byte becomes \xNN; indented.
std::string shown(std::string const& text) {
  std::string out = "  | ";
  for (std::size_t i = 0; i < text.size();) {
    auto const c = static_cast<unsigned char>(text[i]);
    std::size_t const length = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : 0;
    bool whole = length > 0 && i + length <= text.size() && (c >= 0x20 || c == '\t' || c == '\n') && c != 0x7f;
    for (std::size_t j = 1; whole && j < length; ++j) whole = (static_cast<unsigned char>(text[i + j]) & 0xc0) == 0x80;
    if (whole && c == 0xc2) whole = static_cast<unsigned char>(text[i + 1]) >= 0xa0;  // below: control characters
    if (c == '\n') {
      out += "\n  | ";
      ++i;
    } else if (whole) {
      out += text.substr(i, length);
      i += length;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, c == 0 ? "\\0" : "\\x%02x", c);
      out += escaped;
      ++i;
    }
  }
  return out + "\n";
}

class lm_run {
 public:
  lm_run(lm_settings const& settings, std::optional<checkpoint_header> const& resumed, run_directory const& directory)
      : settings_(settings), directory_(directory), data_(load_text_of(settings)),
        bigram_(bigram_cross_entropy(data_.train, data_.validation)), device_(device_of(settings)),
        trainer_(settings, data_, *device_, budget_of(settings, *device_)),
        loop_(settings, to_json(settings), digest(data_) ^ trainer_.base_digest(), "the text, or the frozen base,",
              directory, trainer_, resumed) {
    if (!resumed) trainer_.start();
  }

  int run() {
    describe_run();
    if (loop_.done() == 0) show_sample("before");
    std::optional<run_times> const times = loop_.run();
    return times ? finish(*times) : 0;
  }

 private:
  void describe_run() const {
    lanewise::arena_plan const& plan = trainer_.plan();
    std::printf("%s", describe(settings_).c_str());
    parameter_layout const& layout = trainer_.layout();
    std::printf(
        "model: %lld weights%s, %lld windows of %lld %s an epoch, %lld a step\n",
        static_cast<long long>(layout.trained().count()),
        layout.is_frozen()
            ? (" beside " + std::to_string(layout.full().count() + layout.half().count()) + " frozen ones").c_str()
            : "",
        static_cast<long long>(trainer_.windows_per_epoch()), static_cast<long long>(settings_.context),
        trainer_.words().is_bytes() ? "bytes" : "tokens", static_cast<long long>(settings_.windows_per_step()));
    if (!trainer_.words().is_bytes())
      std::printf("tokens: %.2f bytes each, %lld documents left out that are not UTF-8 in NFC\n",
                  trainer_.bytes_per_token(), static_cast<long long>(trainer_.refused_documents()));
    std::printf("device: %s\n", device_->describe().c_str());
    std::printf("attention: %s\n", trainer_.attention_kernels().c_str());
    std::printf("memory: plan %.1f MiB for weights, optimiser, activations and scratch, fragmentation %.1f%%\n",
                double(plan.peak()) / (1 << 20), 100 * plan.statistics().fragmentation());
    std::printf("add-one bigram: %.4f nats per byte on the validation text\n", bigram_);
    if (loop_.done() > 0) std::printf("resumed after step %lld\n", static_cast<long long>(loop_.done()));
    std::fflush(stdout);
  }

  void show_sample(char const* when) {
    if (settings_.sample_bytes == 0) return;
    std::printf("sample %s training:\n%s", when,
                shown(settings_.prompt + trainer_.sample(settings_.prompt, settings_.sample_bytes)).c_str());
    std::fflush(stdout);
  }

  int finish(run_times const& times) {
    double const token_loss = trainer_.validate(), validation = token_loss / trainer_.bytes_per_token();
    loop_.log_validation(token_loss);
    loop_.save();
    if (trainer_.layout().is_frozen())
      save_adapter(directory_, trainer_.layout(), trainer_.get(state_array::weights), settings_.base, "CAUSAL_LM");
    else save_model(directory_, settings_, trainer_);
    loop_.show_curve(
        bigram_ * trainer_.bytes_per_token(), words_of_curve,
        "Loss of lanewise-train lm, attention " + (settings_.ablate == "attention" ? "ablated" : settings_.attn));
    show_sample("after");

    double const margin = bigram_ - validation;
    bool const learned = margin >= learned_margin;
    loop_.write_summary(
        {{"bigram", bigram_}, {"validation_loss", validation}, {"margin", margin}, {"learned", learned}}, times,
        trainer_.attention_kernels(), trainer_.plan().peak());
    std::printf("validation loss %.4f, add-one bigram %.4f nats per byte: %.4f %s\n", validation, bigram_,
                std::abs(margin), margin >= 0 ? "below" : "above");
    std::printf("verdict: learned=%s (at least %.1f below the bigram is asked for)\n", learned ? "yes" : "no",
                learned_margin);
    return 0;
  }

  lm_settings const& settings_;
  run_directory const& directory_;
  text_data data_;
  double bigram_;
  std::unique_ptr<device> device_;
  lm_trainer trainer_;
  run_loop loop_;
};

}  // namespace

text_data load_text_of(lm_settings const& s) {
  text_request request;
  request.paths.assign(s.data.begin(), s.data.end());
  request.rule = s.documents == "percent" ? document_rule::percent : document_rule::file;
  request.validation_share = s.validation_share;
  request.seed = std::uint64_t(s.seed);
  if (s.max_len > 0) request.max_length = s.max_len;
  text_data const data = load_text(request);
  std::printf(
      "data: %lld documents of %lld files, skipped_long=%lld skipped_bad=%lld, max_len requested=%s actual=%lld\n",
      static_cast<long long>(data.documents), static_cast<long long>(data.files),
      static_cast<long long>(data.skipped_long), static_cast<long long>(data.skipped_bad),
      s.max_len > 0 ? std::to_string(s.max_len).c_str() : "none", static_cast<long long>(data.longest));
  std::printf("data: %zu bytes to train on, %zu for validation, split by %s\n", data.train.size(),
              data.validation.size(), data.split_by_document ? "document" : "position, since there are few documents");
  return data;
}

int run_lm(lm_options options) { return run_in_directory<lm_run>(std::move(options), "lm"); }

}  // namespace trainer
