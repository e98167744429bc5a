// Numbers written out: text that has something to learn from.
#pragma once

#include "support.hpp"
#include "text_data.hpp"

namespace test {

/// `count` numbers, ten to a document; `shift` tells one text from another.
inline trainer::text_data counting_text(int count = 3000, int shift = 0) {
  scratch dir;
  std::string text;
  for (int i = 0; i < count; ++i) text += std::to_string(i * 7919 % 10007 + shift) + (i % 10 == 9 ? "\n%\n" : " ");
  trainer::text_request request;
  request.paths = {dir.write("numbers", text)};
  request.rule = trainer::document_rule::percent;
  return load_text(request);
}

}  // namespace test
