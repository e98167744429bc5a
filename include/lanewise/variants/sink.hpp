// An attention sink: one more key per row with a learnt logit and a zero value, as in gpt-oss (2025).
#pragma once

#include "parameter.hpp"

namespace lanewise {

/// Adds a key of logit[batch, head] and value zero to every row; keeps every pair. The logit is compared with finished
/// scores: neither scale nor another variant's score changes it. LSE counts it, so a row without visible keys has
/// LSE = logit and O = 0.
struct sink {
  parameter_view<float const> logit{};  ///< [B or 1, H or 1, 1, 1]
  parameter_view<float> d_logit{};      ///< gradient; left out: not wanted

  LANEWISE_HD constexpr float operator()(row at) const { return logit.at(at.batch, at.head, 0, 0); }
  LANEWISE_HD constexpr parameter_view<float> parameter_gradient() const { return d_logit; }
  /// No score depends on the logit: it acts through LSE alone.
  LANEWISE_HD constexpr float parameter_factor(float, position) const { return 0.f; }

  status validate(shape s) const {
    if (s.batch == 0 || s.heads == 0) return {};
    if (status const bad = detail::check_parameter("sink: logit", logit, {s.batch, s.heads, 1, 1}); !bad) return bad;
    return detail::check_parameter_gradient("sink: d_logit", d_logit, logit);
  }
};

}  // namespace lanewise
