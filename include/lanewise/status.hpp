// What a call returns: a code, a sentence with the offending numbers, and the kernel that ran.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lanewise {

enum class status_code {
  ok,
  null_view,      ///< a required view has no data
  bad_extent,     ///< sizes that do not fit together or are out of range
  bad_stride,     ///< a stride that the engine cannot use
  alias,          ///< an output overlaps an input or another output
  bad_argument,   ///< a scalar out of range
  bad_workspace,  ///< too small or misaligned
  unsupported,    ///< no kernel for this request
  out_of_memory,  ///< a plan does not fit its budget
  device_error    ///< the CUDA runtime refused
};

constexpr char const* name_of(status_code c) {
  switch (c) {
    case status_code::ok: return "ok";
    case status_code::null_view: return "null_view";
    case status_code::bad_extent: return "bad_extent";
    case status_code::bad_stride: return "bad_stride";
    case status_code::alias: return "alias";
    case status_code::bad_argument: return "bad_argument";
    case status_code::bad_workspace: return "bad_workspace";
    case status_code::unsupported: return "unsupported";
    case status_code::out_of_memory: return "out_of_memory";
    case status_code::device_error: return "device_error";
  }
  return "unknown";
}

/// Nothing in the engine throws or prints: look at `code`, show `message()`. `if (!s)` reads as "if it failed".
struct [[nodiscard]] status {
  status_code code = status_code::ok;
  char const* kernel = "";  ///< name of the kernel that ran, with the reason where it is a fallback
  char text[224] = {};      ///< the sentence; empty when ok

  constexpr explicit operator bool() const { return code == status_code::ok; }
  constexpr char const* message() const { return code == status_code::ok ? "ok" : text; }
};

/// Builds a failed status from words and numbers: fail(status_code::alias, "d_q overlaps o at byte ", n).
/// Text beyond the fixed array is cut.
class sentence {
 public:
  constexpr explicit sentence(status_code code) { s_.code = code; }
  constexpr sentence& operator<<(char const* words) {
    for (; *words; ++words) put(*words);
    return *this;
  }
  constexpr sentence& operator<<(std::uint64_t n) {
    char digits[20] = {};
    int count = 0;
    do digits[count++] = char('0' + n % 10);
    while (n /= 10);
    while (count > 0) put(digits[--count]);
    return *this;
  }
  constexpr sentence& operator<<(std::int64_t n) {
    if (n < 0) put('-');
    return *this << (n < 0 ? std::uint64_t(0) - std::uint64_t(n) : std::uint64_t(n));
  }
  constexpr sentence& operator<<(int n) { return *this << std::int64_t(n); }
  /// Up to six decimals; with a power of ten below 0.001 and from 10^9 on.
  constexpr sentence& operator<<(double x) {
    if (x != x) return *this << "nan";
    if (x < 0) {
      put('-');
      x = -x;
    }
    if (x > 1.7976931348623157e308) return *this << "inf";
    int exponent = 0;
    if (x != 0 && (x < 1e-3 || x >= 1e9)) {
      for (; x >= 10; x /= 10) ++exponent;
      for (; x < 1; x *= 10) --exponent;
    }
    std::int64_t const millionths = std::int64_t(x * 1e6 + 0.5);
    *this << millionths / 1000000;
    std::int64_t rest = millionths % 1000000;
    if (rest != 0) put('.');
    for (std::int64_t unit = 100000; rest != 0; rest %= unit, unit /= 10) put(char('0' + rest / unit));
    if (exponent != 0) *this << "e" << exponent;
    return *this;
  }
  constexpr operator status() const { return s_; }

 private:
  constexpr void put(char c) {
    if (used_ + 1 < sizeof(s_.text)) s_.text[used_++] = c;
  }
  status s_{};
  std::size_t used_ = 0;
};

template <class... Parts>
constexpr status fail(status_code code, Parts... parts) {
  sentence s(code);
  ((s << parts), ...);
  return s;
}

}  // namespace lanewise
