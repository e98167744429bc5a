// Documents, the length filter, the split, the fortunes' files, the bigram.
#include "text_data.hpp"

#include "error.hpp"
#include "support.hpp"
#include "windows.hpp"

using namespace trainer;
using test::has, test::scratch;

namespace {

std::string error_of(text_request const& request) {
  return test::error_of([&] { load_text(request); });
}

text_request request_for(std::filesystem::path const& path) {
  text_request r;
  r.paths = {path};
  return r;
}

std::string text_of(std::vector<std::uint8_t> const& stream) { return {stream.begin(), stream.end()}; }

/// The documents of a stream.
std::vector<std::string> parts(std::vector<std::uint8_t> const& stream) {
  std::vector<std::string> found;
  std::string one;
  for (std::size_t i = 1; i < stream.size(); ++i)
    if (stream[i] == 0) {
      found.push_back(one);
      one.clear();
    } else {
      one += char(stream[i]);
    }
  return found;
}

}  // namespace

TEST_CASE("max_length leaves documents out and never cuts them") {
  scratch dir;
  for (int n : {900, 1500, 2300}) dir.write("text" + std::to_string(n), std::string(std::size_t(n), 'x'));
  dir.write("blank", " \n\n");
  dir.write("binary", std::string("a\0b", 3));
  text_request request = request_for(dir.path);
  request.max_length = 1024;
  text_data const some = load_text(request);
  CHECK(some.longest == 900);
  CHECK(some.documents == 1);
  CHECK(some.skipped_long == 2);
  CHECK(some.skipped_bad == 2);
  CHECK(some.files == 5);
  CHECK(some.train.size() + some.validation.size() == 900 + 4);

  request.max_length = 4096;
  CHECK(load_text(request).longest == 2300);
  CHECK(load_text(request).skipped_long == 0);
  request.max_length.reset();
  CHECK(load_text(request).longest == 2300);
  request.max_length = 900;
  CHECK(load_text(request).longest == 900);
  request.max_length = 500;
  CHECK(has(error_of(request),
            "no-samples: no document is left of 5 files: skipped_long 3, skipped_bad 2; the shortest is 900 bytes, "
            "--max-len is 500"));
}

TEST_CASE("lines of a single % part documents, where that is asked for") {
  scratch dir;
  auto const file = dir.write("cookies", "one\n\ntwo\n%\nthree %\n%x\n%\n%\nfour\n%\n");
  text_request request = request_for(file);
  CHECK(load_text(request).documents == 1);
  request.rule = document_rule::percent;
  request.validation_share = 0.25;
  text_data const data = load_text(request);
  CHECK(data.documents == 3);
  CHECK(data.longest == 10);
  CHECK(data.skipped_bad == 0);
}

TEST_CASE("many documents are split by document: each on one side, whole, neighbours in order") {
  scratch dir;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "document " + std::to_string(i) + "\n%\n";
  text_request request = request_for(dir.write("f", text));
  request.rule = document_rule::percent;
  request.validation_share = 0.1;
  text_data const data = load_text(request);
  CHECK(data.split_by_document);
  CHECK(data.validation_documents == 20);
  std::vector<std::string> train = parts(data.train), validation = parts(data.validation);
  CHECK(train.size() == 180);
  CHECK(validation.size() == 20);
  auto const number = [](std::string const& d) { return std::stoi(d.substr(9)); };
  for (auto const* side : {&train, &validation})
    for (std::size_t i = 1; i < side->size(); ++i) REQUIRE(number((*side)[i - 1]) < number((*side)[i]));
  train.insert(train.end(), validation.begin(), validation.end());
  std::sort(train.begin(), train.end());
  CHECK(std::unique(train.begin(), train.end()) == train.end());
  CHECK(train.size() == 200);

  CHECK(digest(load_text(request)) == digest(data));
  request.seed = 1;
  CHECK(digest(load_text(request)) != digest(data));
}

TEST_CASE("few documents are split by position: the last bytes of each are for validation") {
  scratch dir;
  text_request request = request_for(dir.write("f", "0123456789abcdefghij\n"));
  request.validation_share = 0.25;
  text_data const data = load_text(request);
  CHECK_FALSE(data.split_by_document);
  CHECK(text_of(data.train) == std::string("\0"
                                           "0123456789abcde"
                                           "\0",
                                           17));
  CHECK(text_of(data.validation) == std::string("\0"
                                                "fghij"
                                                "\0",
                                                7));
}

TEST_CASE("the fortunes: text files by name; indices, links and drawings are left out") {
  scratch dir;
  for (char const* name : {"tao", "art", "ascii-art", "art.dat"}) dir.write(name, "text\n%\n");
  std::filesystem::create_symlink("art", dir.path / "art.u8");
  dir.write("zen.u8", "text");
  auto const files = fortune_files(dir.path);
  REQUIRE(files.size() == 2);
  CHECK(files[0].filename() == "art");
  CHECK(files[1].filename() == "tao");
}

TEST_CASE("missing text names what to install, a missing path itself") {
  scratch dir;
  try {
    fortune_files(dir.path / "nothing");
    FAIL("no error");
  } catch (named_error const& e) {
    CHECK(e.name == "no-data");
    CHECK(has(e.what(), "apt install fortunes"));
  }
  CHECK(has(error_of(request_for(dir.path / "nothing")), "no-data: --data: there is no "));
}

TEST_CASE("the bigram's cross-entropy, by hand") {
  std::vector<std::uint8_t> const train{'a', 'b', 'a', 'b', 'c'}, validation{'a', 'b', 'c'};
  // Pairs of the training text: ab, ba, ab, bc. So P(b|a) = (2 + 1) / (2 + 256) and P(c|b) = (1 + 1) / (2 + 256).
  CHECK(bigram_cross_entropy(train, validation) ==
        doctest::Approx(-(std::log(3.0 / 258) + std::log(2.0 / 258)) / 2).epsilon(1e-12));
}

TEST_CASE("an epoch visits windows that do not overlap, each once; the next has another phase and order") {
  std::vector<std::int64_t> firsts;
  for (int epoch = 0; epoch < 3; ++epoch) {
    window_order order(1000, 64, 9);
    REQUIRE(order.windows_per_epoch() == 14);  // 999 / 64 = 15, one less for the phase
    std::vector<std::int64_t> begins;
    for (int i = 0; i < 14; ++i) begins.push_back(order.begin_of(epoch * 14 + i));
    firsts.push_back(begins[0]);
    std::sort(begins.begin(), begins.end());
    for (int i = 1; i < 14; ++i) REQUIRE(begins[std::size_t(i)] - begins[std::size_t(i - 1)] == 64);
    CHECK(begins.front() >= 0);
    CHECK(begins.front() < 64);
    CHECK(begins.back() + 64 < 1000);
  }
  CHECK((firsts[0] != firsts[1] || firsts[1] != firsts[2]));
}

TEST_CASE("the order is a function of the position: asking in any order changes nothing") {
  window_order forwards(5000, 100, 4), jumping(5000, 100, 4);
  std::vector<std::int64_t> begins;
  for (int i = 0; i < 200; ++i) begins.push_back(forwards.begin_of(i));
  for (int i : {199, 3, 120, 60, 0}) CHECK(jumping.begin_of(i) == begins[std::size_t(i)]);
  CHECK(window_order(5000, 100, 5).begin_of(0) != begins[0]);
  CHECK(window_order(65, 64, 1).begin_of(3) == 0);  // the smallest stream has one window
}

TEST_CASE("copy_window pairs each token with the next; past the end nothing is a target") {
  std::vector<std::int32_t> const stream{10, 20, 30, 40};
  std::vector<std::int32_t> tokens(4), targets(4);
  copy_window(stream, 1, 4, tokens.data(), targets.data());
  CHECK(tokens == std::vector<std::int32_t>{20, 30, 0, 0});
  CHECK(targets == std::vector<std::int32_t>{30, 40, no_target, no_target});
}
