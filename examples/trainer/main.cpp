// lanewise-train: trains models through lanewise's attention. `lanewise-train lm` is a byte language model,
// `lanewise-train dit` a diffusion transformer of sound; --help says the rest, docs/trainer.md more.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>

#include "dit_command.hpp"
#include "error.hpp"
#include "fit_command.hpp"
#include "lm_command.hpp"
#include "make_data_command.hpp"
#include "profile_command.hpp"
#include "twin_command.hpp"

int main(int argc, char** argv) {
  CLI::App app("Trains models through lanewise's attention, on the CPU.", "lanewise-train");
  app.require_subcommand(1);
  CLI::App* const lm = app.add_subcommand(
      "lm",
      "a language model (Qwen3 architecture) on text files, by default on the Debian package fortunes: of bytes from "
      "nothing, or a checkpoint of Hugging Face's, whole or through an adapter");
  trainer::lm_options lm_options;
  trainer::add_lm_options(*lm, lm_options);
  CLI::App* const dit = app.add_subcommand("dit",
                                           "a diffusion transformer of sound (rectified flow; the manner of ACE-Step "
                                           "1.5 or MM3) on WAV files with captions, "
                                           "by default on the Debian package alsa-utils");
  trainer::dit_options dit_options;
  trainer::add_dit_options(*dit, dit_options);
  CLI::App* const profile = app.add_subcommand("profile", "what a step's time goes to, by op and attention site");
  profile->require_subcommand(1);
  trainer::profile_options<trainer::lm_options> profile_lm;
  trainer::add_profile_options(*profile->add_subcommand("lm", "of a run of lm, with its options"), profile_lm);
  trainer::profile_options<trainer::dit_options> profile_dit;
  trainer::add_profile_options(*profile->add_subcommand("dit", "of a run of dit, with its options"), profile_dit);
  CLI::App* const twin = app.add_subcommand("twin", "one run under two settings, and how far they drift apart");
  twin->require_subcommand(1);
  trainer::twin_options<trainer::lm_options> twin_lm;
  trainer::add_twin_options(*twin->add_subcommand("lm", "of a run of lm, with its options"), twin_lm);
  trainer::twin_options<trainer::dit_options> twin_dit;
  trainer::add_twin_options(*twin->add_subcommand("dit", "of a run of dit, with its options"), twin_dit);
  CLI::App* const fit = app.add_subcommand("fit", "which length, batch and checkpoint segments a card has room for");
  fit->require_subcommand(1);
  trainer::fit_options<trainer::lm_options> fit_lm;
  trainer::add_fit_options(*fit->add_subcommand("lm", "for lm, with its options; what is set stays"), fit_lm);
  trainer::fit_options<trainer::dit_options> fit_dit;
  trainer::add_fit_options(*fit->add_subcommand("dit", "for dit, with its options; what is set stays"), fit_dit);
  CLI::App* const make_data =
      app.add_subcommand("make-data", "writes a folder of made-up songs with captions, which dit --data reads");
  trainer::make_data_options make_data_options;
  trainer::add_make_data_options(*make_data, make_data_options);
  try {
    app.parse(argc, argv);
  } catch (CLI::CallForHelp const& e) {
    return app.exit(e);
  } catch (CLI::ParseError const& e) {
    trainer::named_error const error = trainer::bad_option(e.what());
    std::fprintf(stderr, "error: %s: %s; --help lists the options\n", error.name.c_str(), error.what());
    return error.exit_code;
  }
  try {
    trainer::forget_zeros(lm_options);
    trainer::forget_zeros(dit_options);
    trainer::forget_zeros(profile_lm.run);
    trainer::forget_zeros(profile_dit.run);
    trainer::forget_zeros(twin_lm.run);
    trainer::forget_zeros(twin_dit.run);
    trainer::forget_zeros(fit_lm.run);
    trainer::forget_zeros(fit_dit.run);
    if (*dit) return trainer::run_dit(dit_options);
    if (*profile) return profile->got_subcommand("dit") ? run_profile(profile_dit) : run_profile(profile_lm);
    if (*twin) return twin->got_subcommand("dit") ? run_twin(twin_dit) : run_twin(twin_lm);
    if (*fit) return fit->got_subcommand("dit") ? run_fit(fit_dit) : run_fit(fit_lm);
    if (*make_data) return trainer::run_make_data(make_data_options);
    return trainer::run_lm(lm_options);
  } catch (trainer::named_error const& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s: %s\n", e.name.c_str(), e.what());
    return e.exit_code;
  } catch (std::bad_alloc const&) {
    std::fprintf(stderr, "error: out-of-memory: the system refused memory beside the plan, such as for the data\n");
    return 6;
  } catch (std::exception const& e) {
    std::fprintf(stderr, "error: failed: %s\n", e.what());
    return 1;
  }
}
