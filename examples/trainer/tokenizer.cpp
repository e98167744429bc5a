#include "tokenizer.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <queue>

#include "error.hpp"
#include "unicode.hpp"

namespace trainer {
namespace {

using json = nlohmann::json;

constexpr char const* qwen_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool is_line_end(char32_t c) { return c == '\r' || c == '\n'; }
bool is_symbol(char32_t c) { return !unicode::is_space(c) && !unicode::is_letter(c) && !unicode::is_number(c); }

template <class Is>
std::size_t run(std::u32string_view text, std::size_t at, Is const& is) {
  while (at < text.size() && is(text[at])) ++at;
  return at;
}

/// Length of 's, 't, 're, 've, 'm, 'll or 'd at the start of the text, in any case; else 0.
std::size_t contraction(std::u32string_view text) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  auto const folded = [&](std::size_t i) -> char32_t {
    if (i >= text.size()) return 0;
    if (text[i] == 0x17f) return 's';  // the long s folds to s
    return text[i] >= 'A' && text[i] <= 'Z' ? text[i] - 'A' + 'a' : text[i];
  };
  char32_t const a = folded(1), b = folded(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/// Characters of the first word that Qwen's pattern finds in a text that is not empty. The alternatives in their order.
std::size_t first_word(std::u32string_view text) {
  if (std::size_t const n = contraction(text)) return n;
  char32_t const c = text[0];
  if (unicode::is_number(c)) return 1;
  if (!is_line_end(c)) {
    std::size_t const letters = unicode::is_letter(c) ? 0 : 1;
    if (std::size_t const end = run(text, letters, unicode::is_letter); end > letters) return end;
  }
  std::size_t const symbols = c == ' ' ? 1 : 0;
  if (std::size_t const end = run(text, symbols, is_symbol); end > symbols) return run(text, end, is_line_end);
  std::size_t const end = run(text, 0, unicode::is_space);
  for (std::size_t i = end; i > 0; --i)
    if (is_line_end(text[i - 1])) return i;
  return end == text.size() || end == 1 ? end : end - 1;
}

/// The bytes that a token's text of GPT-2's printable characters stands for; nothing where another character is in it.
/// Bytes that print as themselves in Latin-1 do so; the other 68, in their order, are the characters from U+0100 on.
std::optional<std::string> bytes_of(std::string_view token) {
  auto const prints = [](unsigned b) { return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xff && b != 0xad); };
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    std::optional<char32_t> const c = unicode::next(token, at);
    if (!c) return std::nullopt;
    if (*c < 0x100 && prints(unsigned(*c))) {
      bytes += char(*c);
      continue;
    }
    unsigned skipped = 0, byte = 0;
    while (byte < 0x100 && (prints(byte) || 0x100 + skipped != *c)) skipped += !prints(byte++);
    if (byte == 0x100) return std::nullopt;
    bytes += char(byte);
  }
  return bytes;
}

/// Refuses what this reader would not reproduce.
void check_kind(json const& j, std::string const& name) {
  auto const refuse = [&](std::string const& what) { throw bad_base(name + ": " + what); };
  json const& model = j.at("model");
  if (model.value("type", "BPE") != "BPE") refuse("the model is " + model.at("type").dump() + ", not BPE");
  if (model.value("ignore_merges", false)) refuse("ignore_merges is set");
  if (model.contains("dropout") && !model.at("dropout").is_null()) refuse("dropout is set");
  json const normalizer = j.value("normalizer", json());
  if (!normalizer.is_null() && normalizer.at("type") != "NFC")
    refuse("the normalizer is " + normalizer.at("type").dump() + ", not NFC");
  json const& cut = j.at("pre_tokenizer");
  bool const is_known = cut.at("type") == "Sequence" && cut.at("pretokenizers").size() == 2 &&
                        cut.at("pretokenizers")[0].at("type") == "Split" &&
                        cut.at("pretokenizers")[0].at("pattern").value("Regex", "") == qwen_pattern &&
                        cut.at("pretokenizers")[0].at("behavior") == "Isolated" &&
                        !cut.at("pretokenizers")[0].value("invert", false) &&
                        cut.at("pretokenizers")[1].at("type") == "ByteLevel" &&
                        !cut.at("pretokenizers")[1].value("add_prefix_space", true) &&
                        !cut.at("pretokenizers")[1].value("use_regex", true);
  if (!is_known) refuse("the pre_tokenizer is not Qwen's: its pattern, isolated, then ByteLevel alone");
}

}  // namespace

tokenizer::tokenizer(std::filesystem::path const& path) {
  std::string const name = path.string();
  std::ifstream in(path, std::ios::binary);
  if (!in) throw bad_base(name + ": cannot open");
  try {
    json const j = json::parse(in);
    check_kind(j, name);
    std::unordered_map<std::string, std::int32_t> ids;
    auto const place = [&](std::int32_t id, std::string text) {
      constexpr std::int32_t most = 1 << 24;
      if (id < 0 || id >= most) throw bad_base(name + ": token id " + std::to_string(id) + " is not below 2^24");
      if (std::size_t(id) >= texts_.size()) texts_.resize(std::size_t(id) + 1);
      texts_[std::size_t(id)] = std::move(text);
    };
    for (auto const& [text, id] : j.at("model").at("vocab").items()) {
      std::optional<std::string> bytes = bytes_of(text);
      if (!bytes) throw bad_base(name + ": token '" + text + "' is not written in bytes");
      ids.emplace(text, id.get<std::int32_t>());
      place(id.get<std::int32_t>(), std::move(*bytes));
    }
    std::int32_t rank = 0;
    for (json const& m : j.at("model").at("merges")) {
      std::string const text = m.is_string() ? m.get<std::string>() : "";
      std::size_t const space = text.find(' ');
      std::string const a = m.is_string() ? text.substr(0, space) : m.at(0).get<std::string>(),
                        b = m.is_string() ? text.substr(space + 1) : m.at(1).get<std::string>();
      if (!ids.contains(a) || !ids.contains(b) || !ids.contains(a + b))
        throw bad_base(name + ": merge '" + a + " " + b + "' joins what is not in the vocabulary");
      merges_.emplace(pair(ids.at(a), ids.at(b)), merge{rank++, ids.at(a + b)});
    }
    for (int& id : bytes_) id = -1;
    for (auto const& [text, id] : ids)
      if (std::string const& bytes = texts_[std::size_t(id)]; bytes.size() == 1)
        bytes_[static_cast<unsigned char>(bytes[0])] = id;
    if (std::find(bytes_, bytes_ + 256, -1) != bytes_ + 256)
      throw bad_base(name + ": the vocabulary lacks a single byte");
    for (json const& token : j.value("added_tokens", json::array())) {
      if (token.value("lstrip", false) || token.value("rstrip", false) || token.value("single_word", false))
        throw bad_base(name + ": added token " + token.at("content").dump() + " strips or wants a single word");
      std::string text = token.at("content").get<std::string>();
      added_.emplace(text, token.at("id").get<std::int32_t>());
      place(token.at("id").get<std::int32_t>(), std::move(text));
    }
  } catch (json::exception const& e) {
    throw bad_base(name + ": " + e.what());
  }
}

std::optional<std::int32_t> tokenizer::find(std::string const& text) const {
  if (auto const found = added_.find(text); found != added_.end()) return found->second;
  auto const found = std::find(texts_.begin(), texts_.end(), text);
  if (found == texts_.end()) return std::nullopt;
  return std::int32_t(found - texts_.begin());
}

std::vector<std::int32_t> tokenizer::encode_word(std::string_view word) const {
  struct link {
    std::int32_t id, before, after;  // neighbours that are still there; -1: none
  };
  struct candidate {
    std::int32_t rank, left, left_id, right_id, result;
    bool operator>(candidate const& o) const { return std::pair(rank, left) > std::pair(o.rank, o.left); }
  };
  std::vector<link> links;
  for (std::size_t i = 0; i < word.size(); ++i)
    links.push_back({bytes_[static_cast<unsigned char>(word[i])], std::int32_t(i) - 1,
                     i + 1 < word.size() ? std::int32_t(i) + 1 : -1});
  std::priority_queue<candidate, std::vector<candidate>, std::greater<>> queue;
  auto const consider = [&](std::int32_t left) {
    if (left < 0 || links[std::size_t(left)].after < 0) return;
    std::int32_t const a = links[std::size_t(left)].id, b = links[std::size_t(links[std::size_t(left)].after)].id;
    if (auto const m = merges_.find(pair(a, b)); m != merges_.end())
      queue.push({m->second.rank, left, a, b, m->second.result});
  };
  for (std::size_t i = 0; i < links.size(); ++i) consider(std::int32_t(i));
  while (!queue.empty()) {
    candidate const c = queue.top();
    queue.pop();
    link& left = links[std::size_t(c.left)];
    // An earlier merge may have taken either side; -1 marks a link that is gone.
    if (left.id != c.left_id || left.after < 0 || links[std::size_t(left.after)].id != c.right_id) continue;
    link& right = links[std::size_t(left.after)];
    left.id = c.result;
    right.id = -1;
    left.after = right.after;
    if (left.after >= 0) links[std::size_t(left.after)].before = c.left;
    consider(left.before);
    consider(c.left);
  }
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i >= 0; i = links[std::size_t(i)].after) ids.push_back(links[std::size_t(i)].id);
  return ids;
}

void tokenizer::encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::u32string characters;
  std::vector<std::size_t> begins;
  for (std::size_t at = 0; at < text.size();) {
    begins.push_back(at);
    characters += *unicode::next(text, at);
  }
  begins.push_back(text.size());
  for (std::size_t i = 0; i < characters.size();) {
    std::size_t const end = i + first_word(std::u32string_view(characters).substr(i));
    for (std::int32_t id : encode_word(text.substr(begins[i], begins[end] - begins[i]))) ids.push_back(id);
    i = end;
  }
}

std::optional<std::vector<std::int32_t>> tokenizer::encode(std::string_view text) const {
  std::u32string characters;
  for (std::size_t at = 0; at < text.size();) {
    std::optional<char32_t> const c = unicode::next(text, at);
    if (!c) return std::nullopt;
    characters += *c;
  }
  if (!unicode::is_surely_nfc(characters)) return std::nullopt;
  std::vector<std::int32_t> ids;
  std::size_t plain = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::string_view longest;
    for (auto const& [token, id] : added_)
      if (token.size() > longest.size() && text.substr(at).starts_with(token)) longest = token;
    if (longest.empty()) {
      ++at;
      continue;
    }
    encode_plain(text.substr(plain, at - plain), ids);
    ids.push_back(added_.find(longest)->second);
    plain = at += longest.size();
  }
  encode_plain(text.substr(plain), ids);
  return ids;
}

}  // namespace trainer
