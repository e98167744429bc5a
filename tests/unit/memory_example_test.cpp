// The program of docs/memory.md, to the letter; the page is compared with this file.
#include <lanewise/attention_cpu.hpp>
#include <lanewise/memory/arena.hpp>
#include <lanewise/memory/packed.hpp>

namespace {

inline constexpr lanewise::config site{.head_dim = 64};

struct attention_step {
  lanewise::extents size;  // of q, k, v and o
  lanewise::tensor_id q, k, v, d_o, o_lse, d_qkv, forward_scratch, backward_scratch;
  lanewise::arena_plan plan;

  attention_step(std::int64_t tokens, lanewise::cpu_target where) : size{1, tokens, 8, 64} {
    std::size_t const bytes = std::size_t(size.count()) * sizeof(float);
    lanewise::arena_builder b;
    q = b.input(bytes, "q"), k = b.input(bytes, "k"), v = b.input(bytes, "v"), d_o = b.input(bytes, "d_o");
    o_lse = b.tensor(lanewise::packed_forward<site>{size}.bytes(), "o_lse");
    d_qkv = b.tensor(lanewise::packed_backward<site>{size, size}.bytes(), "d_qkv");
    forward_scratch = b.tensor(lanewise::forward_workspace<site>(where, size, size), "forward_scratch");
    backward_scratch = b.tensor(lanewise::backward_workspace<site>(where, size, size), "backward_scratch");
    b.op({q, k, v}, {o_lse, forward_scratch}, "forward");
    b.op({q, k, v, o_lse, d_o}, {d_qkv, backward_scratch}, "backward");
    b.keep(d_qkv);
    plan = b.plan();
  }

  lanewise::status run(lanewise::on_cpu on, lanewise::arena const& memory) const {
    using view = lanewise::view<float>;
    view const in_q(memory.at<float>(q), size), in_k(memory.at<float>(k), size), in_v(memory.at<float>(v), size);
    lanewise::packed_buffer const out{memory.at(o_lse), plan[o_lse].bytes};
    lanewise::status s =
        lanewise::forward_packed<site>(on, {.q = in_q, .k = in_k, .v = in_v, .o_lse = out}, lanewise::full{},
                                       {memory.at(forward_scratch), plan[forward_scratch].bytes});
    if (!s) return s;
    return lanewise::backward_packed<site>(on,
                                           {.q = in_q,
                                            .k = in_k,
                                            .v = in_v,
                                            .o_lse = out,
                                            .d_o = view(memory.at<float>(d_o), size),
                                            .d_qkv = {memory.at(d_qkv), plan[d_qkv].bytes}},
                                           lanewise::full{},
                                           {memory.at(backward_scratch), plan[backward_scratch].bytes});
  }
};

/// Fits the step into `bytes` bytes at `buffer`, fills its inputs and runs it. tokens receives the length.
lanewise::status run_in(void* buffer, std::size_t bytes, std::int64_t& tokens) {
  lanewise::on_cpu const on;
  auto const found =
      lanewise::fit(1, 100000, bytes, [&](std::int64_t n) { return attention_step(n, target_of(on)).plan; });
  if (!found.result) return found.result;
  tokens = found.size;
  attention_step const step(tokens, target_of(on));
  lanewise::arena memory;
  if (lanewise::status s = step.plan.bind(buffer, bytes, memory); !s) return s;
  for (lanewise::tensor_id input : {step.q, step.k, step.v, step.d_o})
    for (float& x : memory.span<float>(input)) x = 0.5f;
  return step.run(on, memory);
}

}  // namespace

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "memory_support.hpp"

namespace {

std::string contents(std::string const& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("the example of docs/memory.md runs in its budget and uses it") {
  constexpr std::size_t budget = std::size_t(8) << 20;
  aligned_buffer const buffer(budget);
  std::int64_t tokens = 0;
  lanewise::status const s = run_in(buffer.data(), budget, tokens);
  CHECK(lanewise::text(s) == "ok");
  // Per token: q, k, v, d_o, o, d_q, d_k, d_v of 8 heads * 64 * 4 bytes, and an LSE of 8 * 4.
  std::int64_t const bytes_per_token = 8 * 2048 + 32;
  CHECK(tokens <= std::int64_t(budget) / bytes_per_token);
  CHECK(tokens > std::int64_t(budget) / bytes_per_token * 9 / 10);  // the rest is the backward's scratch
  CHECK(attention_step(tokens, lanewise::target_of(lanewise::on_cpu{})).plan.peak() <= budget);
  CHECK(attention_step(tokens + 1, lanewise::target_of(lanewise::on_cpu{})).plan.peak() > budget);

  CHECK(run_in(buffer.data(), 20000, tokens).code == lanewise::status_code::out_of_memory);
}

TEST_CASE("docs/memory.md shows this very program") {
  std::string const here = __FILE__, tests = "tests/unit/memory_example_test.cpp";
  std::string const root = here.substr(0, here.size() - tests.size());
  std::string const page = contents(root + "docs/memory.md");
  std::size_t const begin = page.find("```cpp\n") + 7, end = page.find("```", begin);
  REQUIRE(end != std::string::npos);
  CHECK(contents(here).find(page.substr(begin, end - begin)) != std::string::npos);
}
