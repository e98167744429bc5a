// Byte-level BPE as Qwen's tokenizer.json describes it, exact: text becomes the ids that Hugging Face's tokenizers
// gives.
//
//   1. added tokens, such as <|endoftext|>, are cut out, the longest of those that begin first
//   2. the rest is cut into words by Qwen's pattern (below)
//   3. a word's bytes are written as GPT-2's 256 printable characters, and the pair of neighbours that stands first in
//      the list of merges is joined, leftmost first, until none is left           Sennrich et al. 2016
//
//   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// Qwen normalises text to NFC first. This reader composes nothing: text that NFC might change is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trainer {

class tokenizer {
 public:
  /// Reads a tokenizer.json. Throws bad-base, naming the file and what this reader does not know.
  explicit tokenizer(std::filesystem::path const& path);

  /// Ids of UTF-8 text; nothing where NFC might change it or it is not UTF-8.
  std::optional<std::vector<std::int32_t>> encode(std::string_view text) const;
  /// The bytes of a token.
  std::string const& decode(std::int32_t id) const { return texts_.at(std::size_t(id)); }
  /// One more than the largest id.
  std::int64_t size() const { return std::int64_t(texts_.size()); }
  /// The id of a token, added ones included, by its text.
  std::optional<std::int32_t> find(std::string const& text) const;

 private:
  struct merge {
    std::int32_t rank, result;
  };
  void encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const;
  std::vector<std::int32_t> encode_word(std::string_view word) const;
  static std::uint64_t pair(std::int32_t a, std::int32_t b) {
    return std::uint64_t(std::uint32_t(a)) << 32 | std::uint32_t(b);
  }

  std::int32_t bytes_[256];  ///< ids of the single bytes
  std::unordered_map<std::uint64_t, merge> merges_;
  std::map<std::string, std::int32_t, std::less<>> added_;
  std::vector<std::string> texts_;
};

}  // namespace trainer
