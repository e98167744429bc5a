// The version stands in config.hpp, so that a copied include/ knows it, and in meson.build; both say the same.
#include <lanewise/config.hpp>

#include <doctest/doctest.h>

#include <string>

TEST_CASE("config.hpp and meson.build name the same version") {
  std::string const header = std::to_string(LANEWISE_VERSION_MAJOR) + "." + std::to_string(LANEWISE_VERSION_MINOR) + "." +
                             std::to_string(LANEWISE_VERSION_PATCH);
  CHECK(header == LANEWISE_MESON_VERSION);
}
