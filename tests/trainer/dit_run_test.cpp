// A run of `dit` in one process: options, learning, resuming, memory, padding, validation and sampling.
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint.hpp"
#include "dit_trainer.hpp"
#include "model_files.hpp"
#include "sounds.hpp"
#include "started_run.hpp"
#include "support.hpp"

using namespace trainer;
using test::error_of, test::has, test::scratch;

namespace {

recordings const& tones() {
  static recordings const data = [] {
    scratch dir;
    test::write_tones(dir.path);
    return load_recordings({.paths = {dir.path}, .bands = 32, .validation_share = 0.25, .seed = 1});
  }();
  return data;
}

dit_settings settings(std::vector<std::string> const& more = {}) {
  dit_options o = parse_dit(more);
  if (!o.preset) o.preset = "tiny";
  o.steps = 12;
  if (!o.threads) o.threads = 2;
  dit_settings s = resolve(o);
  decide_crops(s, 60);
  return s;
}

struct run : test::started_run<dit_settings, dit_trainer> {
  explicit run(std::vector<std::string> const& more = {}) : started_run(settings(more), tones()) {}
};

}  // namespace

TEST_CASE("no argument sets nothing; what is set is pinned, 0 is unset, and it all comes back from arguments") {
  dit_options const none = parse_dit({});
  CHECK(arguments_of(none).empty());
  CHECK(resolve(none).from_user.empty());
  CHECK(resolve(none).crop_max == 0);
  dit_settings automatic = resolve(none), pinned = resolve(parse_dit({"--crop-max", "40"})),
               both = resolve(parse_dit({"--crop", "30"}));
  decide_crops(automatic, 120);
  CHECK(automatic.crop_max == 120);
  decide_crops(automatic = resolve(parse_dit({"--crop-max", "0"})), 120);
  CHECK(automatic.crop_max == 120);
  decide_crops(pinned, 120);
  CHECK(pinned.crop_max == 40);
  CHECK(pinned.crop_min == 20);
  decide_crops(both, 120);
  CHECK(both.crop_max == 30);
  CHECK(both.crop_min == 30);
  dit_options const o = parse_dit({"--crop-min", "7", "--prompt", "two words", "--lr", "0.00123", "--resume"});
  dit_options const again = parse_dit(arguments_of(o));
  CHECK(again.crop_min == o.crop_min);
  CHECK(again.learning_rate == o.learning_rate);
  CHECK(again.prompt == "two words");
  CHECK(again.resume);
  CHECK(arguments_of(again) == arguments_of(o));
}

TEST_CASE("the longest crop is the preset's bound where the recordings are longer: less with the softmax chain") {
  dit_settings flash = resolve(parse_dit({"--preset", "xl"})),
               exact = resolve(parse_dit({"--preset", "xl", "--attn", "exact"}));
  decide_crops(flash, 100'000);
  decide_crops(exact, 100'000);
  CHECK(flash.crop_max == 6000);
  CHECK(exact.crop_max == 1250);
}

TEST_CASE("the presets are the published sizes") {
  dit_shape const b2 = resolve(parse_dit({"--preset", "2b"})).model(),
                  xl = resolve(parse_dit({"--preset", "xl"})).model(),
                  mm3 = resolve(parse_dit({"--preset", "mm3"})).model();
  CHECK((b2.layers == 24 && b2.hidden == 2048 && b2.q_heads == 16 && b2.kv_heads == 8 && b2.ffn == 6144));
  CHECK((xl.layers == 32 && xl.hidden == 2560 && xl.q_heads == 32 && xl.head_dim == 128 && xl.ffn == 9728));
  CHECK((mm3.style == dit_style::mm3 && mm3.head_dim == 64 && mm3.kv_heads == 32 && mm3.rotated == 32));
  CHECK((xl.patch == 2 && xl.window == 128 && mm3.patch == 1));
}

TEST_CASE("values that do not fit are refused with their numbers") {
  auto const error = [](std::vector<std::string> const& a) { return error_of([&] { settings(a); }); };
  CHECK(has(error({"--preset", "huge"}), "bad-option: --preset: huge is none of small, tiny"));
  CHECK(has(error({"--style", "other"}), "bad-option: --style: other is neither ace nor mm3"));
  CHECK(
      has(error({"--crop-max", "61"}), "--crop-max: 61 frames are more than the longest stretch to train on has, 60"));
  CHECK(has(error({"--crop-max", "30", "--crop-min", "31"}), "--crop-min: 31 is more than the 30"));
  CHECK(has(error({"--crop", "31", "--patch", "2"}), "--crop-max: 31 is no multiple of --patch 2"));
  CHECK(has(error({"--prompt", "\xff"}), "bad-option: --prompt is not UTF-8"));
  CHECK(has(error({"--bands", "31"}), "--bands: 31 is not even"));
  CHECK(has(error({"--caption-dropout", "1.5"}), "--caption-dropout: 1.5 is more than 1"));
  CHECK(has(error({"--batch", "-1"}), "--batch: -1 is negative"));
  CHECK(has(error({"--ckpt", "3"}), "--ckpt: 3 is more than --layers 2"));
}

TEST_CASE("the loss falls in both styles, and the same settings give the same bits on any number of threads") {
  for (std::string const preset : {"tiny", "tiny-mm3"}) {
    CAPTURE(preset);
    run one({"--preset", preset, "--threads", "1"}), three({"--preset", preset, "--threads", "3"});
    double const before = one.trainer.validate().loss;
    CHECK(one.steps(1, 12) == three.steps(1, 12));
    CHECK(one.weights() == three.weights());
    CHECK(one.trainer.validate().loss == three.trainer.validate().loss);
    CHECK(one.trainer.validate().loss < before - 0.2);
    CHECK(one.trainer.sample("low tone", 3) == three.trainer.sample("low tone", 3));
  }
  CHECK(run({"--seed", "2"}).steps(1, 1) != run().steps(1, 1));
}

TEST_CASE("a run continued from a checkpoint equals the one that never stopped, bit for bit") {
  scratch dir;
  run_directory const directory(dir.path / "out", 0);
  run straight, first, second;
  std::vector<double> const losses = straight.steps(1, 12);
  first.steps(1, 5);
  save_checkpoint(directory, {5, to_json(first.s), "d", "log\n"}, first.trainer);
  auto const path = directory.newest_checkpoint();
  REQUIRE(path);
  CHECK(read_header(*path, "dit").step == 5);
  CHECK(has(error_of([&] { read_header(*path, "lm"); }),
            "bad-checkpoint: " + path->string() + ": format 'lanewise-train dit 1'"));
  load_weights(*path, second.trainer);
  CHECK(second.steps(6, 12) == std::vector<double>(losses.begin() + 5, losses.end()));
  CHECK(second.weights() == straight.weights());
}

TEST_CASE("a resumed run keeps its prompt, whose length cuts the sums over captions") {
  std::string const saved = to_json(settings({"--prompt", "one"}));
  CHECK(resolve(continue_from(parse_dit({}), saved)).prompt == "one");
  CHECK(has(error_of([&] {
              continue_from(parse_dit({"--prompt", "another"}), saved);
            }),
            "resume-mismatch: --prompt is another, but the run to continue has one"));
}

TEST_CASE("a checkpoint holds what turns latents into coefficients") {
  safetensors::file const f = weights_of(run().trainer);
  safetensors::tensor const& deviation = f.tensors.at("latents.deviation");
  REQUIRE(deviation.data.size() == 32 * sizeof(float));
  CHECK(std::memcmp(deviation.data.data(), tones().deviation.data(), deviation.data.size()) == 0);
  CHECK(f.tensors.contains("latents.mean"));
}

TEST_CASE("accumulated batches are one batch, and recomputed layers change no bit") {
  run one({"--batch", "4"}), parts({"--batch", "2", "--accumulate", "2"}), segments({"--batch", "4", "--ckpt", "2"});
  std::vector<double> const a = one.steps(1, 4), b = parts.steps(1, 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-5));
  CHECK(segments.steps(1, 4) == a);
  CHECK(segments.weights() == one.weights());
}

TEST_CASE("flash and exact stay twins") {
  std::vector<double> const a = run({"--attn", "flash"}).steps(1, 6), b = run({"--attn", "exact"}).steps(1, 6);
  CHECK(a != b);  // two algorithms, so not the same bits
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) < 1e-4);
}

TEST_CASE("validation does not depend on the batch, and a model that predicts 0 has the velocity's mean square") {
  run a({"--batch", "4"}), b({"--batch", "7"});
  flow_validation const v = a.trainer.validate(), w = b.trainer.validate();
  CHECK(v.loss == doctest::Approx(w.loss).epsilon(1e-6));
  CHECK(v.linear == doctest::Approx(w.linear).epsilon(1e-9));
  a.trainer.set(state_array::weights, std::vector<float>(a.weights().size()));
  // The expected square of x1 - x0 is 1 + x0^2, and 1024 latents or more make each draw's mean.
  double square = 0;
  for (stretch const& s : tones().validation)
    for (std::int64_t i = 0; i < s.frames * 32; ++i)
      square += double(tones().frame(s, 0)[i]) * double(tones().frame(s, 0)[i]);
  square /= double(tones().frames_of(tones().validation) * 32);
  CHECK(a.trainer.validate().loss == doctest::Approx(1 + square).epsilon(0.02));
}

TEST_CASE("the padding up to the longest crop changes nothing") {
  for (stretch const& s : tones().validation) REQUIRE(s.frames <= 34);
  for (std::string const preset : {"tiny", "tiny-mm3"}) {
    run tight({"--preset", preset, "--crop-max", "34"}), loose({"--preset", preset, "--crop-max", "60"});
    CHECK(tight.trainer.validate(4).loss == doctest::Approx(loose.trainer.validate(4).loss).epsilon(1e-6));
  }
}

TEST_CASE("targets that have changed places teach nothing") {
  run learning({"--lr", "0.003"}), ablated({"--lr", "0.003", "--ablate", "targets"});
  learning.steps(1, 12);
  ablated.steps(1, 12);
  CHECK(learning.trainer.validate().loss < ablated.trainer.validate().loss - 0.2);
}

TEST_CASE("sampling follows the velocity from noise at 1 to data at 0") {
  // Without weights but the output's bias the model predicts that bias, v, everywhere; Euler's steps then end at x1 -
  // v.
  run r;
  std::vector<float> weights(r.weights().size());
  r.trainer.set(state_array::weights, weights);
  std::vector<float> const noise = r.trainer.sample("", 5);
  for (std::int64_t c = 0; c < 32; ++c) weights[std::size_t(r.trainer.layout().out_bias + c)] = float(c);
  r.trainer.set(state_array::weights, weights);
  std::vector<float> const moved = r.trainer.sample("", 5);
  REQUIRE(moved.size() == std::size_t(r.s.crop_max * 32));
  double square = 0;
  for (std::size_t i = 0; i < moved.size(); ++i) {
    REQUIRE(std::abs(moved[i] - (noise[i] - float(i % 32))) < 1e-4f);
    square += double(noise[i]) * double(noise[i]);
  }
  CHECK(square / double(noise.size()) == doctest::Approx(1).epsilon(0.1));
  CHECK(r.trainer.sample("", 5) == moved);
}

TEST_CASE("the plan is refused exactly when it is larger than free less reserve, with the numbers and a way out") {
  dit_settings const s = settings();
  std::unique_ptr<device> const on = make_cpu_device(2);
  std::size_t const need = dit_trainer::estimate(s, tones(), *on);
  CHECK_NOTHROW(dit_trainer(s, tones(), *on, {need + 100, 100}));
  std::string const error = error_of([&] { dit_trainer(s, tones(), *on, {need + 99, 100}); });
  CHECK(has(error, "out-of-memory: est "));
  CHECK(has(error, "these would fit: --batch 2 --accumulate 2 ("));
  CHECK(has(error, "--ckpt 2 ("));
  CHECK(has(error, "--crop-max "));
  CHECK(has(error_of([&] { dit_trainer(s, tones(), *on, {1000, 0}); }), "; not even all of them would fit"));
}

TEST_CASE("a weight that is not finite ends the run by name") {
  run r;
  std::vector<float> weights = r.weights();
  weights[3] = NAN;
  r.trainer.set(state_array::weights, weights);
  CHECK(has(error_of([&] { r.steps(1, 1); }), "loss-not-finite: step 1: "));
}

TEST_CASE("adapters learn beside a base that the seed draws, resume bit for bit, and need less memory than the base") {
  for (std::string const kind : {"lora", "lokr"})
    for (std::string const mirror : {"f32", "bf16-f32"}) {
      CAPTURE(kind);
      CAPTURE(mirror);
      std::vector<std::string> const how{"--adapter", kind, "--mirror", mirror, "--rank", "8", "--lr", "0.01"};
      scratch dir;
      run_directory const directory(dir.path / "out", 0);
      run straight(how), first(how), second(how);
      double const before = straight.trainer.validate().loss;
      std::vector<double> const losses = straight.steps(1, 12);
      CHECK(straight.trainer.validate().loss < before);
      first.steps(1, 5);
      save_checkpoint(directory, {5, to_json(first.s), "d", "log\n"}, first.trainer);
      load_weights(*directory.newest_checkpoint(), second.trainer);
      CHECK(second.steps(6, 12) == std::vector<double>(losses.begin() + 5, losses.end()));
      CHECK(second.weights() == straight.weights());
      CHECK(straight.trainer.plan().peak() < run().trainer.plan().peak());
    }
}

TEST_CASE("adapters that have not been trained change nothing: the loss is the drawn model's, in every order of LoKR") {
  double const loss = run().trainer.validate(2).loss;
  CHECK(run({"--adapter", "lora"}).trainer.validate(2).loss == loss);
  CHECK(run({"--adapter", "lokr"}).trainer.validate(2).loss == loss);
  CHECK(run({"--adapter", "lora", "--mirror", "bf16-f32"}).trainer.validate(2).loss ==
        doctest::Approx(loss).epsilon(1e-3));
}

TEST_CASE("an adapter's options are refused with the names that there are") {
  auto const error = [](std::vector<std::string> const& a) { return error_of([&] { settings(a); }); };
  CHECK(has(error({"--adapter", "dora"}), "bad-option: --adapter: dora is none of none, lora, lokr"));
  CHECK(has(error({"--mirror", "bf16"}), "--mirror bf16: only frozen weights are mirrored"));
  CHECK(has(error({"--adapter", "lora", "--sites", "q,gates"}),
            "--sites: gates is none of q, k, v, o, gate, up, down, cross_q"));
  CHECK(has(error({"--preset", "tiny-mm3", "--adapter", "lora", "--sites", "cross_q"}),
            "--sites: cross_q is none of q, k, v, o, gate, up, down"));
}

TEST_CASE("an adapter's option that changes nothing is refused, and a resumed run's own are none") {
  auto const error = [](std::vector<std::string> const& a) { return error_of([&] { settings(a); }); };
  for (std::string const name : {"rank", "dim", "alpha", "factor", "sites"}) {
    CAPTURE(name);
    std::string const option = "--" + name, value = name == "sites" ? "q" : "4";
    CHECK(has(error({option, value}),
              "bad-option: --" + (name == "dim" ? "rank" : name) + " has no effect without an --adapter"));
    CHECK(has(error({option, value, "--adapter", "lora"}),
              name == "factor" ? "bad-option: --factor has no effect with --adapter lora" : "no error"));
    CHECK(error({option, value, "--adapter", "lokr"}) == "no error");
  }
  for (std::vector<std::string> const& kind : {std::vector<std::string>{}, {"--adapter", "lora"}}) {
    dit_settings first = settings(kind);
    first.from_user.erase("threads");  // no result depends on them, so that a checkpoint does not hold them
    CHECK(resolve(continue_from(parse_dit({}), to_json(first))).from_user == first.from_user);
  }
}

TEST_CASE("an exported adapter, read back, gives the same validation loss in both styles") {
  for (std::string const preset : {"tiny", "tiny-mm3"})
    for (std::string const kind : {"lora", "lokr"}) {
      scratch dir;
      run r({"--preset", preset, "--adapter", kind, "--lr", "0.01"});
      r.steps(1, 3);
      save_adapter(run_directory(dir.path, 0), r.trainer.layout(), r.weights(), "", "");
      run again({"--preset", preset, "--adapter-from", dir.path.string()});
      CHECK(again.weights() == r.weights());
      CHECK(again.trainer.validate(1).loss == r.trainer.validate(1).loss);
      std::ifstream in(dir.path / "adapter_config.json");
      nlohmann::json const config = nlohmann::json::parse(in);
      CHECK(config.at("target_modules").at(0) == std::string(preset == "tiny" ? "self_attn.q_proj" : "q_proj"));
      CHECK(config.at("base_model_name_or_path").is_null());
    }
}
