// Tensor maps of the copy engine over strided views, made on the host. The driver's encoder is looked up through the
// runtime, so that nothing links against libcuda.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "../tensor.hpp"

namespace lanewise::gpu {

/// The driver's cuTensorMapEncodeTiled; null where the driver is older than CUDA 12.
inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() noexcept {
  static PFN_cuTensorMapEncodeTiled_v12000 const found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult answer{};
    cudaError_t const error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &answer);
    bool const known = error == cudaSuccess && answer == cudaDriverEntryPointSuccess;
    return known ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function) : nullptr;
  }();
  return found;
}

/// The map of a view of 16-bit elements as (column, sequence, head, batch), whose box is what a swizzled_tile's slab
/// holds: slab_columns x `rows`. False where the engine cannot walk the view: an address or a stride that is no
/// multiple of 16 bytes, a negative stride, or one of 2^40 bytes.
template <class Tile, class E>
bool encode_tensor_map(CUtensorMap& map, view<E> const& x) noexcept {
  static_assert(sizeof(E) == 2 && sizeof(E) == sizeof(typename Tile::element));
  auto const encode = tensor_map_encoder();
  if (!encode || x.stride.sequence < 0 || x.stride.heads < 0 || x.stride.batch < 0) return false;
  auto const bytes = [](std::int64_t elements) { return cuuint64_t(elements) * sizeof(E); };
  cuuint64_t const size[4] = {cuuint64_t(x.size.head_dim), cuuint64_t(x.size.sequence), cuuint64_t(x.size.heads),
                              cuuint64_t(x.size.batch)};
  cuuint64_t const stride[3] = {bytes(x.stride.sequence), bytes(x.stride.heads), bytes(x.stride.batch)};
  cuuint32_t const box[4] = {cuuint32_t(Tile::slab_columns), cuuint32_t(Tile::rows), 1, 1};
  cuuint32_t const step[4] = {1, 1, 1, 1};
  constexpr CUtensorMapSwizzle swizzle = Tile::span == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                         : Tile::span == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                            : CU_TENSOR_MAP_SWIZZLE_32B;
  using storage = std::remove_const_t<E>;
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<storage*>(x.data), size, stride, box, step,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace lanewise::gpu
