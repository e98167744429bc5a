// LANEWISE_HD marks a function that host and device code share. It is empty outside nvcc, so every header that
// uses it compiles with a plain C++20 compiler.
#pragma once

#if __cplusplus < 202002L
  #error "lanewise needs C++20: compile with -std=c++20"
#endif

#if defined(__CUDACC__)
  #define LANEWISE_HD __host__ __device__
#else
  #define LANEWISE_HD
#endif
