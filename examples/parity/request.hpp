// What the command line asks for, and the problem that it makes of a safetensors file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../common/safetensors.hpp"
#include "problem.hpp"

namespace parity {

struct request {
  std::string in{}, out{};
  std::vector<std::string> masks{"full"};
  std::string window{};  ///< "L,R"; "inf" is an end that there is not
  std::optional<float> softcap{};
  std::string alibi{};  ///< empty, "top_left" or "bottom_right"
  std::optional<float> scale{};
  std::optional<lanewise::precision> precision{};
  std::string gradient = "storage";  ///< or "f32"
  std::string empty_lse = "zero";    ///< or "minus_infinity"
  std::string device = "cpu";
  std::string isa = "automatic";
  int threads = 0;       ///< 0: every core
  std::string layout{};  ///< "q=bhsd,k=bshd,..."
};

/// Names that --mask knows.
std::vector<std::string> mask_names();

/// The problem in f, with remarks for the user (a type converted, a tensor not used). Throws std::runtime_error naming
/// the tensor and the sizes that do not fit.
problem problem_of(safetensors::file const& f, request const& r, std::vector<std::string>& remarks);

/// Outputs in the layouts asked for.
outputs outputs_of(problem const& p, request const& r);

/// A tensor of a file in the layout that the request gives for its name.
array file_array(safetensors::file const& f, std::string const& name, request const& r);

/// The file that `parity run` writes: o, lse, dq, dk, dv and gradients of parameters.
safetensors::file file_of(problem const& p, outputs const& out, request const& r);

/// Instruction set and threads of a CPU run.
lanewise::cpu_isa isa_of(std::string const& name);
int threads_of(request const& r);

}  // namespace parity
