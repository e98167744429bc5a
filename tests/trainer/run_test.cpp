// A run in one process: resuming, memory, checkpoints and their files, exact against flash, the loss curve.
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "../../examples/common/safetensors.hpp"
#include "checkpoint.hpp"
#include "counting_text.hpp"
#include "error.hpp"
#include "loss_curve.hpp"
#include "model_files.hpp"
#include "started_run.hpp"
#include "support.hpp"

using namespace trainer;
using test::error_of, test::has, test::scratch;

namespace {

text_data const& counting() {
  static text_data const data = test::counting_text();
  return data;
}

lm_settings settings(std::vector<std::string> const& more = {}) {
  lm_options o = parse_lm(more);
  o.preset = "tiny";
  o.steps = 12;
  if (!o.threads) o.threads = 2;
  return resolve(o);
}

struct run : test::started_run<lm_settings, lm_trainer> {
  explicit run(lm_settings const& s, text_data const& data = counting()) : started_run(s, data) {}
  void set_weight(std::size_t i, float value) {
    std::vector<float> w = weights();
    w[i] = value;
    trainer.set(state_array::weights, w);
  }
};

}  // namespace

TEST_CASE("the loss falls, and the same settings give the same bits on any number of threads") {
  run one(settings({"--threads", "1"})), three(settings({"--threads", "3"}));
  std::vector<double> const losses = one.steps(1, 12);
  CHECK(losses.back() < losses.front() - 0.5);
  CHECK(losses == three.steps(1, 12));
  CHECK(one.weights() == three.weights());
  CHECK(one.trainer.validate() == three.trainer.validate());
  CHECK(one.trainer.sample("1", 20) == three.trainer.sample("1", 20));
  run other(settings({"--seed", "2"}));
  CHECK(other.steps(1, 1) != run(settings()).steps(1, 1));
}

TEST_CASE("a run continued from a checkpoint equals the one that never stopped, bit for bit") {
  scratch dir;
  run_directory const directory(dir.path / "out", 0);
  run straight(settings()), first(settings()), second(settings());
  std::vector<double> const losses = straight.steps(1, 12);
  first.steps(1, 5);
  save_checkpoint(directory, {5, to_json(first.s), "d", "log\n"}, first.trainer);
  auto const path = directory.newest_checkpoint();
  REQUIRE(path);
  checkpoint_header const header = read_header(*path, "lm");
  CHECK(header.step == 5);
  CHECK(header.options == to_json(first.s));
  CHECK(header.data == "d");
  CHECK(header.log == "log\n");
  second.set_weight(0, 99);
  load_weights(*path, second.trainer);
  std::vector<double> const rest = second.steps(6, 12);
  CHECK(rest == std::vector<double>(losses.begin() + 5, losses.end()));
  CHECK(second.weights() == straight.weights());
}

TEST_CASE("flash and exact stay twins: losses agree to f32 rounding over the run") {
  run flash(settings()), exact(settings({"--attn", "exact"}));
  std::vector<double> const a = flash.steps(1, 12), b = exact.steps(1, 12);
  CHECK(a != b);  // two algorithms, so not the same bits
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) < 1e-4);
}

TEST_CASE("--ckpt: the same run in less memory") {
  run whole(settings()), cut(settings({"--ckpt", "2"}));
  CHECK(whole.steps(1, 12) == cut.steps(1, 12));
  CHECK(whole.weights() == cut.weights());
  CHECK(cut.trainer.plan().peak() < whole.trainer.plan().peak());
}

TEST_CASE("golden losses of an exact run: text, weights, order and optimiser are what they were") {
  // Recorded with OpenBLAS 0.3.21; its kernels for AVX-512, AVX2 and SSE differ by 2e-7 here.
  run r(settings({"--attn", "exact"}));
  std::vector<double> const losses = r.steps(1, 12);
  CHECK(std::abs(losses[0] - 5.53219) < 1e-4);
  CHECK(std::abs(losses[5] - 4.07051) < 1e-4);
  CHECK(std::abs(losses[11] - 3.54337) < 1e-4);
}

TEST_CASE("validation is the mean over every byte but the first, whatever the batch") {
  run a(settings({"--batch", "4"})), b(settings({"--batch", "7"}));
  CHECK(a.trainer.validate() == doctest::Approx(b.trainer.validate()).epsilon(1e-6));
  // Untrained logits are close to 0, so every byte costs close to ln 256.
  CHECK(a.trainer.validate() == doctest::Approx(std::log(256.0)).epsilon(0.02));
}

TEST_CASE("the plan is refused exactly when it is larger than free less reserve, with the numbers and a way out") {
  lm_settings const s = settings();
  std::unique_ptr<device> const on = make_cpu_device(2);
  std::size_t const need = lm_trainer::estimate(s, *on);
  std::mt19937_64 engine(1);
  for (int i = 0; i < 40; ++i) {
    std::size_t const budget = i == 0 ? need : i == 1 ? need - 1 : need / 2 + engine() % need;
    std::size_t const reserve = i < 2 ? 0 : engine() % (need / 4);
    auto const make = [&] { lm_trainer(s, counting(), *on, {budget, reserve}); };
    CAPTURE(budget);
    CHECK((error_of(make) == "no error") == (budget >= reserve + need));
  }
  std::string const error = error_of([&] { lm_trainer(s, counting(), *on, {need - 1, 0}); });
  CHECK(has(error, "out-of-memory: est "));
  CHECK(has(error, ", free "));
  CHECK(has(error, ", reserve 0.0 MiB; these would fit: --batch 2 --accumulate 2 ("));
  lm_settings smaller = s;
  smaller.batch = 2;
  CHECK_NOTHROW(lm_trainer(smaller, counting(), *on, {need - 1, 0}));
  CHECK(has(error_of([&] { lm_trainer(s, counting(), *on, {1000, 0}); }), "; not even all of them would fit"));
}

TEST_CASE("a window that is longer than the text is refused, not cut") {
  text_data tiny_text;
  tiny_text.train.assign(64, 'a');
  tiny_text.validation.assign(10, 'a');
  CHECK(has(error_of([&] { run(settings(), tiny_text); }),
            "no-samples: --context 64 needs 65 bytes of training text, there are 64"));
  tiny_text.train.push_back('a');
  CHECK_NOTHROW(run(settings(), tiny_text).steps(1, 2));
}

TEST_CASE("a loss that is not finite ends the run by name") {
  run r(settings());
  r.set_weight(3, NAN);
  CHECK(has(error_of([&] { r.steps(1, 1); }), "loss-not-finite: step 1: "));
}

namespace {

/// A line of /proc/self/status, in bytes.
double status_of(std::string const& name) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name + ":")) return std::stod(line.substr(name.size() + 1)) * 1024;
  return 0;
}

}  // namespace

TEST_CASE("the process grows by its plan, to 1%") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  pid_t const child = ::fork();  // the peak is a process's own, and tests before this one have theirs
  if (child == 0) {
    std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins anew
    double const before = status_of("VmRSS");
    run r(settings({"--attn", "exact", "--context", "1024", "--batch", "16"}));
    r.steps(1, 2);
    double const answer[2] = {status_of("VmHWM") - before, double(r.trainer.plan().peak())};
    static_cast<void>(!::write(ends[1], answer, sizeof answer));
    ::_exit(0);
  }
  double answer[2] = {};
  REQUIRE(::read(ends[0], answer, sizeof answer) == sizeof answer);
  ::waitpid(child, nullptr, 0);
  MESSAGE("grew by ", answer[0], " bytes, planned ", answer[1]);
  CHECK(answer[1] > 3e8);
  CHECK(answer[0] >= answer[1]);
  CHECK(answer[0] <= 1.01 * answer[1]);
}

TEST_CASE("checkpoints: the newest by number, the last kept, other files left alone") {
  scratch dir;
  run_directory const directory(dir.path, 0);
  CHECK_FALSE(directory.holds_a_run());
  CHECK_FALSE(directory.newest_checkpoint());
  run r(settings());
  for (std::int64_t step : {999999, 2, 1000000, 30}) save_checkpoint(directory, {step, "{}", "", ""}, r.trainer);
  dir.write("checkpoint-mine.safetensors", "x");
  CHECK(directory.newest_checkpoint() == directory.checkpoint_path(1000000));
  directory.keep_last(2);
  CHECK_FALSE(std::filesystem::exists(directory.checkpoint_path(2)));
  CHECK_FALSE(std::filesystem::exists(directory.checkpoint_path(30)));
  CHECK(std::filesystem::exists(directory.checkpoint_path(999999)));
  CHECK(directory.holds_a_run());
  directory.clear();
  CHECK_FALSE(directory.holds_a_run());
  CHECK(std::filesystem::exists(dir.path / "checkpoint-mine.safetensors"));
}

TEST_CASE("a broken checkpoint is refused with its path and reason") {
  scratch dir;
  run_directory const directory(dir.path, 0);
  run r(settings()), wider(settings({"--ffn", "160"}));
  save_checkpoint(directory, {4, "{}", "", ""}, r.trainer);
  auto const path = directory.checkpoint_path(4);
  CHECK(has(error_of([&] { load_weights(path, wider.trainer); }), "bad-checkpoint: " + path.string()));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 10);
  CHECK(has(error_of([&] { read_header(path, "lm"); }), "bad-checkpoint: " + path.string()));
  CHECK(has(error_of([&] { read_header(dir.path / "checkpoint-000005.safetensors", "lm"); }), "bad-checkpoint"));
  save_model(directory, r.s, r.trainer);
  CHECK(has(error_of([&] { read_header(dir.path / "model.safetensors", "lm"); }), "bad-checkpoint"));
  auto const spoiled = [&](auto const& spoil) {
    save_checkpoint(directory, {4, "{}", "", ""}, r.trainer);
    safetensors::file f = safetensors::read(path);
    spoil(f.tensors);
    safetensors::write(path, f);
    return error_of([&] { load_weights(path, r.trainer); });
  };
  CHECK(spoiled([](auto&) {}) == "no error");
  CHECK(has(spoiled([](auto& t) { t["adamw.v"].dtype = "I32"; }),
            "bad-checkpoint: " + path.string() + ": tensor adamw.v is I32 of "));
  CHECK(has(spoiled([](auto& t) { t["model.norm.weight"].shape = {8, 8}; }), ": tensor model.norm.weight is F32 of "));
  CHECK(has(spoiled([](auto& t) { t.erase("adamw.m"); }), ": no tensor adamw.m"));
}

TEST_CASE("the disk guard counts what will be written, and leaves what is there whole") {
  scratch dir;
  run r(settings());
  double const free_gb = double(std::filesystem::space(dir.path).available) / 1e9;
  run_directory const full(dir.path, free_gb + 100), open(dir.path, 0);
  save_checkpoint(open, {1, "{}", "", ""}, r.trainer);
  CHECK(has(error_of([&] { save_checkpoint(full, {2, "{}", "", ""}, r.trainer); }), "disk-low: " + dir.path.string()));
  CHECK(open.newest_checkpoint() == open.checkpoint_path(1));
  CHECK(read_header(open.checkpoint_path(1), "lm").step == 1);
  CHECK(has(error_of([&] { open.require_room(std::uint64_t(1) << 60); }), "disk-low"));
  CHECK(error_of([&] { open.require_room(1000); }) == "no error");
}

TEST_CASE("the final model has Hugging Face's names, shapes and configuration") {
  scratch dir;
  run_directory const directory(dir.path, 0);
  run r(settings());
  save_model(directory, r.s, r.trainer);
  nlohmann::json const config = nlohmann::json::parse(std::ifstream(dir.path / "config.json"));
  CHECK(config.at("model_type") == "qwen3");
  CHECK(config.at("num_key_value_heads") == 1);
  CHECK(config.at("head_dim") == 32);
  CHECK(config.at("tie_word_embeddings") == true);
  std::ifstream in(dir.path / "model.safetensors", std::ios::binary);
  std::uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), 8);
  std::string header(length, ' ');
  in.read(header.data(), std::streamsize(length));
  nlohmann::json const tensors = nlohmann::json::parse(header);
  CHECK(tensors.at("model.layers.1.self_attn.k_proj.weight").at("shape") == nlohmann::json{32, 64});
  CHECK(tensors.at("model.layers.0.mlp.down_proj.weight").at("shape") == nlohmann::json{64, 128});
  CHECK(tensors.at("model.embed_tokens.weight").at("dtype") == "F32");
}

TEST_CASE("the loss curve is drawn from the log") {
  std::string log;
  for (int t = 1; t <= 100; ++t)
    log += "{\"step\":" + std::to_string(t) + ",\"loss\":" + std::to_string(3.0 - t * 0.01) +
           ",\"learning_rate\":1,\"gradient_norm\":1}\n";
  log += "{\"step\":50,\"validation_loss\":2.25}\n{\"step\":100,\"validation_loss\":2.0}\n";
  loss_curve const curve = loss_curve::from_log(log, 2.6, {"nats per token", "add-one bigram"});
  REQUIRE(curve.training.size() == 100);
  REQUIRE(curve.validation.size() == 2);
  CHECK(curve.validation[1].loss == 2.0);
  std::string const plain = curve.terminal(40, 10, true);
  CHECK(std::count(plain.begin(), plain.end(), '\n') == 13);  // title, 10 rows, axis, labels
  CHECK(std::all_of(plain.begin(), plain.end(), [](char c) { return static_cast<unsigned char>(c) < 128; }));
  CHECK(std::count(plain.begin(), plain.end(), 'o') >= 2);
  // The lower half of the plot holds the end of the fall, the upper half its beginning.
  std::size_t const first_mark = plain.find('.', plain.find('\n'));
  CHECK(first_mark != std::string::npos);
  std::string const svg = curve.svg("title");
  CHECK(has(svg, "<svg"));
  CHECK(has(svg, "</svg>"));
  CHECK(has(svg, "add-one bigram 2.600"));
}
