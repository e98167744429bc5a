// lanewise-train without a GPU side.
#include "device.hpp"
#include "error.hpp"

namespace trainer {

std::unique_ptr<device> make_cuda_device(arithmetic) {
  throw no_device(
      "--device cuda: this lanewise-train was built without CUDA; use --device cpu, or where there is nvcc build and "
      "run "
      "lanewise-train-cuda");
}

}  // namespace trainer
