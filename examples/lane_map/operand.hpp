// One matrix operand of an instruction, its lane map turned round: (row, column) -> who holds it.
#pragma once

#include <string>
#include <vector>

namespace lane_map {

/// Element `element` of lane `lane`.
struct holder {
  int lane = -1, element = -1;
};

struct operand {
  std::string instruction;  ///< as lane_map.hpp names it
  char letter;              ///< a, b or c
  int rows, columns;
  int lanes, elements;  ///< elements: of one lane
  int per_register;     ///< elements of a 32-bit register
  std::vector<holder> held;
  std::string feed;  ///< of c: how it becomes the next product's a; else empty

  holder at(int row, int column) const { return held[std::size_t(row * columns + column)]; }
};

/// Names that operand_of knows.
std::vector<std::string> instruction_names();

/// Throws std::runtime_error where there is no such instruction or where the operand has no map.
operand operand_of(std::string const& instruction, char letter);

/// The operand as a picture, a rectangle an element, coloured by register.
std::string drawing_of(operand const& x);

}  // namespace lane_map
