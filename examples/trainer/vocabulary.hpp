// What a model's tokens are: the 256 bytes, or those of a tokenizer.json. Text comes as text_data has it, documents
// with a zero byte before, between and after them; there a separator stands in the stream of tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base_checkpoint.hpp"
#include "tokenizer.hpp"

namespace trainer {

struct token_stream {
  std::vector<std::int32_t> tokens;
  std::int64_t bytes = 0;    ///< of the text that the tokens after the first stand for
  std::int64_t refused = 0;  ///< documents that the tokenizer has no ids for: not UTF-8, or not surely NFC
};

class vocabulary {
 public:
  /// Bytes, the zero byte between documents.
  vocabulary() = default;
  /// The tokenizer.json of the checkpoint's directory, its eos_token_id between documents; without the file bytes.
  /// Throws bad-base where the model has too few entries, or no separator among them.
  explicit vocabulary(base_checkpoint const& base);

  std::int32_t separator() const { return separator_; }
  bool is_bytes() const { return !tokenizer_; }
  token_stream encode(std::span<std::uint8_t const> text) const;
  /// The tokens of a document's beginning, separator first. Throws bad-option where the tokenizer refuses the text.
  std::vector<std::int32_t> encode_prompt(std::string const& text) const;
  /// The bytes of a token; a zero byte for the separator, nothing for an entry that no token uses.
  std::string decode(std::int32_t token) const;

 private:
  std::optional<tokenizer> tokenizer_;
  std::int32_t separator_ = 0;
};

}  // namespace trainer
