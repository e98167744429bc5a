// The GPU side of parity. cuda.cpp defines it for parity_cuda; without_cuda.cpp refuses in the program that is built
// everywhere.
#pragma once

#include <vector>

#include "problem.hpp"

namespace parity {

/// Throws std::runtime_error with the reason where this program or this machine cannot run on a GPU.
void require_cuda();

/// Head dims that run_on_cuda is compiled for, with these types.
std::vector<int> cuda_head_dims(lanewise::precision p, lanewise::gradient_type g);

/// run() on the current device: tensors, masks and parameters are copied there as they lie, results back.
void run_on_cuda(problem const& p, outputs& out);

}  // namespace parity
