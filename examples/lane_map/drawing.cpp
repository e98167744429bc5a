// An operand as SVG.
#include <sstream>

#include "operand.hpp"

namespace lane_map {

std::string drawing_of(operand const& x) {
  constexpr int width = 46, height = 24, left = 30, top = 44;
  char const* const colours[] = {"#cfe2f3", "#fce5cd", "#d9ead3", "#ead1dc"};
  std::ostringstream out;
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << left + x.columns * width + 8 << "\" height=\""
      << top + x.rows * height + 8 << "\" font-family=\"sans-serif\" font-size=\"11\" text-anchor=\"middle\">\n"
      << "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      << "<text x=\"4\" y=\"16\" font-size=\"13\" text-anchor=\"start\">" << x.instruction << ": " << x.letter << ", "
      << x.rows << " x " << x.columns << "</text>\n";
  auto const text = [&](int at_x, int at_y) -> std::ostream& {
    return out << "<text x=\"" << at_x << "\" y=\"" << at_y << "\">";
  };
  for (int column = 0; column < x.columns; ++column)
    text(left + column * width + width / 2, top - 6) << column << "</text>\n";
  for (int row = 0; row < x.rows; ++row) {
    int const y = top + row * height;
    text(left / 2, y + 16) << row << "</text>\n";
    for (int column = 0; column < x.columns; ++column) {
      holder const h = x.at(row, column);
      int const from = left + column * width;
      out << "<rect x=\"" << from << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << height
          << "\" stroke=\"#777\" fill=\"" << colours[h.element / x.per_register % 4] << "\"/>";
      text(from + width / 2, y + 16) << "T" << h.lane << " " << x.letter << h.element << "</text>\n";
    }
  }
  out << "</svg>\n";
  return out.str();
}

}  // namespace lane_map
