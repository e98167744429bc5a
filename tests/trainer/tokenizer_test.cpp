// The tokenizer against the ids that Hugging Face's tokenizers gave (data/README.md), and what it refuses.
#include "tokenizer.hpp"

#include <nlohmann/json.hpp>

#include "error.hpp"
#include "support.hpp"

using namespace trainer;
using test::has;
using json = nlohmann::json;

namespace {

std::filesystem::path const folder = test::data("tokenizer");

json read(std::filesystem::path const& path) { return json::parse(std::ifstream(path, std::ios::binary)); }

/// The error of a tokenizer.json that `change` has been at.
template <class F>
std::string error_of(F const& change) {
  json j = read(folder / "tokenizer.json");
  change(j);
  test::scratch dir;
  std::filesystem::path const path = dir.write("tokenizer.json", j.dump());
  return test::error_of([&] { tokenizer t(path); });
}

}  // namespace

TEST_CASE("every text gives the ids of Hugging Face's tokenizers, and decodes to itself") {
  tokenizer const t(folder / "tokenizer.json");
  json const expected = read(folder / "expected.json");
  REQUIRE(expected.size() >= 60);
  for (json const& e : expected) {
    auto const text = e.at("text").get<std::string>();
    CAPTURE(text);
    auto const ids = t.encode(text);
    REQUIRE(ids);
    REQUIRE(*ids == e.at("ids").get<std::vector<std::int32_t>>());
    std::string decoded;
    for (std::int32_t id : *ids) decoded += t.decode(id);
    REQUIRE(decoded == text);
  }
}

TEST_CASE("added tokens are found by their text") {
  tokenizer const t(folder / "tokenizer.json");
  REQUIRE(t.find("<|endoftext|>"));
  CHECK(t.encode("<|endoftext|>") == std::vector<std::int32_t>{*t.find("<|endoftext|>")});
  CHECK_FALSE(t.find("<|nothing|>"));
  CHECK(t.size() == 424);
}

TEST_CASE("text that NFC might change, and text that is no UTF-8, has no ids") {
  tokenizer const t(folder / "tokenizer.json");
  CHECK_FALSE(t.encode("e\xcc\x81"));                       // e and a combining acute: NFC makes one of them
  CHECK_FALSE(t.encode("\xe2\x84\xab"));                    // the angstrom sign: NFC makes it a letter
  CHECK_FALSE(t.encode("x\xd6\xb0\xd6\xb1"));               // two marks side by side: NFC might reorder them
  CHECK(t.encode("\xc3\xa9"));                              // composed already
  CHECK(t.encode("\xe0\xa4\x85\xe0\xa4\xa8\xe0\xa5\x8d"));  // one mark that joins nothing
  CHECK_FALSE(t.encode("\xff"));
  CHECK_FALSE(t.encode("\xc0\x80"));          // overlong
  CHECK_FALSE(t.encode("\xed\xa0\x80"));      // a surrogate
  CHECK_FALSE(t.encode("ends in \xe4\xbd"));  // cut short
}

TEST_CASE("a tokenizer that this reader would not reproduce is refused, and says why") {
  CHECK(error_of([](json&) {}) == "no error");
  CHECK(has(error_of([](json& j) { j["model"]["type"] = "Unigram"; }), "bad-base: "));
  CHECK(has(error_of([](json& j) { j["model"]["ignore_merges"] = true; }), "ignore_merges is set"));
  CHECK(has(error_of([](json& j) { j["normalizer"]["type"] = "NFKC"; }), "the normalizer is \"NFKC\", not NFC"));
  CHECK(has(error_of([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "."; }),
            "the pre_tokenizer is not Qwen's"));
  CHECK(has(error_of([](json& j) {
              j["pre_tokenizer"] = {{"type", "ByteLevel"}};
            }),
            "the pre_tokenizer is not Qwen's"));
  CHECK(has(error_of([](json& j) { j["model"]["vocab"].erase("!"); }), "bad-base: "));
  CHECK(has(error_of([](json& j) { j["model"]["merges"].push_back("never seen"); }),
            "merge 'never seen' joins what is not in the vocabulary"));
  CHECK(has(error_of([](json& j) { j["model"]["vocab"]["\xe2\x82\xac"] = 500; }), "is not written in bytes"));
  CHECK(has(error_of([](json& j) { j["model"]["vocab"]["zzz"] = -4; }), "token id -4 is not below 2^24"));
  CHECK(has(error_of([](json& j) { j["added_tokens"][0]["lstrip"] = true; }), "strips or wants a single word"));
  CHECK(has(error_of([](json& j) { j.erase("model"); }), "bad-base: "));
}
