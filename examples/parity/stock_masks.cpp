// Stock masks as the types they are.
#include "stock_case.hpp"

namespace parity {

std::vector<case_result> run_stock_masks(grid_options const& o, std::uint64_t seed) {
  std::vector<case_result> all;
  std::int32_t const lengths[] = {170, 60}, cu_q[] = {0, 40, 41, 150}, cu_k[] = {0, 90, 100, 200};
  std::vector<std::uint32_t> const words(2 * 7, 0x7ffff5abu);
  auto const plain = [](auto f) { return [f](problem&, parameter*&) { return f; }; };
  stock_cases<true>(all, "full", o, seed, 200, plain(lanewise::full{}));
  stock_cases(all, "causal_top_left", o, seed, 150, plain(lanewise::causal_top_left{}));
  stock_cases<true>(all, "causal_bottom_right", o, seed, 200, plain(lanewise::causal_bottom_right{}));
  stock_cases(all, "window", o, seed, 150, plain(lanewise::window{40, 20}));
  stock_cases(all, "window_bottom_right", o, seed, 200, plain(lanewise::window_bottom_right{40, 20}));
  stock_cases(all, "key_padding", o, seed, 200, plain(lanewise::key_padding{lengths}));
  stock_cases(all, "self_padding", o, seed, 150, plain(lanewise::self_padding{lengths}));
  stock_cases(all, "key_padding_bits", o, seed, 200, plain(lanewise::key_padding_bits{words.data(), 7}));
  stock_cases(all, "documents, each causal", o, seed, 200,
              plain(lanewise::documents{cu_q, cu_k, 3, lanewise::causal_bottom_right{}}));
  return all;
}

}  // namespace parity
