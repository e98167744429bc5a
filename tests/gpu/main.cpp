// Runs the tests of an executable on the current device; without one says SKIP and returns 77, which Meson counts as
// skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstdio>

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaError_t const error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0) {
    std::printf("SKIP: no CUDA device (%s)\n", error == cudaSuccess ? "none found" : cudaGetErrorString(error));
    return 77;
  }
  doctest::Context context(argc, argv);
  return context.run();
}
