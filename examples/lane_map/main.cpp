// lane_map: prints which lane of a warp (or thread of a warpgroup) holds each element of a tensor-core operand, and
// draws it. docs/lane_maps.md shows the drawings.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>

#include "operand.hpp"

namespace {

/// A line a row, a cell an element: T5:a2 is element 2 of lane 5.
void print(lane_map::operand const& x) {
  std::printf("%s: %c, %d x %d, %d lanes, %d elements a lane, %d a register\n     ", x.instruction.c_str(), x.letter,
              x.rows, x.columns, x.lanes, x.elements, x.per_register);
  for (int column = 0; column < x.columns; ++column) std::printf(" %-7d", column);
  for (int row = 0; row < x.rows; ++row) {
    std::printf("\n%4d ", row);
    for (int column = 0; column < x.columns; ++column) {
      lane_map::holder const h = x.at(row, column);
      char cell[32];
      std::snprintf(cell, sizeof cell, "T%d:%c%d", h.lane, x.letter, h.element);
      std::printf(" %-7s", cell);
    }
  }
  std::printf("\n%s", x.feed.c_str());
}

int run(int argc, char** argv) {
  CLI::App app{"Prints the lane map of a tensor-core operand: which lane holds each element, and where"};
  std::string instruction, operand, drawing;
  app.add_option("--instruction", instruction, "the instruction, by the name of its map in cuda/lane_map.hpp")
      ->required()
      ->check(CLI::IsMember(lane_map::instruction_names()));
  app.add_option("--operand", operand, "a (M x K), b (K x N) or c, the accumulator (M x N)")
      ->required()
      ->check(CLI::IsMember({"a", "b", "c"}));
  app.add_option("--svg", drawing, "also draw it into this file");
  CLI11_PARSE(app, argc, argv);
  lane_map::operand const x = lane_map::operand_of(instruction, operand[0]);
  print(x);
  if (drawing.empty()) return 0;
  std::ofstream out(drawing);
  out << lane_map::drawing_of(x);
  out.close();
  if (!out) throw std::runtime_error("cannot write " + drawing);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (std::exception const& e) {
    std::fprintf(stderr, "lane_map: %s\n", e.what());
    return 2;
  }
}
