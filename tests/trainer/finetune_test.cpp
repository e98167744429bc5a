// Adapters on a frozen base, as runs: what is trained and what is not, mirrors, accumulation, resuming, export.
#include "adapter_files.hpp"
#include "checkpoint.hpp"
#include "counting_text.hpp"
#include "error.hpp"
#include "model_files.hpp"
#include "started_run.hpp"
#include "support.hpp"
#include "trained_base.hpp"
#include "twelve_epochs.hpp"

using namespace trainer;
using test::error_of, test::has, test::scratch;

namespace {

text_data const& words() {
  static text_data const data = test::counting_text(260, 20000);
  return data;
}

lm_settings settings(std::vector<std::string> const& more) {
  lm_options o = parse_lm(more);
  o.preset = "tiny";
  if (!o.steps) o.steps = 12;
  if (!o.threads) o.threads = 2;
  return resolve(o);
}

struct run : test::started_run<lm_settings, lm_trainer> {
  explicit run(std::vector<std::string> const& options, text_data const& data = words())
      : started_run(settings(options), data) {}
};

/// Options that adapt a trained model of bytes, made once; `more` follow.
std::vector<std::string> adapting(std::vector<std::string> more) {
  static test::trained_base const base;
  more.insert(more.end(), {"--base", base.path.string()});
  if (std::ranges::find(more, "--lr") == more.end()) more.insert(more.end(), {"--lr", "0.01"});
  return more;
}

std::vector<std::vector<std::string>> every_adapter() {
  return {{"--adapter", "lora", "--rank", "4", "--alpha", "8"},
          {"--adapter", "lora", "--rank", "2", "--sites", "q,down"},
          {"--adapter", "lokr", "--dim", "64", "--factor", "4"},
          {"--adapter", "lokr", "--dim", "3", "--factor", "4", "--alpha", "6"}};
}

}  // namespace

TEST_CASE("every adapter lowers the loss from the base's, which it starts from") {
  run base(adapting({}));
  double const before = base.trainer.validate();
  for (std::vector<std::string> options : every_adapter()) {
    options.insert(options.end(), {"--steps", "30"});
    run r(adapting(options));
    CHECK(r.trainer.validate() == before);
    std::vector<double> const losses = r.steps(1, 30);
    CHECK(r.trainer.validate() < before - 0.01);
    CHECK(losses == run(adapting(options)).steps(1, 30));
  }
}

TEST_CASE("a run continued from a checkpoint of an adapter equals the one that never stopped") {
  scratch dir;
  run_directory const directory(dir.path, 0);
  std::vector<std::string> const options = adapting({"--adapter", "lokr", "--dim", "3", "--factor", "4"});
  run straight(options), first(options), second(options);
  std::vector<double> const losses = straight.steps(1, 12);
  first.steps(1, 5);
  save_checkpoint(directory, {5, to_json(first.s), "d", ""}, first.trainer);
  load_weights(directory.checkpoint_path(5), second.trainer);
  CHECK(second.steps(6, 12) == std::vector<double>(losses.begin() + 5, losses.end()));
  CHECK(second.weights() == straight.weights());
  CHECK(second.trainer.base_digest() == straight.trainer.base_digest());
}

TEST_CASE("an exported adapter, read back, gives the same validation loss") {
  for (std::vector<std::string> const& options : every_adapter()) {
    scratch dir;
    run r(adapting(options));
    r.steps(1, 6);
    save_adapter(run_directory(dir.path, 0), r.trainer.layout(), r.weights(), r.s.base, "CAUSAL_LM");
    run again(adapting({"--adapter-from", dir.path.string()}));
    CHECK(again.weights() == r.weights());
    CHECK(again.trainer.validate() == r.trainer.validate());
    CHECK(std::filesystem::exists(dir.path / "lycoris.safetensors") == (r.s.adapter == "lokr"));
    CHECK(has(error_of([&] {
                settings(adapting({"--adapter-from", dir.path.string(), "--rank", "7"}));
              }),
              "bad-option: --rank 7, but " + dir.path.string() + " has "));
  }
}

TEST_CASE("twelve epochs: stored in bf16 and multiplied in f32 is f32 to the bit; multiplied in bf16 is not") {
  test::check_mirrors_over_twelve_epochs(
      [](std::vector<std::string> const& options) { return run(adapting(options)); });
}

TEST_CASE(
    "memory: gradients for what is trained alone, half the room for mirrored weights, one matrix widened at a time") {
  auto const plan = [](std::vector<std::string> const& more) {
    lm_settings const s = settings(adapting(more));
    std::unique_ptr<device> const on = device_of(s);
    return lm_trainer::estimate(s, *on);
  };
  lm_settings const s = settings(adapting({"--adapter", "lora", "--rank", "1", "--sites", "q", "--mirror", "bf16"}));
  parameter_layout const layout(s.model(), s.adapted());
  std::size_t const all = std::size_t(layout.full().count() + layout.half().count()) * 4,
                    projections = std::size_t(layout.half().count()) * 4;
  std::size_t largest = 0;  // as one product: q, k and v are one matrix, gate and up another
  for (auto const [rows, columns] :
       {std::pair(s.heads + 2 * s.kv_heads, s.head_dim * s.hidden), std::pair(std::int64_t(2), s.ffn * s.hidden)})
    largest = std::max(largest, std::size_t(rows * columns) * 4);
  std::size_t const full = plan({}), lora = plan({"--adapter", "lora", "--rank", "1", "--sites", "q"}),
                    mirrored = plan({"--adapter", "lora", "--rank", "1", "--sites", "q", "--mirror", "bf16-f32"});
  CHECK(full - lora >= 3 * all * 9 / 10);  // gradients and two moments, less the adapters'
  CHECK(mirrored <= lora - projections / 2 + largest + 4096);
  CHECK(mirrored < lora);
}

TEST_CASE("batches that are accumulated make the step that one batch of all makes") {
  run one(adapting({"--adapter", "lora", "--batch", "4"})),
      two(adapting({"--adapter", "lora", "--batch", "2", "--accumulate", "2"}));
  for (std::int64_t t = 1; t <= 5; ++t) {
    step_result const a = one.trainer.step(t), b = two.trainer.step(t);
    CHECK(a.loss == doctest::Approx(b.loss).epsilon(1e-6));
    CHECK(a.gradient_norm == doctest::Approx(b.gradient_norm).epsilon(1e-4));
  }
  CHECK(one.trainer.position_after(3) == two.trainer.position_after(3));
}

TEST_CASE("a run with Muon learns, and continues from a checkpoint to the same bits") {
  scratch dir;
  run_directory const directory(dir.path, 0);
  std::vector<std::string> const options =
      adapting({"--adapter", "lora", "--rank", "16", "--optimizer", "muon", "--lr", "0.005"});
  run straight(options), first(options), second(options);
  double const before = straight.trainer.validate();
  std::vector<double> const losses = straight.steps(1, 12);
  CHECK(straight.trainer.validate() < before - 0.01);
  first.steps(1, 5);
  save_checkpoint(directory, {5, to_json(first.s), "d", ""}, first.trainer);
  load_weights(directory.checkpoint_path(5), second.trainer);
  CHECK(second.steps(6, 12) == std::vector<double>(losses.begin() + 5, losses.end()));
  CHECK(second.weights() == straight.weights());
}

TEST_CASE("options that do not fit, and a base that is not there, are refused by name") {
  CHECK(has(error_of([] { settings({"--adapter", "lora"}); }), "bad-option: --adapter lora needs a --base"));
  CHECK(has(error_of([] { settings({"--mirror", "bf16"}); }), "bad-option: --mirror bf16: only frozen weights"));
  CHECK(has(error_of([] { settings({"--base", "nowhere"}); }), "bad-base: --base: there is no directory nowhere"));
  CHECK(has(error_of([] { settings(adapting({"--layers", "7"})); }), "bad-option: --layers 7, but "));
  CHECK(has(error_of([] { settings(adapting({"--context", "4096"})); }), "is more than the 64 of "));
  CHECK(has(error_of([] {
              settings(adapting({"--adapter", "lora", "--sites", "q,head"}));
            }),
            "bad-option: --sites: head is none of"));
  CHECK(has(error_of([] { settings(adapting({"--adapter", "loha"})); }), "bad-option: --adapter: loha"));
  CHECK(has(error_of([] { settings({"--base", test::data("qwen3_tied").string(), "--context", "32"}); }), "no error"));
  CHECK(has(error_of([] {
              run({"--base", test::data("qwen3_tied").string(), "--context", "32"});
            }),
            "too few for bytes"));
}
