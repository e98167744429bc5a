// Status: what a caller reads when a call fails.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>

#include <lanewise/attention.hpp>
#include <lanewise/status.hpp>

using lanewise::fail, lanewise::status, lanewise::status_code;

namespace {
template <class... Parts>
std::string text(Parts... parts) {
  return fail(status_code::bad_argument, parts...).message();
}
}  // namespace

TEST_CASE("a fresh status is ok and says so") {
  status const s;
  CHECK(bool(s));
  CHECK(std::string(s.message()) == "ok");
  CHECK(std::string(s.kernel).empty());
}

TEST_CASE("a failed status is false and has its code and sentence") {
  status const s = fail(status_code::alias, "d_q overlaps o at byte ", 12);
  CHECK(!s);
  CHECK(s.code == status_code::alias);
  CHECK(std::string(s.message()) == "d_q overlaps o at byte 12");
}

TEST_CASE("every code has its name") {
  char const* const names[] = {"ok",           "null_view",     "bad_extent",  "bad_stride",    "alias",
                               "bad_argument", "bad_workspace", "unsupported", "out_of_memory", "device_error"};
  for (int i = 0; i < 10; ++i) CHECK(std::string(name_of(status_code(i))) == names[i]);
  CHECK(std::string(name_of(status_code(10))) == "unknown");
}

TEST_CASE("integers, up to the ends of their range") {
  for (std::int64_t n : {std::int64_t(0), std::int64_t(7), std::int64_t(-10), std::numeric_limits<std::int64_t>::max(),
                         std::numeric_limits<std::int64_t>::min()})
    CHECK(text(n) == std::to_string(n));
  CHECK(text(std::numeric_limits<std::int32_t>::min()) == "-2147483648");
  CHECK(text(std::numeric_limits<std::size_t>::max()) == "18446744073709551615");
}

TEST_CASE("numbers with a fraction") {
  CHECK(text(0.0) == "0");
  CHECK(text(2.0) == "2");
  CHECK(text(-0.5) == "-0.5");
  CHECK(text(0.125f) == "0.125");
  CHECK(text(3.0000004) == "3");
  CHECK(text(3.000001) == "3.000001");
  CHECK(text(0.9999999) == "1");
  CHECK(text(999999999.0) == "999999999");
  CHECK(text(1e9) == "1e9");
  CHECK(text(-2.5e-4) == "-2.5e-4");
  CHECK(text(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(text(-std::numeric_limits<float>::infinity()) == "-inf");
  CHECK(text(std::numeric_limits<double>::quiet_NaN()) == "nan");
}

TEST_CASE("text beyond the array is cut and still terminated") {
  constexpr std::size_t room = sizeof(status::text);
  std::string const exact(room - 1, 'x'), longer(room + 50, 'y');
  CHECK(text(exact.c_str()) == exact);
  CHECK(text(exact.c_str(), 12345) == exact);
  CHECK(text(longer.c_str()) == longer.substr(0, room - 1));
  CHECK(text(std::string(room - 3, 'z').c_str(), 12345) == std::string(room - 3, 'z') + "12");
}

TEST_CASE("a status is built at compile time") {
  constexpr status s = fail(status_code::unsupported, "n is ", -3);
  static_assert(!s && s.text[5] == '-' && s.text[6] == '3' && s.text[7] == 0);
}

TEST_CASE("dispatch calls the listed value and names one that is not") {
  int called = 0;
  auto const run = [&]<int D> {
    called = D;
    return status{};
  };
  CHECK(bool(lanewise::dispatch<64, 96, 128>(96, run)));
  CHECK(called == 96);
  called = 0;
  status const s = lanewise::dispatch<64, 96, 128>(80, run);
  CHECK(called == 0);
  CHECK(s.code == status_code::unsupported);
  CHECK(std::string(s.message()) ==
        "dispatch: 80 is not among the values that this program was compiled for: 64 96 128");
}
