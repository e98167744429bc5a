// The lane maps against tables written out by hand from the PTX manual's figures, one lane at a time.
#include <lanewise/cuda/lane_map.hpp>

#include <doctest/doctest.h>

#include <vector>

using namespace lanewise::lane_maps;

namespace {


/// Figures "A fragment of m16n8k16": registers a0, a1 hold row groupID, a2, a3 row groupID + 8, a4, a5 row groupID of
/// the right half, a6, a7 row groupID + 8 of the right half.
std::vector<element> a_of_m16n8k16(int lane) {
  int const group = lane >> 2, in_group = lane & 3;
  std::vector<element> x;
  for (int right : {0, 8})
    for (int low : {0, 8})
      for (int odd : {0, 1}) x.push_back({group + low, in_group * 2 + odd + right});
  return x;
}
std::vector<element> b_of_m16n8k16(int lane) {
  int const group = lane >> 2, in_group = lane & 3;
  return {{in_group * 2, group}, {in_group * 2 + 1, group}, {in_group * 2 + 8, group}, {in_group * 2 + 9, group}};
}
std::vector<element> c_of_m16n8(int lane) {
  int const group = lane >> 2, in_group = lane & 3;
  return {{group, in_group * 2}, {group, in_group * 2 + 1}, {group + 8, in_group * 2}, {group + 8, in_group * 2 + 1}};
}
std::vector<element> a_of_m16n8k8(int lane) {
  int const group = lane >> 2, in_group = lane & 3;
  return {{group, in_group}, {group + 8, in_group}, {group, in_group + 4}, {group + 8, in_group + 4}};
}
std::vector<element> b_of_m16n8k8(int lane) { return {{lane & 3, lane >> 2}, {(lane & 3) + 4, lane >> 2}}; }

template <class Map, class Table>
void compare(Map const& map, Table const& table, int lanes) {
  for (int lane = 0; lane < lanes; ++lane) {
    std::vector<element> const expected = table(lane);
    for (int e = 0; e < int(expected.size()); ++e) CHECK(map(lane, e) == expected[std::size_t(e)]);
  }
}

}  // namespace

TEST_CASE("mma maps equal the manual's figures") {
  compare(m16n8k16::a, a_of_m16n8k16, 32);
  compare(m16n8k16::b, b_of_m16n8k16, 32);
  compare(m16n8k16::c, c_of_m16n8, 32);
  compare(m16n8k8_tf32::a, a_of_m16n8k8, 32);
  compare(m16n8k8_tf32::b, b_of_m16n8k8, 32);
  compare(m16n8k8_tf32::c, c_of_m16n8, 32);
}

TEST_CASE("wgmma: warp w of the warpgroup holds rows 16 w of the mma maps") {
  for (int lane = 0; lane < 128; ++lane)
    for (int e = 0; e < 8; ++e) {
      CHECK(wgmma_m64::a(lane, e).row == a_of_m16n8k16(lane % 32)[std::size_t(e)].row + lane / 32 * 16);
      CHECK(wgmma_m64::a(lane, e).column == a_of_m16n8k16(lane % 32)[std::size_t(e)].column);
      if (e >= 4) continue;
      CHECK(wgmma_m64::c(lane, e).row == c_of_m16n8(lane % 32)[std::size_t(e)].row + lane / 32 * 16);
      CHECK(wgmma_m64::c(lane, e).column == c_of_m16n8(lane % 32)[std::size_t(e)].column);
    }
}

TEST_CASE("a product over a permuted K is the product") {
  // C of the first product, used as A of the second with rows of B permuted, must give sum_k C[i][k] B[k][j].
  int first[16][8], second[8][8];
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 8; ++k) first[i][k] = (i * 7 + k * 3) % 11 - 5;
  for (int k = 0; k < 8; ++k)
    for (int j = 0; j < 8; ++j) second[k][j] = (k * 5 + j * 2) % 13 - 6;
  int as_a[16][8], as_b[8][8];
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 4; ++e) {
      element const slot = m16n8k8_tf32::a(lane, e), held = m16n8k8_tf32::c(lane, m16n8k8_tf32::fed_element(e));
      as_a[slot.row][slot.column] = first[held.row][held.column];
    }
    for (int e = 0; e < 2; ++e) {
      element const slot = m16n8k8_tf32::b(lane, e);
      as_b[slot.row][slot.column] = second[m16n8k8_tf32::permuted_k(slot.row)][slot.column];
    }
  }
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) {
      int got = 0, expected = 0;
      for (int k = 0; k < 8; ++k) got += as_a[i][k] * as_b[k][j], expected += first[i][k] * second[k][j];
      CHECK(got == expected);
    }
}

TEST_CASE("is_bijection refuses what is none") {
  CHECK_FALSE(is_bijection([](int lane, int) { return element{lane / 2, 0}; }, 32, 4, 16, 8));
  CHECK_FALSE(is_bijection([](int lane, int e) { return element{lane, e}; }, 32, 4, 16, 8));
  CHECK(is_bijection([](int lane, int e) { return element{lane, e}; }, 32, 4, 32, 4));
}
