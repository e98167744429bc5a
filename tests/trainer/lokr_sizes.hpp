// The sizes over which plans of LoKR are checked, on the CPU and on a GPU.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

namespace test {

/// check(dim, factor, batch, bytes of a caption), the first three as options take them.
template <class Check>
void for_each_lokr_size(Check const& check) {
  for (std::string const dim : {"64", "128", "256", "512"})
    for (std::string const factor : {"4", "6", "8"})
      for (std::string const batch : {"1", "2", "4"})
        for (std::size_t const caption : {434, 1877}) {
          CAPTURE(dim);
          CAPTURE(factor);
          CAPTURE(batch);
          CAPTURE(caption);
          check(dim, factor, batch, caption);
        }
}

}  // namespace test
