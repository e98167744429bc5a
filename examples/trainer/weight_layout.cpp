#include "weight_layout.hpp"

#include <algorithm>

namespace trainer {

projection_index weight_layout::add_projection(std::string const& layer, std::int64_t in,
                                               std::initializer_list<part> parts) {
  auto const module_of = [&](part const& p) {
    return layer + std::ranges::find(sites_, std::string(p.site), [](projection_site const& s) {
                     return std::string(s.name);
                   })->module;
  };
  parameter_list& list = how_.storage == mirror::f32 ? full_ : half_;
  std::int64_t const begin = list.count();
  std::int64_t out = 0;
  for (part const& p : parts) {
    list.add(module_of(p) + ".weight", {p.out, in});
    out += p.out;
  }
  placed_projection placed{begin, projection(in, out, how_.storage)};
  std::int64_t row = 0;
  for (part const& p : parts) {
    if (std::ranges::find(how_.sites, p.site) != how_.sites.end())
      placed.apply.adapt(how_.adapter, row, p.out, module_of(p), adapters_);
    row += p.out;
  }
  projections_.push_back(std::move(placed));
  return projections_.size() - 1;
}

}  // namespace trainer
