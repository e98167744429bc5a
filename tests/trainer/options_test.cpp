// Options: what is not set stays unset, 0 is unset where it is documented so, presets pin nothing.
#include "options.hpp"

#include "error.hpp"
#include "support.hpp"

using namespace trainer;
using test::error_of, test::has;

namespace {

/// Names of the options that hold a value.
std::set<std::string> set_in(lm_options const& o) {
  std::set<std::string> names;
  for_each_field(
      [&](field const& f, auto const& value) {
        if (value) names.insert(f.name);
      },
      o);
  return names;
}

}  // namespace

TEST_CASE("no argument sets nothing, and every value is decided") {
  lm_options const o = parse_lm({});
  CHECK(set_in(o).empty());
  CHECK(arguments_of(o).empty());
  lm_settings const s = resolve(o);
  CHECK(s.from_user.empty());
  CHECK(s.steps > 0);
  CHECK(s.warmup == (s.steps + 19) / 20);
  CHECK(s.documents == "percent");
  CHECK(s.max_len == 0);
}

TEST_CASE("a value is pinned; 0 is the same as leaving the option out") {
  CHECK(resolve(parse_lm({"--context", "100"})).context == 100);
  CHECK(resolve(parse_lm({"--context", "100"})).from_user == std::set<std::string>{"context"});
  for (std::string const name : {"context", "max-len", "steps", "batch", "layers", "threads", "keep-last",
                                 "min-free-gb", "memory-mb", "lr", "validate-every"}) {
    CAPTURE(name);
    CHECK(set_in(parse_lm({"--" + name, "0"})).empty());
    CHECK(set_in(parse_lm({"--" + name, "3"})) == std::set<std::string>{name});
  }
}

TEST_CASE("where 0 means something it is a value") {
  for (std::string const name : {"seed", "warmup", "weight-decay", "sample-bytes"}) {
    CAPTURE(name);
    CHECK(set_in(parse_lm({"--" + name, "0"})) == std::set<std::string>{name});
  }
  CHECK(resolve(parse_lm({"--warmup", "0"})).warmup == 0);
  CHECK(resolve(parse_lm({"--seed", "0"})).seed == 0);
}

TEST_CASE("options to arguments and back: the same options, and defaults leave no trace") {
  CHECK(set_in(parse_lm(arguments_of(lm_options{}))).empty());
  std::vector<std::string> const arguments{"--data",  "a",        "b",         "--seed", "7", "--lr",
                                           "0.00123", "--prompt", "two words", "--out",  "x", "--resume"};
  lm_options const o = parse_lm(arguments), again = parse_lm(arguments_of(o));
  CHECK(set_in(o) == std::set<std::string>{"seed", "lr", "prompt"});
  CHECK(set_in(again) == set_in(o));
  CHECK(again.data == o.data);
  CHECK(again.learning_rate == o.learning_rate);
  CHECK(again.prompt == "two words");
  CHECK(again.out == "x");
  CHECK(again.resume);
  CHECK_FALSE(again.overwrite);
}

TEST_CASE("a preset fills what is open and pins nothing") {
  lm_settings const s = resolve(parse_lm({"--preset", "tiny", "--hidden", "96"}));
  CHECK(s.from_user == std::set<std::string>{"preset", "hidden"});
  CHECK(s.hidden == 96);
  CHECK(s.layers == 2);
  CHECK(resolve(parse_lm({"--preset", "tiny", "--hidden", "0"})).hidden == 64);
}

TEST_CASE("the presets of published models have their number of weights beside the embedding") {
  for (auto const& [name, billions] : {std::pair("0.6b", 0.44), {"1.7b", 1.4}, {"4b", 3.6}, {"8b", 6.95}}) {
    CAPTURE(name);
    lm_settings const s = resolve(parse_lm({"--preset", name}));
    double const count = double(parameter_layout(s.model()).full().count() - 256 * s.hidden);
    CHECK(count / 1e9 == doctest::Approx(billions).epsilon(0.015));  // as Qwen's model cards round it
  }
}

TEST_CASE("the log says where each value came from") {
  std::string const text = describe(resolve(parse_lm({"--seed", "3", "--max-len", "0"})));
  std::size_t const automatic = text.find("options source=auto:");
  REQUIRE(automatic != std::string::npos);
  CHECK(has(text.substr(0, automatic), "options source=user: --seed 3"));
  CHECK(has(text.substr(automatic), "--steps "));
  CHECK(has(text.substr(automatic), "--max-len unset"));
  CHECK_FALSE(has(text.substr(automatic), "--seed"));
}

TEST_CASE("a resumed run takes its values from the run that it continues") {
  lm_settings const first = resolve(parse_lm({"--steps", "30", "--threads", "2"}));
  lm_settings const again = resolve(continue_from(parse_lm({"--threads", "1", "--steps", "30"}), to_json(first)));
  CHECK(to_json(again) != "");
  CHECK(again.steps == 30);
  CHECK(again.threads == 1);
  CHECK(again.max_len == 0);
  CHECK(again.from_user == std::set<std::string>{"steps", "threads"});
  std::string const error = error_of([&] { continue_from(parse_lm({"--lr", "0.5"}), to_json(first)); });
  CHECK(has(error, "resume-mismatch: --lr is 0.5, but the run to continue has 0.003"));
}

TEST_CASE("values that do not fit are refused with their numbers") {
  auto const error = [](std::vector<std::string> const& a) { return error_of([&] { resolve(parse_lm(a)); }); };
  CHECK(has(error({"--heads", "4", "--kv-heads", "3"}), "bad-option: --kv-heads: 3 does not divide --heads 4"));
  CHECK(has(error({"--batch", "-1"}), "bad-option: --batch: -1 is negative"));
  CHECK(has(error({"--attn", "quick"}), "bad-option: --attn: quick"));
  CHECK(has(error({"--preset", "huge"}), "bad-option: --preset: huge"));
  CHECK(has(error({"--warmup", "50", "--steps", "20"}), "bad-option: --warmup: 50 is more than --steps 20"));
  CHECK(has(error({"--ckpt", "5"}), "bad-option: --ckpt: 5 is more than --layers 4"));
  CHECK(has(error({"--layers", "many"}), "bad-option"));
  CHECK(has(error({"--nonsense", "1"}), "bad-option"));
  CHECK(has(error({"--lr", "nan"}), "bad-option: --lr: nan is no number"));
  CHECK(has(error({"--seed", "9223372036854775808"}), "--seed: 9223372036854775808 is more than 64 bits hold"));
  CHECK(has(error({"--factor", "-9223372036854775809"}), "--factor: -9223372036854775809 is more than 64 bits hold"));
  CHECK(has(error({"--resume", "--overwrite"}), "bad-option: --resume excludes --overwrite"));
  CHECK(error({"--seed", "9223372036854775807", "--steps", "9223372036854775807"}) == "no error");
}
