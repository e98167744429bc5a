// Which element of a matrix operand each lane of a warp holds: constexpr maps (lane, element) -> (row, column).
//
// PTX ISA, "Matrix fragments for mma.m16n8k16 / mma.m16n8k8" and "Register fragments for wgmma.mma_async.m64". With
// g = lane / 4 and t = lane % 4 every map below is a closed form; A is M x K, B is K x N, C is M x N. An element is one
// number; 16-bit operands pack elements 2r and 2r + 1 into 32-bit register r.
//
// Attention feeds the accumulator of one product (P, dS) into the next as its A operand. How that is done is a property
// of the maps, stated here and proved by static_assert: m16n8k16 packs two neighbouring C tiles; m16n8k8 takes the C
// registers as they are and permutes K of the other operand instead; the FFMA path has no operand map and shuffles.
#pragma once

#include "../host_device.hpp"

namespace lanewise::lane_maps {

struct element {
  int row, column;
  constexpr bool operator==(element const&) const = default;
};

/// How an accumulator becomes the A operand of the next product.
enum class feed {
  pack,       ///< round and pack the registers of neighbouring C tiles
  permute_k,  ///< use the registers as they are; rows of B are taken in the order permuted_k
  shuffle     ///< exchange between the four lanes of a row
};

/// D (16 x 8, f32) += A (16 x 16) B (16 x 8), A and B in bf16 or f16.
struct m16n8k16 {
  static constexpr char const* name = "mma.m16n8k16 bf16, f16";
  static constexpr int lanes = 32, m = 16, n = 8, k = 16;
  static constexpr int a_elements = 8, b_elements = 4, c_elements = 4, per_register = 2;

  LANEWISE_HD static constexpr element a(int lane, int e) {
    return {lane / 4 + 8 * (e / 2 % 2), 2 * (lane % 4) + 8 * (e / 4) + e % 2};
  }
  LANEWISE_HD static constexpr element b(int lane, int e) { return {2 * (lane % 4) + 8 * (e / 2) + e % 2, lane / 4}; }
  LANEWISE_HD static constexpr element c(int lane, int e) { return {lane / 4 + 8 * (e / 2), 2 * (lane % 4) + e % 2}; }

  static constexpr feed c_to_a = feed::pack;
  static constexpr int c_tiles_per_a = 2;  ///< a K of 16 takes two C tiles of 8 columns
  /// A element e is this element of C tile e / 4.
  LANEWISE_HD static constexpr int fed_element(int e) { return e % 4; }
  LANEWISE_HD static constexpr int permuted_k(int k) { return k; }
};

/// D (16 x 8, f32) += A (16 x 8) B (8 x 8), A and B in tf32.
struct m16n8k8_tf32 {
  static constexpr char const* name = "mma.m16n8k8 tf32";
  static constexpr int lanes = 32, m = 16, n = 8, k = 8;
  static constexpr int a_elements = 4, b_elements = 2, c_elements = 4, per_register = 1;

  LANEWISE_HD static constexpr element a(int lane, int e) { return {lane / 4 + 8 * (e % 2), lane % 4 + 4 * (e / 2)}; }
  LANEWISE_HD static constexpr element b(int lane, int e) { return {lane % 4 + 4 * e, lane / 4}; }
  LANEWISE_HD static constexpr element c(int lane, int e) { return m16n8k16::c(lane, e); }

  static constexpr feed c_to_a = feed::permute_k;
  static constexpr int c_tiles_per_a = 1;
  /// A element e is this C element: 0, 2, 1, 3.
  LANEWISE_HD static constexpr int fed_element(int e) { return 2 * (e % 2) + e / 2; }
  /// Slot k of the instruction then stands for row 0, 2, 4, 6, 1, 3, 5, 7 of B.
  LANEWISE_HD static constexpr int permuted_k(int k) { return 2 * (k % 4) + k / 4; }
};

/// wgmma: the lanes are the 128 threads of a warpgroup; A (64 x 16) from registers, C (64 x 8) is one block of eight
/// columns of an accumulator of any N. B lies in shared memory and has no map.
struct wgmma_m64 {
  static constexpr char const* name = "wgmma m64 bf16, f16";
  static constexpr int lanes = 128, m = 64, n = 8, k = 16;
  static constexpr int a_elements = 8, b_elements = 0, c_elements = 4, per_register = 2;

  LANEWISE_HD static constexpr element a(int lane, int e) { return lower(m16n8k16::a(lane % 32, e), lane); }
  LANEWISE_HD static constexpr element c(int lane, int e) { return lower(m16n8k16::c(lane % 32, e), lane); }

  static constexpr feed c_to_a = feed::pack;
  static constexpr int c_tiles_per_a = 2;
  LANEWISE_HD static constexpr int fed_element(int e) { return e % 4; }
  LANEWISE_HD static constexpr int permuted_k(int k) { return k; }

 private:
  LANEWISE_HD static constexpr element lower(element x, int lane) { return {x.row + 16 * (lane / 32), x.column}; }
};

/// True where `map` sends the (lane, element) pairs one to one onto a rows x columns matrix.
template <class Map>
constexpr bool is_bijection(Map map, int lanes, int elements, int rows, int columns) {
  if (lanes * elements != rows * columns || rows * columns > 1024) return false;
  bool seen[1024] = {};
  for (int lane = 0; lane < lanes; ++lane)
    for (int e = 0; e < elements; ++e) {
      element const x = map(lane, e);
      if (x.row < 0 || x.row >= rows || x.column < 0 || x.column >= columns) return false;
      bool& s = seen[x.row * columns + x.column];
      if (s) return false;
      s = true;
    }
  return true;
}

/// True where the registers that c_to_a names hold, for every A element, row r and column permuted_k(k) of C.
template <class Map>
constexpr bool feeds_itself() {
  constexpr int per_tile = Map::a_elements / Map::c_tiles_per_a;
  for (int lane = 0; lane < Map::lanes; ++lane)
    for (int e = 0; e < Map::a_elements; ++e) {
      element const to = Map::a(lane, e);
      element from = Map::c(lane, Map::fed_element(e));
      from.column += Map::n * (e / per_tile);
      if (!(from == element{to.row, Map::permuted_k(to.column)})) return false;
    }
  return true;
}

template <class Map>
constexpr bool a_is_bijection = is_bijection([](int l, int e) { return Map::a(l, e); }, Map::lanes, Map::a_elements,
                                             Map::m, Map::k);
template <class Map>
constexpr bool b_is_bijection = is_bijection([](int l, int e) { return Map::b(l, e); }, Map::lanes, Map::b_elements,
                                             Map::k, Map::n);
template <class Map>
constexpr bool c_is_bijection = is_bijection([](int l, int e) { return Map::c(l, e); }, Map::lanes, Map::c_elements,
                                             Map::m, Map::n);

static_assert(a_is_bijection<m16n8k16> && b_is_bijection<m16n8k16> && c_is_bijection<m16n8k16>);
static_assert(a_is_bijection<m16n8k8_tf32> && b_is_bijection<m16n8k8_tf32> && c_is_bijection<m16n8k8_tf32>);
static_assert(a_is_bijection<wgmma_m64> && c_is_bijection<wgmma_m64>);
static_assert(feeds_itself<m16n8k16>() && feeds_itself<m16n8k8_tf32>() && feeds_itself<wgmma_m64>());

}  // namespace lanewise::lane_maps
