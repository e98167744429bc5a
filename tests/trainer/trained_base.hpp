// A model of bytes to adapt: trained for a moment, its weights numbers that bf16 has.
#pragma once

#include "../../examples/common/safetensors.hpp"
#include "counting_text.hpp"
#include "lm_trainer.hpp"
#include "model_files.hpp"

namespace test {

/// The tiny preset after sixty steps on the CPU, as Hugging Face has it, in a directory of its own.
struct trained_base : scratch {
  trained_base() {
    trainer::lm_settings const s =
        trainer::resolve(trainer::parse_lm({"--preset", "tiny", "--steps", "60", "--threads", "2"}));
    std::unique_ptr<trainer::device> const on = trainer::device_of(s);
    trainer::text_data const text = counting_text(2000);
    trainer::lm_trainer run(s, text, *on, {std::size_t(1) << 32, 0});
    run.start();
    for (std::int64_t t = 1; t <= s.steps; ++t) run.step(t);
    save_model(trainer::run_directory(path, 0), s, run);
    safetensors::file f = safetensors::read(path / "model.safetensors");
    for (auto& [name, t] : f.tensors) {
      std::vector<float> values = safetensors::values<float>(t);
      for (float& v : values) v = lanewise::to_float(lanewise::from_float<lanewise::bf16>(v));
      t = safetensors::make<float>(t.shape, values);
    }
    safetensors::write(path / "model.safetensors", f);
  }
};

}  // namespace test
