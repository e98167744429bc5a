#!/usr/bin/env python3
"""Writes the tables of examples/trainer/unicode_tables.hpp from Python's unicodedata.

A range is written as its first and last character. unicodedata of Python 3.11 is Unicode 14.0.
"""
import unicodedata


def ranges(test):
    found, start = [], None
    for c in range(0x110000 + 1):
        inside = c < 0x110000 and test(chr(c))
        if inside and start is None:
            start = c
        if not inside and start is not None:
            found.append((start, c - 1))
            start = None
    return found


def composed(c):
    """NFC_Quick_Check is Yes, from what it is made of: c is its own NFC and joins nothing before it."""
    return 0xD800 <= ord(c) < 0xE000 or (unicodedata.normalize("NFC", c) == c and c not in second)


def show(name, test):
    rows = ranges(test)
    print(f"constexpr range {name}[] = {{")
    line = ""
    for first, last in rows:
        item = f"{{0x{first:x}, 0x{last:x}}}, "
        if len(line + item) > 112:
            print("    " + line.rstrip())
            line = ""
        line += item
    print("    " + line.rstrip(" ,") + "};\n")


# Characters that end a canonical composition: the second of a pair, or a Hangul vowel or final consonant.
second = {chr(c) for c in list(range(0x1161, 0x1176)) + list(range(0x11A8, 0x11C3))}
for c in map(chr, range(0x110000)):
    parts = unicodedata.decomposition(c)
    if parts and not parts.startswith("<") and len(parts.split()) == 2:
        second.add(chr(int(parts.split()[1], 16)))

print(f"""// Classes of characters in Unicode {unicodedata.unidata_version}, as ranges from first to last. Made by
// tests/trainer/make_unicode.py.
#pragma once

namespace trainer::unicode {{

struct range {{
  char32_t first, last;
}};
""")
show("letters", lambda c: unicodedata.category(c)[0] == "L")
show("numbers", lambda c: unicodedata.category(c)[0] == "N")
show("uncomposed", lambda c: not composed(c))
show("combining", lambda c: unicodedata.combining(c) != 0)
print("}  // namespace trainer::unicode")
