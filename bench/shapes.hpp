// What the drivers measure: shapes, their masks and FLOP, the training shapes of shapes.json, random tensors.
//
//   FLOP = 4 B H Sq Sk D live forward, 2.5 times that backward; live is the fraction of pairs that the mask keeps
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <lanewise/precision.hpp>
#include <lanewise/tensor.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

enum class mask { full, causal, window };  ///< window: 128 keys on either side

constexpr char const* name_of(mask m) { return m == mask::full ? "full" : m == mask::causal ? "causal" : "window128"; }

struct shape_row {
  std::string id;  ///< of a training shape; else empty
  std::int64_t batch, q_heads, kv_heads, q_length, k_length;
  mask kind;

  double live() const {
    double pairs = 0;
    for (std::int64_t i = 0; i < q_length; ++i) {
      std::int64_t const begin = kind == mask::window ? std::max<std::int64_t>(0, i - 128) : 0;
      std::int64_t const end = kind == mask::full     ? k_length
                               : kind == mask::causal ? std::min(i + 1, k_length)
                                                      : std::min(i + 129, k_length);
      pairs += double(std::max<std::int64_t>(0, end - begin));
    }
    return pairs / (double(q_length) * double(k_length));
  }
  double flop(int head_dim, bool backward) const {
    return 4 * double(batch * q_heads) * double(q_length) * double(k_length) * head_dim * live() * (backward ? 2.5 : 1);
  }
  /// As in forward/f32/d128/gqa4/causal/b1/s1024, without the direction.
  std::string name(char const* type, int head_dim) const {
    return std::string(type) + "/d" + std::to_string(head_dim) + "/gqa" + std::to_string(q_heads / kv_heads) + "/" +
           name_of(kind) + "/b" + std::to_string(batch) + "/s" + std::to_string(q_length) +
           (k_length == q_length ? "" : "x" + std::to_string(k_length)) + (id.empty() ? "" : "/" + id);
  }
};

struct training_shape {
  shape_row shape;
  int head_dim;
};

/// The shapes of shapes.json. Throws where the file cannot be read or holds none.
inline std::vector<training_shape> training_shapes(std::string const& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot open " + path);
  nlohmann::json const file = nlohmann::json::parse(in);
  std::vector<training_shape> all;
  for (auto const& t : file.at("training")) {
    std::string const name = t.at("mask");
    mask const kind = name == "causal" ? mask::causal : name.starts_with("window") ? mask::window : mask::full;
    all.push_back({{t.at("id"), t.at("batch"), t.at("q_heads"), t.at("kv_heads"), t.at("q_len"), t.at("k_len"), kind},
                   t.at("head_dim")});
  }
  if (all.empty()) throw std::runtime_error(path + ": holds no training shapes");
  return all;
}

template <class T>
std::vector<T> random_values(std::int64_t count, std::uint32_t seed) {
  std::vector<T> out(static_cast<std::size_t>(count));
  for (T& x : out) {  // sums of four uniform numbers, of variance 1
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += float((seed = seed * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f;
    x = lanewise::from_float<T>(sum * 1.7320508f);
  }
  return out;
}

/// ||got - expected|| / ||expected||; `expected` is dense.
template <class T>
double distance(lanewise::view<T> got, std::vector<double> const& expected) {
  double error = 0, norm = 0;
  std::size_t at = 0;
  for (std::int64_t b = 0; b < got.size.batch; ++b)
    for (std::int64_t s = 0; s < got.size.sequence; ++s)
      for (std::int64_t h = 0; h < got.size.heads; ++h)
        for (std::int64_t i = 0; i < got.size.head_dim; ++i, ++at) {
          double const difference = double(lanewise::to_float(got.row(b, s, h)[i])) - expected[at];
          error += difference * difference, norm += expected[at] * expected[at];
        }
  return std::sqrt(error / norm);
}

}  // namespace bench
