#include "text_data.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "error.hpp"
#include "random.hpp"

namespace trainer {
namespace {

namespace fs = std::filesystem;

/// With fewer documents than this, a split by document leaves too little on one side.
constexpr std::size_t fewest_to_split_by_document = 40;

std::optional<std::string> contents(fs::path const& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in.good() && !in.eof()) return std::nullopt;
  return text;
}

/// The regular files below the given paths, in the order given, directories sorted by name.
std::vector<fs::path> files_of(std::vector<fs::path> const& paths) {
  std::vector<fs::path> files;
  for (fs::path const& path : paths) {
    std::error_code error;
    if (!fs::exists(path, error)) throw no_data("--data: there is no " + path.string());
    if (fs::is_character_file(path)) throw no_data("--data: " + path.string() + " is a device, which may never end");
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    std::vector<fs::path> inside;
    for (auto const& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file()) inside.push_back(entry.path());
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

/// The documents of one file's text, without the newlines at their ends.
std::vector<std::string> documents_of(std::string const& text, document_rule rule) {
  std::vector<std::string> documents(1);
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t const end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    std::string_view line(text.data() + begin, end - begin);
    if (rule == document_rule::percent && (line == "%\n" || line == "%")) documents.emplace_back();
    else documents.back() += line;
    begin = end;
  }
  for (std::string& d : documents)
    while (d.ends_with('\n')) d.pop_back();
  // A separator at a file's end, or two in a row, is no document.
  if (rule == document_rule::percent) std::erase(documents, std::string());
  return documents;
}

bool is_bad(std::string const& text) {
  return text.find_first_not_of(" \t\r\n\f\v") == std::string::npos || text.find('\0') != std::string::npos;
}

void append(std::vector<std::uint8_t>& stream, std::string_view text) {
  if (stream.empty()) stream.push_back(0);
  stream.insert(stream.end(), text.begin(), text.end());
  stream.push_back(0);
}

void split(std::vector<std::string> const& documents, text_request const& request, text_data& data) {
  data.split_by_document = documents.size() >= fewest_to_split_by_document;
  if (!data.split_by_document) {
    for (std::string const& d : documents) {
      auto const kept = std::size_t(std::ceil(double(d.size()) * (1 - request.validation_share)));
      append(data.train, std::string_view(d).substr(0, kept));
      if (kept < d.size()) append(data.validation, std::string_view(d).substr(kept));
    }
    return;
  }
  std::vector<std::size_t> order(documents.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  random_numbers draw(request.seed, stream::split);
  for (std::size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[draw.below(i + 1)]);
  auto const count = std::max<std::size_t>(1, std::size_t(double(documents.size()) * request.validation_share));
  std::vector<bool> is_validation(documents.size());
  for (std::size_t i = 0; i < count; ++i) is_validation[order[i]] = true;
  // Neighbours stay neighbours: documents of one file share their manner.
  for (std::size_t i = 0; i < documents.size(); ++i)
    append(is_validation[i] ? data.validation : data.train, documents[i]);
  data.validation_documents = std::int64_t(count);
}

}  // namespace

std::vector<fs::path> fortune_files(fs::path const& directory) {
  std::vector<fs::path> files;
  if (fs::is_directory(directory))
    for (auto const& entry : fs::directory_iterator(directory)) {
      fs::path const extension = entry.path().extension();
      if (entry.is_regular_file() && !entry.is_symlink() && extension != ".dat" && extension != ".u8" &&
          entry.path().filename() != "ascii-art")
        files.push_back(entry.path());
    }
  if (files.empty())
    throw no_data("the default text is not in " + directory.string() + "; install it with: apt install " +
                  fortunes_package + ", or name text files with --data");
  std::sort(files.begin(), files.end());
  return files;
}

text_data load_text(text_request const& request) {
  text_data data;
  std::vector<std::string> documents;
  std::int64_t shortest_skipped = 0;
  for (fs::path const& path : request.paths.empty() ? fortune_files() : files_of(request.paths)) {
    ++data.files;
    std::optional<std::string> const text = contents(path);
    if (!text) {
      ++data.skipped_bad;
      continue;
    }
    for (std::string& d : documents_of(*text, request.rule)) {
      auto const length = std::int64_t(d.size());
      if (is_bad(d)) {
        ++data.skipped_bad;
      } else if (request.max_length && length > *request.max_length) {
        shortest_skipped = data.skipped_long++ == 0 ? length : std::min(shortest_skipped, length);
      } else {
        data.longest = std::max(data.longest, length);
        documents.push_back(std::move(d));
      }
    }
  }
  if (documents.empty()) {
    std::string why = "no document is left of " + std::to_string(data.files) + " files: skipped_long " +
                      std::to_string(data.skipped_long) + ", skipped_bad " + std::to_string(data.skipped_bad);
    if (data.skipped_long > 0)
      why += "; the shortest is " + std::to_string(shortest_skipped) + " bytes, --max-len is " +
             std::to_string(*request.max_length);
    throw no_samples(why);
  }
  data.documents = std::int64_t(documents.size());
  split(documents, request, data);
  if (data.validation.empty())
    throw no_samples("the validation split is empty: " + std::to_string(data.documents) +
                     " documents are too short for a share of " + std::to_string(request.validation_share));
  return data;
}

double bigram_cross_entropy(std::vector<std::uint8_t> const& train, std::vector<std::uint8_t> const& validation) {
  std::vector<double> pairs(256 * 256, 1), firsts(256, 256);
  for (std::size_t i = 1; i < train.size(); ++i) {
    ++pairs[std::size_t(train[i - 1]) * 256 + train[i]];
    ++firsts[train[i - 1]];
  }
  double sum = 0;
  for (std::size_t i = 1; i < validation.size(); ++i)
    sum -= std::log(pairs[std::size_t(validation[i - 1]) * 256 + validation[i]] / firsts[validation[i - 1]]);
  return sum / double(validation.size() - 1);
}

std::uint64_t digest(text_data const& data) {
  std::uint64_t state = mix(data.train.size());
  for (auto const* stream : {&data.train, &data.validation})
    for (std::uint8_t byte : *stream) state = mix(state ^ byte);
  return state;
}

}  // namespace trainer
