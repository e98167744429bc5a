// How far a result is from the reference, and whether that is near enough.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "problem.hpp"

namespace parity {

/// The bar of f32 results, relative in the Frobenius norm; LSE is f32 whatever the storage.
inline constexpr double f32_bar = 5e-6;

enum class verdict { pass, fail, vacuous };
char const* name_of(verdict v);

/// One tensor against the exact reference r: ||x - r|| / ||r||.
struct measured {
  std::string tensor{};
  double max_abs = 0, relative = 0;
  std::int64_t worst[4] = {};  ///< [b, s, h, d] of the largest absolute error
  double reference_error = 0;  ///< relative error of the same-precision reference; 0 where the bar is fixed
  double bar = 0;
  verdict result = verdict::fail;  ///< vacuous: a gradient that is zero everywhere proves nothing
};

/// Whether compare needs rounded_reference(p): for 16-bit storage, and for gradients of parameters.
bool needs_rounded(problem const& p);

/// Which reference result belongs to which output, for a problem that has been run. `rounded` may be empty where
/// needs_rounded is false; `prior` holds d_q, d_k and d_v as they were before an accumulating run.
std::vector<measured> compare(problem const& p, outputs const& out, lanewise::reference::result const& exact,
                              lanewise::reference::result const& rounded, outputs const* prior = nullptr);

/// The gradient of a parameter is a long sum whose terms cancel (softmax's d_s add up to nothing along a row), so its
/// error is measured in f32 too: twice the f32 reference's plus 2 eps where that is more than the f32 bar.
measured compare_parameter(problem const& p, std::string const& tensor, parameter const& x,
                           std::vector<double> const& exact, std::vector<double> const& rounded);

/// One tensor by itself, with the fixed bar where `rounded` is null; `is_gradient` makes a zero reference vacuous.
measured compare(std::string const& tensor, extents size, std::vector<double> const& got,
                 std::vector<double> const& exact, std::vector<double> const* rounded, number type, bool is_gradient);

std::string header_of_rows();
std::string row_of(measured const& m);

}  // namespace parity
