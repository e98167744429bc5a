// How far a result is from the reference, and whether that is near enough.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "problem.hpp"

namespace parity {

/// The bar of f32 results of N(0, 1) inputs; LSE is f32 whatever the storage. On the CPU every precision with f32
/// outputs computes in f32.
inline constexpr double f32_bar = 5e-6;
/// The same where the products are the GPU's: tf32 1e-3, P and dS in two bf16 limbs (16 bits) 1e-5, operands in two f16
/// limbs (22 bits) 2e-6.
double f32_bar_of(problem const& p);
/// What a result in tf32 differs from f64 at least: with less, f32 ran.
inline constexpr double tf32_floor = 1e-5;

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

/// Whether compare needs rounded_reference(p): for 16-bit storage, for inputs that are not N(0, 1), and for gradients
/// of parameters, which are long sums whose terms cancel (softmax's d_s add up to nothing along a row).
bool needs_rounded(problem const& p);

/// Which reference result belongs to which output, for a problem that has been run. `rounded` may be empty where
/// needs_rounded is false; `prior` holds d_q, d_k and d_v as they were before an accumulating run. Where inputs are not
/// N(0, 1) every bar is at least exponent_error.
std::vector<measured> compare(problem const& p, outputs const& out, lanewise::reference::result const& exact,
                              lanewise::reference::result const& rounded, outputs const* prior = nullptr);

/// 2 eps max|LSE|: exp(s - LSE) of f32 numbers is uncertain by their rounding, eps |LSE|; twice that.
double exponent_error(lanewise::reference::result const& exact);
void raise_bars(std::vector<measured>& rows, double least);

/// The gradient of one parameter.
measured compare_parameter(problem const& p, std::string const& tensor, parameter const& x,
                           std::vector<double> const& exact, std::vector<double> const& rounded);

/// One tensor by itself. Its bar is `f32` where `rounded` is null, else twice the error of `rounded` plus 2 eps of the
/// type, and for an f32 tensor not less than `f32`. `is_gradient` makes a zero reference vacuous.
measured compare(std::string const& tensor, extents size, std::vector<double> const& got,
                 std::vector<double> const& exact, std::vector<double> const* rounded, number type, bool is_gradient,
                 double f32);

/// On the GPU: sentences where the kernels that ran are not those of the precision, by their labels and, for tf32, by
/// errors below tf32_floor.
std::vector<std::string> kernel_faults(problem const& p, outputs const& out, std::vector<measured> const& rows);

std::string header_of_rows();
std::string row_of(measured const& m);

}  // namespace parity
