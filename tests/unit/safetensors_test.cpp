// safetensors files: what is written is read back, and a broken file is refused with its path and numbers.
#include "../../examples/common/safetensors.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

/// A directory of its own, removed at the end.
struct scratch {
  fs::path path = [] {
    std::string name = (fs::temp_directory_path() / "safetensors_test.XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    return fs::path(name);
  }();
  ~scratch() { fs::remove_all(path); }
};

/// A file of the given header text and data, its length field `length` or the text's.
fs::path raw(scratch const& dir, std::string const& text, std::string const& data, std::uint64_t length = ~0ull) {
  fs::path const path = dir.path / "raw.safetensors";
  std::uint64_t const n = length == ~0ull ? text.size() : length;
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<char const*>(&n), 8);
  out << text << data;
  return path;
}

std::string error_of(fs::path const& path) {
  try {
    safetensors::read(path);
  } catch (std::runtime_error const& e) {
    return e.what();
  }
  return "no error";
}

bool has(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("every dtype, a scalar, an empty tensor and metadata come back as they were written") {
  scratch dir;
  safetensors::file f;
  f.tensors["f64"] = safetensors::make<double>({2}, std::vector<double>{1.5, -2.25});
  f.tensors["f32"] = safetensors::make<float>({1, 3}, std::vector<float>{1.f, -0.f, 3e-40f});
  f.tensors["f16"] = safetensors::make<lanewise::f16>({2}, std::vector{lanewise::f16{0x3c00}, lanewise::f16{0xc000}});
  f.tensors["bf16"] = safetensors::make<lanewise::bf16>({1}, std::vector{lanewise::bf16{0x3fc0}});
  f.tensors["i64"] = safetensors::make<std::int64_t>({1}, std::vector<std::int64_t>{-(std::int64_t{1} << 40)});
  f.tensors["i32"] = safetensors::make<std::int32_t>({3}, std::vector<std::int32_t>{0, -7, 9});
  f.tensors["u8"] = safetensors::make<std::uint8_t>({3}, std::vector<std::uint8_t>{0, 1, 255});
  bool const flags[] = {true, false, true};
  f.tensors["bool"] = safetensors::make<bool>({3}, std::span<bool const>(flags));
  f.tensors["scalar"] = safetensors::make<float>({}, std::vector<float>{4.f});
  f.tensors["empty"] = safetensors::make<float>({2, 0, 5}, std::vector<float>{});
  f.metadata = {{"step", "12"}, {"quote", "a \"b\" \xc3\xa9"}};
  fs::path const path = dir.path / "a.safetensors";
  safetensors::write(path, f);

  auto const r = safetensors::read(path);
  CHECK(r.metadata == f.metadata);
  REQUIRE(r.tensors.size() == f.tensors.size());
  for (auto const& [name, t] : f.tensors) {
    CAPTURE(name);
    auto const& back = safetensors::at(r, name);
    CHECK(back.dtype == t.dtype);
    CHECK(back.shape == t.shape);
    CHECK(back.data == t.data);
  }
  CHECK(safetensors::numbers<float>(r.tensors.at("f16")) == std::vector<float>{1.f, -2.f});
  CHECK(safetensors::numbers<double>(r.tensors.at("bf16")) == std::vector<double>{1.5});
  CHECK(safetensors::numbers<std::int64_t>(r.tensors.at("i32")) == std::vector<std::int64_t>{0, -7, 9});
  CHECK(safetensors::numbers<std::uint8_t>(r.tensors.at("bool")) == std::vector<std::uint8_t>{1, 0, 1});
  CHECK(safetensors::values<double>(r.tensors.at("f64")) == std::vector<double>{1.5, -2.25});
  CHECK_THROWS_WITH(safetensors::values<float>(r.tensors.at("f64")), "tensor of F64 [2] read as F32");
  CHECK_FALSE(fs::exists(path.string() + ".part"));
}

TEST_CASE("the bytes are those of the format: length, JSON, tensors at multiples of their size") {
  scratch dir;
  safetensors::file f;
  f.tensors["a"] = safetensors::make<std::uint8_t>({1}, std::vector<std::uint8_t>{7});
  f.tensors["b"] = safetensors::make<float>({1}, std::vector<float>{1.f});
  fs::path const path = dir.path / "b.safetensors";
  safetensors::write(path, f);
  std::ifstream in(path, std::ios::binary);
  std::string const bytes{std::istreambuf_iterator<char>(in), {}};
  std::uint64_t n = 0;
  std::memcpy(&n, bytes.data(), 8);
  REQUIRE(bytes.size() == 8 + n + 5);
  CHECK(n % 8 == 0);
  auto const header = nlohmann::json::parse(bytes.substr(8, n));
  CHECK(header["b"]["data_offsets"] == nlohmann::json::array({0, 4}));
  CHECK(header["a"]["data_offsets"] == nlohmann::json::array({4, 5}));
  CHECK(bytes.substr(8 + n) == std::string("\x00\x00\x80\x3f\x07", 5));
}

TEST_CASE("a broken file is refused with its path and the numbers") {
  scratch dir;
  std::string const one = R"({"q":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  CHECK(error_of(raw(dir, one, "12345678")) == "no error");

  std::string e = error_of(raw(dir, one, "1234"));
  CHECK(has(e, "raw.safetensors: tensor 'q'"));
  CHECK(has(e, "data_offsets [0, 8] do not lie in the file's 4 data bytes"));

  e = error_of(raw(dir, one, "", ~0ull - 1));
  CHECK(has(e, "header length 18446744073709551614, but only 54 bytes follow"));

  fs::path const tiny = dir.path / "tiny";
  std::ofstream(tiny) << "abc";
  CHECK(has(error_of(tiny), "tiny: 3 bytes"));
  CHECK(has(error_of(dir.path / "absent"), "absent: cannot open"));
  CHECK(has(error_of(dir.path), "cannot open"));
  CHECK(has(error_of(raw(dir, "{\"q\":", "")), "not JSON"));
  CHECK(has(error_of(raw(dir, "[1]", "")), "not a JSON object"));

  e = error_of(raw(dir,
                   R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                   R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                   "123456"));
  CHECK(has(e, "tensor 'b' begins at byte 2, overlapping 'a', which ends at 4"));
  e = error_of(raw(dir,
                   R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                   R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
                   "123456"));
  CHECK(has(e, "tensor 'b' begins at byte 4, leaving a gap after 'a', which ends at 2"));
  CHECK(has(error_of(raw(dir, one, "1234567890")), "the tensors end at byte 8 of 10 data bytes"));

  e = error_of(raw(dir, R"({"q":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "12345678"));
  CHECK(has(e, "hold 8 bytes, but shape [3] of F32 needs 12"));
  e = error_of(raw(dir, R"({"q":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}})", "12345678"));
  CHECK(has(e, "'shape' holds -1"));
  std::string const deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  e = error_of(raw(dir, R"({"q":{"dtype":"F32","data_offsets":[0,8],"shape":)" + deep + "}}", "12345678"));
  CHECK(has(e, "'shape' holds an array"));
  CHECK(has(error_of(raw(dir, R"({"__metadata__":{"a":)" + deep + "}}", "")), "metadata 'a' is an array"));
  e = error_of(raw(dir, R"({"q":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", "12345678"));
  CHECK(has(e, "more than 2^62 elements"));
  e = error_of(raw(dir, R"({"q":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]}})", "12345678"));
  CHECK(has(e, "dtype F8_E4M3 is none of"));
  e = error_of(raw(dir, R"({"q":{"dtype":"U8","shape":[8],"data_offsets":[0]}})", "12345678"));
  CHECK(has(e, "1 data_offsets instead of 2"));
}

TEST_CASE("a missing tensor is named beside those that are there") {
  scratch dir;
  auto const f = safetensors::read(raw(dir, R"({"k":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "1"));
  CHECK_THROWS_WITH(safetensors::at(f, "q"), (f.path.string() + ": no tensor 'q' among its 1: k").c_str());
}

TEST_CASE("a write that cannot finish says so and leaves the old file") {
  scratch dir;
  fs::path const path = dir.path / "c.safetensors";
  safetensors::file f;
  f.tensors["x"] = safetensors::make<float>({1}, std::vector<float>{1.f});
  safetensors::write(path, f);
  f.tensors["x"].shape = {2};
  std::string e;
  try {
    safetensors::write(path, f);
  } catch (std::runtime_error const& error) {
    e = error.what();
  }
  CHECK(has(e, "tensor 'x': 4 bytes of data, but shape [2] of F32 needs 8"));
  CHECK(safetensors::values<float>(safetensors::at(safetensors::read(path), "x")) == std::vector<float>{1.f});
  CHECK_THROWS_WITH(safetensors::make<float>({3}, std::vector<float>{1.f}),
                    "safetensors::make: 1 values for shape [3]");
  std::string missing = (dir.path / "no" / "such.safetensors").string();
  f.tensors["x"].shape = {1};
  CHECK_THROWS_WITH(safetensors::write(missing, f),
                    (missing + ".part: cannot create: No such file or directory").c_str());
}
