// The code behind run_options.hpp's templates. A command's options file includes it, instantiates what it uses there,
// and no other file does.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "error.hpp"
#include "option_checks.hpp"
#include "run_options.hpp"

namespace trainer {

template <class T>
bool is_zero(T const& value) {
  if constexpr (std::is_arithmetic_v<T>) return value == T(0);
  else return false;
}

template <class Options>
void add_options(CLI::App& app, Options& o, char const* data_help,
                 std::vector<std::pair<std::string, Options>> const& shown) {
  app.add_option("--data", o.data, data_help)->group("Data");
  auto const& [first, second] = std::pair(shown.at(0), shown.at(1));
  for_each_field(
      [&](field const& f, auto& value, auto const& in_first, auto const& in_second) {
        std::string help = f.help;
        if (in_first) help += ". Default: " + text_of(*in_first);
        if (in_first && *in_first != *in_second) help += ", " + second.first + " " + text_of(*in_second);
        if (f.zero_is_unset) help += ". 0: unset";
        std::string const names = std::string("--") + f.name + (f.other_name ? std::string(",--") + f.other_name : "");
        CLI::Option* const option = app.add_option(names, value, help)->group(f.group);
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(*value)>, std::int64_t>)
          option->check(beyond_64_bits);
      },
      o, first.second, second.second);
  app.add_option("--out", o.out, "directory of everything that the run writes")->capture_default_str()->group("Output");
  CLI::Option* const resume =
      app.add_flag("--resume", o.resume, "continue from the newest checkpoint in --out, bit for bit")->group("Output");
  app.add_flag("--overwrite", o.overwrite, "delete an earlier run's files in --out first")
      ->excludes(resume)
      ->group("Output");
}

template <class Options>
void forget_zeros(Options& o) {
  for_each_field(
      [](field const& f, auto& value) {
        if (f.zero_is_unset && value && is_zero(*value)) value.reset();
      },
      o);
}

/// The options of an argument list, which add(app, options) declares. Throws bad-option.
template <class Options, class Add>
Options parse_arguments(std::vector<std::string> const& arguments, Add const& add) {
  CLI::App app;
  Options o;
  add(app, o);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (CLI::ParseError const& e) {
    throw bad_option(e.what());
  }
  forget_zeros(o);
  return o;
}

/// Throws bad-option where a number is below 0, unless may(field, value).
template <class Settings, class May>
void require_not_negative(Settings const& s, May const& may) {
  for_each_field(
      [&](field const& f, auto const& value) {
        if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(value)>>)
          require(value >= 0 || may(f, double(value)),
                  std::string("--") + f.name + ": " + text_of(value) +
                      (std::isnan(double(value)) ? " is no number" : " is negative"));
      },
      s);
}

/// Takes what is asked, else the preset's value; notes which fields were asked.
template <class Settings, class Options>
void fill_from(Settings& s, Options const& asked, Options const& preset) {
  s.data = asked.data;
  s.out = asked.out;
  for_each_field(
      [&](field const& f, auto& value, auto const& a, auto const& p) {
        if (a) s.from_user.insert(f.name);
        if (a) value = *a;
        else if (p) value = *p;
        else value = {};
      },
      s, asked, preset);
  if (asked.from_user) s.from_user = *asked.from_user;
}

template <class Options>
std::vector<std::string> arguments_of(Options const& o) {
  std::vector<std::string> arguments;
  if (!o.data.empty()) arguments.push_back("--data");
  arguments.insert(arguments.end(), o.data.begin(), o.data.end());
  for_each_field(
      [&](field const& f, auto const& value) {
        if (value) arguments.insert(arguments.end(), {std::string("--") + f.name, text_of(*value)});
      },
      o);
  if (o.out != Options{}.out) arguments.insert(arguments.end(), {"--out", o.out});
  if (o.resume) arguments.push_back("--resume");
  if (o.overwrite) arguments.push_back("--overwrite");
  return arguments;
}

template <class Settings>
std::string describe(Settings const& s) {
  std::string user = "options source=user:", automatic = "options source=auto:";
  if (!s.data.empty()) {
    user += " --data";
    for (std::string const& d : s.data) user += " " + d;
  }
  for_each_field(
      [&](field const& f, auto const& value) {
        bool const open = f.zero_is_unset && is_zero(value);
        std::string text = text_of(value);
        if constexpr (std::is_same_v<decltype(text), std::remove_cvref_t<decltype(value)>>) text = "'" + text + "'";
        (s.from_user.contains(f.name) ? user : automatic) +=
            std::string(" --") + f.name + " " + (open ? "unset" : text);
      },
      s);
  return user + "\n" + automatic + "\n";
}

template <class Settings>
std::string to_json(Settings const& s) {
  nlohmann::json j;
  for_each_field(
      [&](field const& f, auto const& value) {
        if (f.changes_result)
          j[f.name] = {{"value", value}, {"source", s.from_user.contains(f.name) ? "user" : "auto"}};
      },
      s);
  return j.dump();
}

template <class Options>
Options continue_from(Options const& options, std::string const& saved) {
  Options merged = options;
  std::set<std::string>& from_user = merged.from_user.emplace();
  nlohmann::json const j = nlohmann::json::parse(saved);
  for_each_field(
      [&](field const& f, auto& value) {
        if (!f.changes_result) {
          if (value) from_user.insert(f.name);
          return;
        }
        using type = typename std::remove_cvref_t<decltype(value)>::value_type;
        type const before = j.at(f.name).at("value").template get<type>();
        if (value && *value != before)
          throw resume_mismatch(std::string("--") + f.name + " is " + text_of(*value) +
                                ", but the run to continue has " + text_of(before) +
                                "; the result would be neither run's");
        value = before;
        if (j.at(f.name).at("source") == "user") from_user.insert(f.name);
      },
      merged);
  forget_zeros(merged);
  return merged;
}

}  // namespace trainer
