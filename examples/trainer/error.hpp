// Errors that end the program: each has a name that a script can match, a sentence with the numbers, and an exit code.
#pragma once

#include <stdexcept>
#include <string>

namespace trainer {

/// Printed as "error: NAME: sentence". docs/trainer.md lists the names.
struct named_error : std::runtime_error {
  std::string name;
  int exit_code;
  named_error(std::string name, int exit_code, std::string const& sentence)
      : std::runtime_error(sentence), name(std::move(name)), exit_code(exit_code) {}
};

inline named_error bad_option(std::string const& sentence) { return {"bad-option", 2, sentence}; }
inline named_error no_data(std::string const& sentence) { return {"no-data", 3, sentence}; }
inline named_error no_samples(std::string const& sentence) { return {"no-samples", 4, sentence}; }
inline named_error disk_low(std::string const& sentence) { return {"disk-low", 5, sentence}; }
inline named_error out_of_memory(std::string const& sentence) { return {"out-of-memory", 6, sentence}; }
inline named_error attention_unsupported(std::string const& sentence) { return {"attn-unsupported", 7, sentence}; }
inline named_error bad_checkpoint(std::string const& sentence) { return {"bad-checkpoint", 8, sentence}; }
inline named_error resume_mismatch(std::string const& sentence) { return {"resume-mismatch", 9, sentence}; }
inline named_error output_exists(std::string const& sentence) { return {"out-exists", 10, sentence}; }
inline named_error loss_not_finite(std::string const& sentence) { return {"loss-not-finite", 11, sentence}; }
inline named_error write_failed(std::string const& sentence) { return {"write-failed", 12, sentence}; }
inline named_error bad_base(std::string const& sentence) { return {"bad-base", 13, sentence}; }
inline named_error no_device(std::string const& sentence) { return {"no-device", 14, sentence}; }
inline named_error bad_data(std::string const& sentence) { return {"bad-data", 15, sentence}; }

}  // namespace trainer
