// Reading and writing .safetensors files: named tensors with dtype and shape, and string metadata.
//
// Format (huggingface/safetensors): 8 bytes little-endian header length N, N bytes of JSON
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {"key": "value"}}
// then the data; offsets count from its first byte, and the tensors cover it without gap or overlap. Little-endian
// hosts.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <lanewise/precision.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace safetensors {

static_assert(std::endian::native == std::endian::little, "safetensors: the file's bytes are taken as they lie");

struct tensor {
  std::string dtype;                ///< F64, F32, F16, BF16, I64, I32, U8 or BOOL
  std::vector<std::int64_t> shape;  ///< outermost first; empty: a scalar
  std::vector<std::byte> data;      ///< dense, row-major
};

struct file {
  std::map<std::string, tensor> tensors;
  std::map<std::string, std::string> metadata;
  std::filesystem::path path;  ///< where it was read from, for messages
};

/// Bytes of one element; 0 for a dtype that this reader does not know.
inline std::size_t element_size(std::string_view dtype) {
  constexpr std::array<std::pair<std::string_view, std::size_t>, 8> sizes{
      {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"U8", 1}, {"BOOL", 1}}};
  for (auto const& [name, bytes] : sizes)
    if (name == dtype) return bytes;
  return 0;
}

/// The file's name for T: double, float, lanewise::f16, lanewise::bf16, int64, int32, uint8 or bool.
template <class T>
constexpr char const* dtype_of() {
  if constexpr (std::is_same_v<T, double>) return "F64";
  else if constexpr (std::is_same_v<T, float>) return "F32";
  else if constexpr (std::is_same_v<T, lanewise::f16>) return "F16";
  else if constexpr (std::is_same_v<T, lanewise::bf16>) return "BF16";
  else if constexpr (std::is_same_v<T, std::int64_t>) return "I64";
  else if constexpr (std::is_same_v<T, std::int32_t>) return "I32";
  else if constexpr (std::is_same_v<T, bool>) return "BOOL";
  else {
    static_assert(std::is_same_v<T, std::uint8_t>, "safetensors: no dtype for this element type");
    return "U8";
  }
}

/// A shape as errors show it.
inline std::string text_of(std::vector<std::int64_t> const& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

namespace detail {

/// Elements of a shape; throws where one is negative or the product passes 2^62.
inline std::int64_t count_of(std::vector<std::int64_t> const& shape, std::string const& whose) {
  std::int64_t count = 1;
  for (std::int64_t n : shape) {
    if (n < 0) throw std::runtime_error(whose + ": negative extent in shape " + text_of(shape));
    if (n > 0 && count > (std::int64_t{1} << 62) / n)
      throw std::runtime_error(whose + ": shape " + text_of(shape) + " has more than 2^62 elements");
    count *= n;
  }
  return count;
}

/// A value of the header as an error shows it: a number or a string by its text, else its type. Text of nested arrays
/// would be made by recursion, which a hostile file drives past the end of the stack.
inline std::string shown(nlohmann::json const& value) {
  return value.is_structured() ? std::string("an ") + value.type_name() : value.dump();
}

/// One tensor's entry of the header.
struct entry {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin, end;
};

inline entry parse_entry(std::string const& path, std::string const& name, nlohmann::json const& e,
                         std::uint64_t data_bytes) {
  std::string const whose = path + ": tensor '" + name + "'";
  auto const unsigned_array = [&](char const* key) {
    std::vector<std::uint64_t> values;
    if (!e.contains(key) || !e[key].is_array()) throw std::runtime_error(whose + ": no array '" + key + "'");
    for (auto const& n : e[key]) {
      if (!n.is_number_unsigned())
        throw std::runtime_error(whose + ": '" + key + "' holds " + shown(n) + ", not a whole number of 0 or more");
      values.push_back(n.get<std::uint64_t>());
    }
    return values;
  };
  if (!e.is_object() || !e.contains("dtype") || !e["dtype"].is_string())
    throw std::runtime_error(whose + ": no string 'dtype'");
  entry r{name, e["dtype"].get<std::string>(), {}, 0, 0};
  std::size_t const bytes = element_size(r.dtype);
  if (bytes == 0)
    throw std::runtime_error(whose + ": dtype " + r.dtype + " is none of F64 F32 F16 BF16 I64 I32 U8 BOOL");
  for (std::uint64_t n : unsigned_array("shape")) r.shape.push_back(std::int64_t(n));
  auto const offsets = unsigned_array("data_offsets");
  if (offsets.size() != 2)
    throw std::runtime_error(whose + ": " + std::to_string(offsets.size()) + " data_offsets instead of 2");
  r.begin = offsets[0], r.end = offsets[1];
  std::string const range = "data_offsets [" + std::to_string(r.begin) + ", " + std::to_string(r.end) + "]";
  if (r.begin > r.end || r.end > data_bytes)
    throw std::runtime_error(whose + ": " + range + " do not lie in the file's " + std::to_string(data_bytes) +
                             " data bytes");
  std::int64_t const count = count_of(r.shape, whose);
  if (r.end - r.begin != std::uint64_t(count) * bytes)
    throw std::runtime_error(whose + ": " + range + " hold " + std::to_string(r.end - r.begin) + " bytes, but shape " +
                             text_of(r.shape) + " of " + r.dtype + " needs " +
                             std::to_string(std::uint64_t(count) * bytes));
  return r;
}

/// Every data byte belongs to exactly one tensor.
inline void check_cover(std::string const& path, std::vector<entry> entries, std::uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(),
            [](entry const& a, entry const& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t used = 0;
  std::string previous = "the header";
  for (entry const& e : entries) {
    if (e.begin != used)
      throw std::runtime_error(path + ": tensor '" + e.name + "' begins at byte " + std::to_string(e.begin) +
                               (e.begin < used ? ", overlapping " : ", leaving a gap after ") + previous +
                               ", which ends at " + std::to_string(used));
    used = e.end;
    previous = "'" + e.name + "'";
  }
  if (used != data_bytes)
    throw std::runtime_error(path + ": the tensors end at byte " + std::to_string(used) + " of " +
                             std::to_string(data_bytes) + " data bytes");
}

/// A file descriptor that closes itself.
struct descriptor {
  int fd;
  ~descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

[[noreturn]] inline void fail_errno(std::string const& what, std::string const& path) {
  throw std::runtime_error(path + ": cannot " + what + ": " + std::strerror(errno));
}

inline void write_all(int fd, void const* data, std::size_t bytes, std::string const& path) {
  for (auto const* at = static_cast<char const*>(data); bytes > 0;) {
    ssize_t const n = ::write(fd, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno("write the last " + std::to_string(bytes) + " bytes", path);
    at += n, bytes -= std::size_t(n);
  }
}

/// Makes the file's name or contents survive a power failure.
inline void sync(std::string const& path, int flags) {
  descriptor const d{::open(path.c_str(), flags | O_CLOEXEC)};
  if (d.fd < 0 || ::fsync(d.fd) != 0) fail_errno("sync", path);
}

}  // namespace detail

/// An open file whose header has been read and checked; tensors are read one by one.
class reader {
 public:
  /// Throws std::runtime_error naming the path, the tensor and the numbers that do not fit.
  explicit reader(std::filesystem::path const& path) : path_(path) {
    std::string const name = path.string();
    errno = 0;
    in_.open(path, std::ios::binary | std::ios::ate);
    if (!in_ || std::filesystem::is_directory(path))
      throw std::runtime_error(name + ": cannot open: " + (errno ? std::strerror(errno) : "not a regular file"));
    std::uint64_t const total = std::uint64_t(in_.tellg());
    if (total < 8)
      throw std::runtime_error(name + ": " + std::to_string(total) + " bytes; the header length alone takes 8");
    std::uint64_t header_bytes = 0;
    in_.seekg(0).read(reinterpret_cast<char*>(&header_bytes), 8);
    if (header_bytes > total - 8)
      throw std::runtime_error(name + ": header length " + std::to_string(header_bytes) + ", but only " +
                               std::to_string(total - 8) + " bytes follow: truncated, or not a safetensors file");
    std::string text(header_bytes, '\0');
    in_.read(text.data(), std::streamsize(header_bytes));
    if (!in_) throw std::runtime_error(name + ": cannot read the header of " + std::to_string(header_bytes) + " bytes");
    data_begin_ = 8 + header_bytes;
    parse(text, total - data_begin_);
  }

  std::map<std::string, std::string> const& metadata() const { return metadata_; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (auto const& [name, e] : entries_) all.push_back(name);
    return all;
  }
  /// Throws std::runtime_error where there is no such tensor or the system cannot read it.
  tensor read(std::string const& name) {
    auto const found = entries_.find(name);
    if (found == entries_.end()) throw std::runtime_error(path_.string() + ": no tensor '" + name + "'");
    detail::entry const& e = found->second;
    tensor t{e.dtype, e.shape, std::vector<std::byte>(e.end - e.begin)};
    in_.seekg(std::streamoff(data_begin_ + e.begin));
    in_.read(reinterpret_cast<char*>(t.data.data()), std::streamsize(t.data.size()));
    if (!in_)
      throw std::runtime_error(path_.string() + ": tensor '" + name + "': cannot read its " +
                               std::to_string(t.data.size()) + " bytes");
    return t;
  }

 private:
  void parse(std::string const& text, std::uint64_t data_bytes) {
    std::string const name = path_.string();
    nlohmann::json header;
    try {
      header = nlohmann::json::parse(text);
    } catch (nlohmann::json::exception const& e) {
      throw std::runtime_error(name + ": the header is not JSON: " + e.what());
    }
    if (!header.is_object()) throw std::runtime_error(name + ": the header is not a JSON object");
    std::vector<detail::entry> entries;
    for (auto const& [key, value] : header.items()) {
      if (key != "__metadata__") {
        entries.push_back(detail::parse_entry(name, key, value, data_bytes));
        continue;
      }
      for (auto const& [k, v] : value.items()) {
        if (!v.is_string())
          throw std::runtime_error(name + ": metadata '" + k + "' is " + detail::shown(v) + ", not a string");
        metadata_[k] = v.get<std::string>();
      }
    }
    detail::check_cover(name, entries, data_bytes);
    for (detail::entry& e : entries) entries_.emplace(e.name, std::move(e));
  }

  std::filesystem::path path_;
  std::ifstream in_;
  std::uint64_t data_begin_ = 0;
  std::map<std::string, detail::entry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// Reads a whole file. Throws as reader does.
inline file read(std::filesystem::path const& path) {
  reader from(path);
  file result{{}, from.metadata(), path};
  for (std::string const& name : from.names()) result.tensors.emplace(name, from.read(name));
  return result;
}

/// Writes f to path: first to path + ".part", synced, then renamed over path, so that a reader never sees half a file
/// and a failed write leaves what was there. Tensors lie in order of falling element size, so each is aligned.
inline void write(std::filesystem::path const& path, file const& f) {
  std::string const part = path.string() + ".part";
  std::vector<std::pair<std::string const, tensor> const*> order;
  for (auto const& named : f.tensors) order.push_back(&named);
  std::stable_sort(order.begin(), order.end(), [](auto const* a, auto const* b) {
    return element_size(a->second.dtype) > element_size(b->second.dtype);
  });
  nlohmann::json header = nlohmann::json::object();
  if (!f.metadata.empty()) header["__metadata__"] = f.metadata;
  std::uint64_t offset = 0;
  for (auto const* named : order) {
    auto const& [name, t] = *named;
    std::string const whose = path.string() + ": tensor '" + name + "'";
    std::size_t const bytes = element_size(t.dtype);
    if (bytes == 0) throw std::runtime_error(whose + ": unknown dtype " + t.dtype);
    std::uint64_t const needed = std::uint64_t(detail::count_of(t.shape, whose)) * bytes;
    if (needed != t.data.size())
      throw std::runtime_error(whose + ": " + std::to_string(t.data.size()) + " bytes of data, but shape " +
                               text_of(t.shape) + " of " + t.dtype + " needs " + std::to_string(needed));
    header[name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {offset, offset + t.data.size()}}};
    offset += t.data.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data then begins at a multiple of 8
  std::uint64_t const header_bytes = text.size();
  {
    detail::descriptor const out{::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
    if (out.fd < 0) detail::fail_errno("create", part);
    try {
      detail::write_all(out.fd, &header_bytes, 8, part);
      detail::write_all(out.fd, text.data(), text.size(), part);
      for (auto const* named : order)
        detail::write_all(out.fd, named->second.data.data(), named->second.data.size(), part);
      if (::fsync(out.fd) != 0) detail::fail_errno("sync", part);
    } catch (...) {
      ::unlink(part.c_str());
      throw;
    }
  }
  if (::rename(part.c_str(), path.c_str()) != 0) detail::fail_errno("rename it to " + path.string(), part);
  detail::sync(path.has_parent_path() ? path.parent_path().string() : ".", O_RDONLY | O_DIRECTORY);
}

/// The tensor of that name; the error lists what the file has.
inline tensor const& at(file const& f, std::string const& name) {
  if (auto const found = f.tensors.find(name); found != f.tensors.end()) return found->second;
  std::string text = f.path.string() + ": no tensor '" + name + "' among its " + std::to_string(f.tensors.size()) + ":";
  for (auto const& [have, t] : f.tensors) text += " " + have;
  throw std::runtime_error(text);
}

/// A tensor that copies `values`, which must fill the shape.
template <class T>
tensor make(std::vector<std::int64_t> shape, std::span<T const> values) {
  std::int64_t const count = detail::count_of(shape, "safetensors::make");
  if (std::size_t(count) != values.size())
    throw std::runtime_error("safetensors::make: " + std::to_string(values.size()) + " values for shape " +
                             text_of(shape));
  tensor t{dtype_of<T>(), std::move(shape), std::vector<std::byte>(values.size_bytes())};
  if (!t.data.empty()) std::memcpy(t.data.data(), values.data(), values.size_bytes());
  return t;
}
template <class T>
tensor make(std::vector<std::int64_t> shape, std::vector<T> const& values) {
  return make(std::move(shape), std::span<T const>(values));
}

/// The elements of a tensor whose dtype is T's.
template <class T>
std::vector<T> values(tensor const& t) {
  static_assert(!std::is_same_v<T, bool>,
                "read BOOL with numbers<std::uint8_t>: vector<bool> has no elements to copy to");
  if (t.dtype != dtype_of<T>())
    throw std::runtime_error("tensor of " + t.dtype + " " + text_of(t.shape) + " read as " + dtype_of<T>());
  std::vector<T> r(t.data.size() / sizeof(T));
  if (!r.empty()) std::memcpy(r.data(), t.data.data(), t.data.size());
  return r;
}

/// The elements of a tensor of any dtype, converted to the number type T (double, float, an integer).
template <class T>
std::vector<T> numbers(tensor const& t) {
  static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
  auto const from = [&]<class E>(E) {
    std::vector<T> r(t.data.size() / sizeof(E));
    for (std::size_t i = 0; i < r.size(); ++i) {
      E e;
      std::memcpy(&e, t.data.data() + i * sizeof(E), sizeof(E));
      if constexpr (std::is_arithmetic_v<E>) r[i] = T(e);
      else r[i] = T(lanewise::to_float(e));
    }
    return r;
  };
  if (t.dtype == "F64") return from(double{});
  if (t.dtype == "F32") return from(float{});
  if (t.dtype == "F16") return from(lanewise::f16{});
  if (t.dtype == "BF16") return from(lanewise::bf16{});
  if (t.dtype == "I64") return from(std::int64_t{});
  if (t.dtype == "I32") return from(std::int32_t{});
  if (t.dtype == "U8" || t.dtype == "BOOL") return from(std::uint8_t{});
  throw std::runtime_error("tensor of unknown dtype " + t.dtype);
}

}  // namespace safetensors
