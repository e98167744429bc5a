#include "vocabulary.hpp"

#include <algorithm>

#include "error.hpp"

namespace trainer {

vocabulary::vocabulary(base_checkpoint const& base) {
  std::int64_t const entries = base.shape().vocabulary;
  std::filesystem::path const path = base.directory() / "tokenizer.json";
  if (!std::filesystem::exists(path)) {
    if (entries < 256)
      throw bad_base(base.directory().string() + ": no tokenizer.json, and the " + std::to_string(entries) +
                     " entries of its vocabulary are too few for bytes");
    return;
  }
  tokenizer_.emplace(path);
  if (tokenizer_->size() > entries)
    throw bad_base(path.string() + " has " + std::to_string(tokenizer_->size()) + " tokens, the model " +
                   std::to_string(entries));
  if (base.separator() < 0 || base.separator() >= tokenizer_->size())
    throw bad_base(base.directory().string() + ": config.json's eos_token_id is no token of tokenizer.json");
  separator_ = std::int32_t(base.separator());
}

token_stream vocabulary::encode(std::span<std::uint8_t const> text) const {
  token_stream s;
  if (is_bytes()) {
    s.tokens.assign(text.begin(), text.end());
    s.bytes = std::int64_t(text.size()) - 1;
    return s;
  }
  for (auto at = text.begin(); at != text.end();) {
    s.tokens.push_back(separator_);
    auto const begin = at + 1, end = std::find(begin, text.end(), std::uint8_t(0));
    at = end;
    if (begin == end) continue;  // the separator at the end
    auto const ids = tokenizer_->encode(std::string(begin, end));
    if (!ids) {
      ++s.refused;
      s.tokens.pop_back();
      continue;
    }
    s.tokens.insert(s.tokens.end(), ids->begin(), ids->end());
    s.bytes += end - begin + 1;
  }
  return s;
}

std::vector<std::int32_t> vocabulary::encode_prompt(std::string const& text) const {
  std::vector<std::int32_t> tokens{separator_};
  if (is_bytes()) {
    for (char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  auto const ids = tokenizer_->encode(text);
  if (!ids) throw bad_option("--prompt is not UTF-8 in NFC, which this tokenizer asks for");
  tokens.insert(tokens.end(), ids->begin(), ids->end());
  return tokens;
}

std::string vocabulary::decode(std::int32_t token) const {
  if (is_bytes()) return token < 256 ? std::string(1, char(token)) : std::string();
  if (token == separator_) return std::string(1, '\0');
  return token < tokenizer_->size() ? tokenizer_->decode(token) : std::string();
}

}  // namespace trainer
