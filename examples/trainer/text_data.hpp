// Text as a model reads it: documents, a split into training and validation, and each side as one stream of bytes in
// which a zero byte comes before, between and after documents. Also the yardstick: the add-one bigram cross-entropy.
//
//   bigram(b | a) = (count(a, b) + 1) / (count(a) + 256), counted on the training stream
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trainer {

/// Where a file's documents end: at its end, or also at lines that hold a single %, as in fortune files.
enum class document_rule { file, percent };

struct text_request {
  std::vector<std::filesystem::path> paths;  ///< files, and directories whose files are taken; empty: the fortunes
  document_rule rule = document_rule::file;
  std::optional<std::int64_t> max_length;  ///< longer documents are left out, never cut; bytes
  double validation_share = 0.05;
  std::uint64_t seed = 0;
};

struct text_data {
  std::vector<std::uint8_t> train, validation;
  std::int64_t files = 0;
  std::int64_t documents = 0, validation_documents = 0;  ///< kept
  std::int64_t skipped_long = 0;                         ///< longer than max_length
  std::int64_t skipped_bad = 0;                          ///< unreadable, blank, or holding a zero byte
  std::int64_t longest = 0;                              ///< bytes of the longest document kept
  bool split_by_document = true;  ///< otherwise every document's last bytes are the validation text
};

/// The directory of the default text, and the Debian package that brings it.
inline constexpr char const* fortunes_directory = "/usr/share/games/fortunes";
inline constexpr char const* fortunes_package = "fortunes";

/// Files of `directory` that hold running text, sorted by name: the index files (.dat), the links that repeat each file
/// for UTF-8 readers (.u8) and the drawings (ascii-art) are left out. Throws no-data, naming the package to install.
std::vector<std::filesystem::path> fortune_files(std::filesystem::path const& directory = fortunes_directory);

/// Reads, filters and splits. The same files and seed give the same streams. Throws no-data when a path is missing and
/// no-samples when no document is left.
text_data load_text(text_request const& request);

/// Cross-entropy of `validation` in nats per byte, first byte excepted, under the add-one bigram counts of `train`.
double bigram_cross_entropy(std::vector<std::uint8_t> const& train, std::vector<std::uint8_t> const& validation);

/// A digest of both streams, to tell whether a resumed run reads the same text.
std::uint64_t digest(text_data const& data);

}  // namespace trainer
