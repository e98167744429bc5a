// The classes of characters that a tokenizer's pattern asks for, and which text Unicode's NFC leaves as it is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string_view>

#include "unicode_tables.hpp"

namespace trainer::unicode {

template <std::size_t N>
bool holds(range const (&table)[N], char32_t c) {
  auto const after = std::upper_bound(table, table + N, c, [](char32_t x, range const& r) { return x < r.first; });
  return after != table && c <= std::prev(after)->last;
}

/// General category L, the pattern's \p{L}.
inline bool is_letter(char32_t c) { return holds(letters, c); }
/// General category N, \p{N}.
inline bool is_number(char32_t c) { return holds(numbers, c); }
/// White_Space, \s.
inline bool is_space(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/// The character at text[at], which moves past it; nothing where there is no well-formed UTF-8.
inline std::optional<char32_t> next(std::string_view text, std::size_t& at) {
  auto const byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  unsigned const c = byte(at);
  int const length = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
  if (length == 0) return std::nullopt;
  char32_t value = length == 1 ? c : c & (0x7fu >> length);
  for (int i = 1; i < length; ++i) {
    if ((byte(at + std::size_t(i)) & 0xc0) != 0x80) return std::nullopt;
    value = value << 6 | (byte(at + std::size_t(i)) & 0x3f);
  }
  bool const overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  if (overlong || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return std::nullopt;
  at += std::size_t(length);
  return value;
}

inline bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();)
    if (!next(text, at)) return false;
  return true;
}

/// NFC leaves the text as it is: no character that it would compose or take apart, and no two combining marks side by
/// side, which it might reorder. False for some text that it would leave too.
inline bool is_surely_nfc(std::u32string_view text) {
  bool after_mark = false;
  for (char32_t c : text) {
    bool const is_mark = holds(combining, c);
    if (holds(uncomposed, c) || (is_mark && after_mark)) return false;
    after_mark = is_mark;
  }
  return true;
}

}  // namespace trainer::unicode
