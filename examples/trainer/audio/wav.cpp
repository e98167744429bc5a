#include "wav.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace trainer {
namespace {

constexpr float loudest = 0x1p20f;  // 1 is full scale; squares of what is read have to stay finite
constexpr std::uint16_t tag_pcm = 1, tag_float = 3, tag_extensible = 0xfffe;
constexpr std::size_t riff_bytes = 12, chunk_bytes = 8, plain_format_bytes = 16, extensible_format_bytes = 40;
constexpr std::size_t tag_in_extension = 24;  // the first two bytes of its GUID are the plain tag

/// Little-endian numbers of a file in memory, and the errors that name it.
class reader {
 public:
  explicit reader(std::filesystem::path const& path) : path_(path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) refuse("cannot be opened");
    bytes_.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  [[noreturn]] void refuse(std::string const& why) const { throw std::runtime_error(path_.string() + ": " + why); }

  std::size_t size() const { return bytes_.size(); }
  std::uint32_t number(std::size_t at, int bytes) const {
    std::uint32_t value = 0;
    for (int i = bytes; i-- > 0;) value = value << 8 | bytes_[at + std::size_t(i)];
    return value;
  }
  std::string name(std::size_t at) const {
    return {bytes_.begin() + std::ptrdiff_t(at), bytes_.begin() + std::ptrdiff_t(at) + 4};
  }

 private:
  std::filesystem::path path_;
  std::vector<std::uint8_t> bytes_;
};

struct wav_format {
  std::uint32_t tag = 0, channels = 0, rate = 0, block = 0, bits = 0;
};

wav_format format_at(reader const& file, std::size_t at, std::size_t bytes) {
  if (bytes < plain_format_bytes)
    file.refuse("its format chunk has " + std::to_string(bytes) + " bytes, 16 are needed");
  wav_format f{file.number(at, 2), file.number(at + 2, 2), file.number(at + 4, 4), file.number(at + 12, 2),
               file.number(at + 14, 2)};
  if (f.tag == tag_extensible) {
    if (bytes < extensible_format_bytes)
      file.refuse("its extensible format chunk has " + std::to_string(bytes) + " bytes, 40 are needed");
    f.tag = file.number(at + tag_in_extension, 2);
  }
  bool const known = (f.tag == tag_pcm && (f.bits == 16 || f.bits == 24)) || (f.tag == tag_float && f.bits == 32);
  if (!known)
    file.refuse("format " + std::to_string(f.tag) + " with " + std::to_string(f.bits) +
                " bits; read are PCM (1) with 16 or 24 and float (3) with 32");
  if (f.channels == 0 || f.rate == 0) file.refuse("no channels, or a rate of 0");
  if (f.block != f.channels * f.bits / 8)
    file.refuse("frames of " + std::to_string(f.block) + " bytes do not hold " + std::to_string(f.channels) +
                " samples of " + std::to_string(f.bits) + " bits");
  return f;
}

float sample_at(reader const& file, std::size_t at, wav_format const& f) {
  std::uint32_t const raw = file.number(at, int(f.bits / 8));
  if (f.tag == tag_float) return std::bit_cast<float>(raw);
  std::uint32_t const shift = 32 - f.bits;  // the sign moves to the top and back
  return float(double(std::int32_t(raw << shift) >> shift) / double(std::int32_t(1) << (f.bits - 1)));
}

/// The little-endian bytes of a number.
void put(std::string& out, std::uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += char(value >> (8 * i) & 0xff);
}

}  // namespace

sound read_wav(std::filesystem::path const& path) {
  reader const file(path);
  if (file.size() < riff_bytes || file.name(0) != "RIFF" || file.name(8) != "WAVE")
    file.refuse("is no WAV file: it does not begin with RIFF and WAVE");
  wav_format format;
  for (std::size_t at = riff_bytes; at + chunk_bytes <= file.size();) {
    std::string const name = file.name(at);
    std::size_t const bytes = file.number(at + 4, 4), begin = at + chunk_bytes;
    if (name != "fmt " && name != "data") {
      at = begin + bytes + bytes % 2;  // chunks begin at even offsets
      continue;
    }
    if (bytes > file.size() - begin)
      file.refuse("is cut short: its chunk '" + name + "' has " + std::to_string(bytes) + " bytes, " +
                  std::to_string(file.size() - begin) + " are there");
    if (name == "fmt ") {
      format = format_at(file, begin, bytes);
    } else {
      if (format.channels == 0) file.refuse("its samples come before their format");
      if (bytes % format.block != 0)
        file.refuse("its " + std::to_string(bytes) + " bytes of samples are no whole number of frames of " +
                    std::to_string(format.block));
      sound s{format.rate, format.channels, std::vector<float>(bytes / (format.bits / 8))};
      for (std::size_t i = 0; i < s.samples.size(); ++i)
        s.samples[i] = sample_at(file, begin + i * (format.bits / 8), format);
      for (float x : s.samples)
        if (!(std::abs(x) <= loudest)) file.refuse("holds a sample of " + std::to_string(x) + ", which is no sound");
      return s;
    }
    at = begin + bytes + bytes % 2;
  }
  file.refuse(format.channels == 0 ? "has no format chunk" : "has no samples");
}

std::string wav_bytes(sound const& s, sample_format format) {
  std::uint32_t const bytes = format == sample_format::pcm16 ? 2 : format == sample_format::pcm24 ? 3 : 4;
  auto const channels = std::uint32_t(s.channels), rate = std::uint32_t(s.rate);
  auto const data = std::uint32_t(s.samples.size()) * bytes;
  std::string out = "RIFF";
  put(out, std::uint32_t(4 + 2 * chunk_bytes + plain_format_bytes) + data + data % 2, 4);
  out += "WAVEfmt ";
  put(out, std::uint32_t(plain_format_bytes), 4);
  put(out, format == sample_format::f32 ? tag_float : tag_pcm, 2);
  put(out, channels, 2);
  put(out, rate, 4);
  put(out, rate * channels * bytes, 4);
  put(out, channels * bytes, 2);
  put(out, bytes * 8, 2);
  out += "data";
  put(out, data, 4);
  for (float x : s.samples) {
    if (format == sample_format::f32) {
      put(out, std::bit_cast<std::uint32_t>(x), 4);
      continue;
    }
    double const full = double(std::int32_t(1) << (bytes * 8 - 1));
    put(out, std::uint32_t(std::int32_t(std::clamp(std::round(double(x) * full), -full, full - 1))), int(bytes));
  }
  if (data % 2) out += '\0';
  return out;
}

sound mono(sound const& s) {
  sound m{s.rate, 1, std::vector<float>(std::size_t(s.frames()))};
  for (std::int64_t i = 0; i < s.frames(); ++i) {
    double sum = 0;
    for (std::int64_t c = 0; c < s.channels; ++c) sum += double(s.samples[std::size_t(i * s.channels + c)]);
    m.samples[std::size_t(i)] = float(sum / double(s.channels));
  }
  return m;
}

}  // namespace trainer
