// What CLI11 accepts of a number's text and should not.
#pragma once

#include <charconv>
#include <string>
#include <system_error>

namespace trainer {

/// A whole number that 64 bits do not hold: CLI11 would make the largest that they hold of it. Empty: it is none.
inline std::string beyond_64_bits(std::string const& text) {
  long long value = 0;
  bool const is_beyond =
      std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc::result_out_of_range;
  return is_beyond ? text + " is more than 64 bits hold" : "";
}

}  // namespace trainer
