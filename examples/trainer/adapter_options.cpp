#include "adapter_options.hpp"

#include <algorithm>

#include "adapter_files.hpp"

namespace trainer {
namespace {

std::string joined(std::vector<std::string> const& names, char const* between) {
  std::string all;
  for (std::string const& name : names) all += (all.empty() ? "" : between) + name;
  return all;
}

std::string names_of(std::span<projection_site const> sites, char const* between) {
  std::vector<std::string> names;
  for (projection_site const& s : sites) names.push_back(s.name);
  return joined(names, between);
}

}  // namespace

bool may_be_negative(field const& f, double value) { return std::string(f.name) == "factor" && value == -1; }

adaptation adaptation_of(run_settings const& s) {
  adaptation how;
  if (s.adapter == "none") return how;
  how.adapter = {s.adapter == "lora" ? adapter_kind::lora : adapter_kind::lokr, s.rank, s.alpha, s.factor};
  how.storage = s.mirror == "bf16" ? mirror::bf16 : s.mirror == "bf16-f32" ? mirror::bf16_f32 : mirror::f32;
  for (std::size_t at = 0; at <= s.sites.size();) {
    std::size_t const end = std::min(s.sites.find(',', at), s.sites.size());
    how.sites.push_back(s.sites.substr(at, end - at));
    at = end + 1;
  }
  return how;
}

void resolve_adapter(run_settings& s, run_fields<std::optional> const& o, std::span<projection_site const> sites) {
  s.adapter = o.adapter.value_or("none");
  s.rank = o.rank.value_or(16);
  s.factor = o.factor.value_or(8);
  s.sites = o.sites.value_or(names_of(sites, ","));
  s.mirror = o.mirror.value_or("f32");
  if (!s.adapter_from.empty()) {
    adaptation const found = read_peft_config(s.adapter_from, sites);
    std::string const kind = found.adapter.kind == adapter_kind::lora ? "lora" : "lokr";
    take_found("adapter", s.adapter, o.adapter, kind, s.adapter_from);
    take_found("rank", s.rank, o.rank, found.adapter.dim, s.adapter_from);
    take_found("alpha", s.alpha, o.alpha, found.adapter.alpha, s.adapter_from);
    take_found("factor", s.factor, o.factor, found.adapter.factor, s.adapter_from);
    take_found("sites", s.sites, o.sites, joined(found.sites, ","), s.adapter_from);
  }
  if (s.adapter == "none") return;
  if (!o.learning_rate) s.learning_rate = s.adapter == "lora" ? 1e-4 : 2e-3;
  if (!o.weight_decay) s.weight_decay = 0.01;
}

void check_adapter(run_settings const& s, std::set<std::string> const& from_user,
                   std::span<projection_site const> sites) {
  require_at_most("rank", s.rank, largest_size);
  require(s.adapter == "none" || s.adapter == "lora" || s.adapter == "lokr",
          "--adapter: " + s.adapter + " is none of none, lora, lokr");
  require(s.mirror == "f32" || s.mirror == "bf16" || s.mirror == "bf16-f32",
          "--mirror: " + s.mirror + " is none of f32, bf16, bf16-f32");
  require(s.mirror == "f32" || s.adapter != "none", "--mirror " + s.mirror + ": only frozen weights are mirrored");
  for (std::string const name : {"rank", "alpha", "factor", "sites"})
    require(s.adapter != "none" || !from_user.contains(name), "--" + name + " has no effect without an --adapter");
  require(s.adapter != "lora" || !from_user.contains("factor"), "--factor has no effect with --adapter lora");
  for (std::string const& name : adaptation_of(s).sites)
    require(std::ranges::any_of(sites, [&](projection_site const& p) { return name == p.name; }),
            "--sites: " + name + " is none of " + names_of(sites, ", "));
}

}  // namespace trainer
