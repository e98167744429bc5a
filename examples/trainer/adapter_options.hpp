// The options of a frozen base and its adapters, which lm and dit share.
#pragma once

#include <set>
#include <span>
#include <string>

#include "run_options.hpp"
#include "weight_layout.hpp"

namespace trainer {

/// Takes what a file says; throws bad-option where the user asked otherwise.
template <class T>
void take_found(char const* name, T& value, std::optional<T> const& asked, T const& found, std::string const& from) {
  if (asked && *asked != found)
    throw bad_option(std::string("--") + name + " " + text_of(*asked) + ", but " + from + " has " + text_of(found));
  value = found;
}

adaptation adaptation_of(run_settings const& s);
/// Decides what is open, with what --adapter-from says; sites: of the model, all of which have an adapter by default.
void resolve_adapter(run_settings& s, run_fields<std::optional> const& asked, std::span<projection_site const> sites);
/// Throws bad-option, with the numbers; also where a field that the user decided has no effect.
void check_adapter(run_settings const& s, std::set<std::string> const& from_user,
                   std::span<projection_site const> sites);
/// --factor -1 has a meaning.
bool may_be_negative(field const& f, double value);

}  // namespace trainer
