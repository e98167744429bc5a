#include "lm_command.hpp"

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint.hpp"
#include "error.hpp"
#include "lm_trainer.hpp"
#include "loss_curve.hpp"
#include "progress.hpp"
#include "signals.hpp"

namespace trainer {
namespace {

namespace fs = std::filesystem;

/// Windows of a look at the validation text during training; the end looks at all of it.
constexpr std::int64_t validation_glance = 64;

std::string number(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

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

bool terminal_is_plain() {
  for (char const* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (char const* const value = std::getenv(name); value && *value) {
      std::string const text = value;
      return text.find("UTF-8") == std::string::npos && text.find("utf8") == std::string::npos;
    }
  return true;
}

class lm_run {
 public:
  lm_run(lm_settings const& settings, std::optional<checkpoint_header> resumed, run_directory const& directory)
      : settings_(settings), directory_(directory), data_(load_text_of(settings)),
        bigram_(bigram_cross_entropy(data_.train, data_.validation)), device_(device_of(settings)),
        trainer_(settings, data_, *device_, budget_of(settings, *device_)) {
    char hexadecimal[20];
    std::snprintf(hexadecimal, sizeof hexadecimal, "%016llx",
                  static_cast<unsigned long long>(digest(data_) ^ trainer_.base_digest()));
    header_ = {0, to_json(settings), hexadecimal, {}};
    if (resumed) {
      if (resumed->data != header_.data)
        throw resume_mismatch("the text, or the frozen base, differs from that of the run to continue: digest " +
                              header_.data + ", then " + resumed->data);
      load_weights(directory.checkpoint_path(resumed->step), trainer_);
      header_ = *resumed;
    } else {
      trainer_.start();
    }
  }

  int run() {
    describe_run();
    if (header_.step == 0) show_sample("before");
    directory_.write("log.jsonl", header_.log);
    log_.open(directory_.path() / "log.jsonl", std::ios::binary | std::ios::app);
    progress bar(settings_.steps, header_.step, settings_.windows_per_step() * settings_.context, settings_.log_every,
                 isatty(STDOUT_FILENO) == 1);
    std::int64_t saved = -1;
    trained_steps_ = settings_.steps - header_.step;
    std::clock_t const begin = std::clock();
    for (std::int64_t t = header_.step + 1; t <= settings_.steps; ++t) {
      if (int const signal = stop_.received()) return stopped(signal, saved);
      step_result const r = trainer_.step(t);
      header_.step = t;
      log("{\"step\":" + std::to_string(t) + ",\"loss\":" + number(r.loss) +
          ",\"learning_rate\":" + number(r.learning_rate) + ",\"gradient_norm\":" + number(r.gradient_norm) + "}\n");
      bar.step(t, r.loss, r.learning_rate);
      bar.pause();
      if (t % settings_.validate_every == 0 && t < settings_.steps) {
        double const loss = trainer_.validate(validation_glance);
        log_validation(t, loss);
        char rounded[32];
        std::snprintf(rounded, sizeof rounded, "%.4f", loss);
        bar.note("step " + std::to_string(t) + ": validation loss " + rounded + " on the first " +
                 std::to_string(validation_glance) + " windows");
      }
      if (t % settings_.checkpoint_every == 0 && t < settings_.steps) {
        save();
        saved = t;
      }
      bar.resume();
    }
    seconds_ = bar.seconds();
    processor_seconds_ = double(std::clock() - begin) / CLOCKS_PER_SEC;
    speed_ = bar.tokens_per_second(settings_.steps);
    bar.pause();
    return finish();
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
    if (header_.step > 0) std::printf("resumed after step %lld\n", static_cast<long long>(header_.step));
    std::fflush(stdout);
  }

  void show_sample(char const* when) {
    if (settings_.sample_bytes == 0) return;
    std::printf("sample %s training:\n%s", when,
                shown(settings_.prompt + trainer_.sample(settings_.prompt, settings_.sample_bytes)).c_str());
    std::fflush(stdout);
  }

  void log(std::string const& line) {
    header_.log += line;
    log_ << line;
    if (!log_.flush()) throw write_failed("cannot write " + (directory_.path() / "log.jsonl").string());
  }
  void log_validation(std::int64_t t, double loss) {
    if (!std::isfinite(loss))
      throw loss_not_finite("validation after step " + std::to_string(t) + ": loss " + number(loss) +
                            "; a smaller --lr or --clip may help; the last checkpoint is untouched");
    log("{\"step\":" + std::to_string(t) + ",\"validation_loss\":" + number(loss) + "}\n");
  }

  void save() {
    save_checkpoint(directory_, header_, trainer_);
    directory_.keep_last(settings_.keep_last);
  }

  int stopped(int signal, std::int64_t saved) {
    if (saved != header_.step) save();
    std::printf("\nstopped by %s after step %lld; %s is written, --resume continues\n",
                signal == SIGINT ? "SIGINT" : "SIGTERM", static_cast<long long>(header_.step),
                directory_.checkpoint_path(header_.step).filename().c_str());
    return 0;
  }

  int finish() {
    double const token_loss = trainer_.validate(), validation = token_loss / trainer_.bytes_per_token();
    log_validation(settings_.steps, token_loss);
    save();
    if (trainer_.layout().is_frozen()) save_adapter(directory_, settings_, trainer_);
    else save_model(directory_, settings_, trainer_);
    loss_curve const curve = loss_curve::from_log(header_.log, bigram_ * trainer_.bytes_per_token());
    directory_.write("loss.svg", curve.svg("Loss of lanewise-train lm, attention " +
                                           (settings_.ablate == "attention" ? "ablated" : settings_.attn)));
    std::printf("\n%s\n", curve.terminal(72, 16, terminal_is_plain()).c_str());
    show_sample("after");

    double const margin = bigram_ - validation;
    bool const learned = margin >= learned_margin;
    nlohmann::ordered_json const summary{{"bigram", bigram_},
                                         {"validation_loss", validation},
                                         {"margin", margin},
                                         {"learned", learned},
                                         {"steps", settings_.steps},
                                         {"seconds", seconds_},
                                         {"processor_seconds", processor_seconds_},
                                         {"tokens_per_second", speed_},
                                         {"threads", settings_.threads},
                                         {"attention", trainer_.attention_kernels()},
                                         {"plan_bytes", trainer_.plan().peak()}};
    directory_.write("summary.json", summary.dump(2) + "\n");
    std::printf("trained %lld steps in %.1f s, %.0f tokens/s, %lld threads; files are in %s\n",
                static_cast<long long>(trained_steps_), seconds_, speed_, static_cast<long long>(settings_.threads),
                directory_.path().c_str());
    std::printf("validation loss %.4f, add-one bigram %.4f nats per byte: %.4f %s\n", validation, bigram_,
                std::abs(margin), margin >= 0 ? "below" : "above");
    std::printf("verdict: learned=%s (at least %.1f below the bigram is asked for)\n", learned ? "yes" : "no",
                learned_margin);
    return 0;
  }

  lm_settings const& settings_;
  run_directory const& directory_;
  stop_requests stop_;
  text_data data_;
  double bigram_;
  std::unique_ptr<device> device_;
  lm_trainer trainer_;
  checkpoint_header header_;
  std::ofstream log_;
  std::int64_t trained_steps_ = 0;  // by this process: fewer than --steps after --resume, as are the seconds
  double seconds_ = 0, processor_seconds_ = 0, speed_ = 0;
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

int run_lm(lm_options options) {
  run_directory const directory(options.out, resolve(options).min_free_gb);
  run_lock const alone(directory.path());
  std::optional<checkpoint_header> resumed;
  std::set<std::string> from_user;
  if (options.resume) {
    auto const newest = directory.newest_checkpoint();
    if (!newest) throw bad_checkpoint("--resume: there is no checkpoint in " + directory.path().string());
    resumed = read_header(*newest);
    try {
      options = continue_from(options, resumed->options, from_user);
      static_cast<void>(loss_curve::from_log(resumed->log, 0));
    } catch (nlohmann::json::exception const& e) {
      throw bad_checkpoint(newest->string() + ": its options or its log cannot be read: " + e.what() +
                           "; delete it to continue from the one before");
    }
  } else if (directory.holds_a_run()) {
    if (!options.overwrite)
      throw output_exists(
          directory.path().string() +
          " holds a run: continue it with --resume, delete it with --overwrite, or choose another --out");
    directory.clear();
  }
  lm_settings settings = resolve(options);
  if (resumed) settings.from_user = from_user;
  directory.require_room(0);
  return lm_run(settings, std::move(resumed), directory).run();
}

}  // namespace trainer
