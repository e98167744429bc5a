// The constexpr maps of lane_map.hpp as tables.
#include "operand.hpp"

#include <lanewise/cuda/lane_map.hpp>
#include <stdexcept>

namespace lane_map {

namespace maps = lanewise::lane_maps;

namespace {

template <class Map>
std::string feed_of() {
  std::string text = Map::c_to_a == maps::feed::pack        ? "pack"
                     : Map::c_to_a == maps::feed::permute_k ? "permute_k"
                                                            : "shuffle";
  text = "feed: " + text + "\n";
  constexpr int per_tile = Map::a_elements / Map::c_tiles_per_a;
  for (int e = 0; e < Map::a_elements; ++e) {
    text += "a" + std::to_string(e) + " = c" + std::to_string(Map::fed_element(e));
    if (Map::c_tiles_per_a > 1) text += " of tile " + std::to_string(e / per_tile);
    text += e + 1 < Map::a_elements ? ", " : "\n";
  }
  text += "slot of k:";
  for (int k = 0; k < Map::k; ++k) text += " " + std::to_string(k);
  text += "\nrow of b: ";
  for (int k = 0; k < Map::k; ++k) text += " " + std::to_string(Map::permuted_k(k));
  return text + "\n";
}

/// `map` fills every place: lane_map.hpp proves it a bijection.
template <class Function>
void place(operand& x, Function const& map) {
  x.held.resize(std::size_t(x.rows * x.columns));
  for (int lane = 0; lane < x.lanes; ++lane)
    for (int e = 0; e < x.elements; ++e) {
      maps::element const to = map(lane, e);
      x.held[std::size_t(to.row * x.columns + to.column)] = {lane, e};
    }
}

template <class Map>
operand of(char letter) {
  operand x{Map::name, letter, Map::m, Map::n, Map::lanes, Map::c_elements, Map::per_register, {}, {}};
  if (letter == 'a') {
    x.columns = Map::k, x.elements = Map::a_elements;
    place(x, Map::a);
  } else if (letter == 'b') {
    if constexpr (Map::b_elements == 0)
      throw std::runtime_error(std::string(Map::name) + ": b lies in shared memory and has no lane map");
    else {
      x.rows = Map::k, x.elements = Map::b_elements;
      place(x, Map::b);
    }
  } else {
    x.per_register = 1;  // f32
    x.feed = feed_of<Map>();
    place(x, Map::c);
  }
  return x;
}

}  // namespace

std::vector<std::string> instruction_names() { return {"m16n8k16", "m16n8k8_tf32", "wgmma_m64"}; }

operand operand_of(std::string const& instruction, char letter) {
  if (instruction == "m16n8k16") return of<maps::m16n8k16>(letter);
  if (instruction == "m16n8k8_tf32") return of<maps::m16n8k8_tf32>(letter);
  if (instruction == "wgmma_m64") return of<maps::wgmma_m64>(letter);
  throw std::runtime_error("no instruction '" + instruction + "'");
}

}  // namespace lane_map
