// The language model once more, token by token in f64, from its published equations and the weights' names alone: an
// oracle that shares no code with the trainer.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace test {

struct naive_model {
  int vocabulary, layers, hidden, q_heads, kv_heads, head_dim, ffn;
  double theta;
  std::map<std::string, std::vector<double>> weights;  ///< Hugging Face's names, each [out, in]
  bool attention_zeroed = false;

  using row = std::vector<double>;

  row multiply(std::string const& name, row const& x) const {
    std::vector<double> const& w = weights.at(name);
    row y(w.size() / x.size());
    for (std::size_t o = 0; o < y.size(); ++o)
      for (std::size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
    return y;
  }

  row norm(std::string const& name, row const& x) const {
    double mean = 0;
    for (double e : x) mean += e * e / double(x.size());
    row y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = weights.at(name)[i] * x[i] / std::sqrt(mean + 1e-6);
    return y;
  }

  /// The heads of x, normed and turned to `position`.
  row heads(std::string const& name, row const& x, int position) const {
    row y;
    for (std::size_t h = 0; h < x.size() / std::size_t(head_dim); ++h) {
      row const one =
          norm(name, row(x.begin() + std::ptrdiff_t(h) * head_dim, x.begin() + std::ptrdiff_t(h + 1) * head_dim));
      for (int i = 0; i < head_dim; ++i) {
        int const half = head_dim / 2, pair = i % half;
        double const angle = position * std::pow(theta, -2.0 * pair / head_dim);
        double const other = i < half ? -one[std::size_t(i + half)] : one[std::size_t(i - half)];
        y.push_back(one[std::size_t(i)] * std::cos(angle) + other * std::sin(angle));
      }
    }
    return y;
  }

  /// Attention's output at the last position, for one query head.
  row attend(row const& q, std::vector<row> const& k, std::vector<row> const& v, int head) const {
    int const kv = head / (q_heads / kv_heads);
    std::vector<double> p(k.size());
    double sum = 0;
    for (std::size_t j = 0; j < k.size(); ++j) {
      double score = 0;
      for (int i = 0; i < head_dim; ++i)
        score += q[std::size_t(head * head_dim + i)] * k[j][std::size_t(kv * head_dim + i)];
      sum += p[j] = std::exp(score / std::sqrt(double(head_dim)));
    }
    row o(std::size_t(head_dim), 0.0);
    for (std::size_t j = 0; j < k.size(); ++j)
      for (int i = 0; i < head_dim; ++i) o[std::size_t(i)] += p[j] / sum * v[j][std::size_t(kv * head_dim + i)];
    return o;
  }

  /// -log P(target) at each position of one sequence.
  std::vector<double> losses(std::vector<std::int32_t> const& tokens, std::vector<std::int32_t> const& targets) const {
    std::vector<row> x(tokens.size());
    std::vector<double> const& embedding = weights.at("model.embed_tokens.weight");
    for (std::size_t t = 0; t < tokens.size(); ++t)
      x[t].assign(embedding.begin() + tokens[t] * hidden, embedding.begin() + (tokens[t] + 1) * hidden);
    for (int l = 0; l < layers; ++l) {
      std::string const at = "model.layers." + std::to_string(l) + ".";
      std::vector<row> k, v;
      for (std::size_t t = 0; t < x.size(); ++t) {
        row const n = norm(at + "input_layernorm.weight", x[t]);
        row const q = heads(at + "self_attn.q_norm.weight", multiply(at + "self_attn.q_proj.weight", n), int(t));
        k.push_back(heads(at + "self_attn.k_norm.weight", multiply(at + "self_attn.k_proj.weight", n), int(t)));
        v.push_back(multiply(at + "self_attn.v_proj.weight", n));
        row o;
        for (int h = 0; h < q_heads; ++h)
          for (double e : attend(q, k, v, h)) o.push_back(attention_zeroed ? 0.0 : e);
        row const out = multiply(at + "self_attn.o_proj.weight", o);
        for (int i = 0; i < hidden; ++i) x[t][std::size_t(i)] += out[std::size_t(i)];
      }
      for (row& r : x) {
        row const n = norm(at + "post_attention_layernorm.weight", r);
        row gate = multiply(at + "mlp.gate_proj.weight", n);
        row const up = multiply(at + "mlp.up_proj.weight", n);
        for (int i = 0; i < ffn; ++i)
          gate[std::size_t(i)] *= up[std::size_t(i)] / (1 + std::exp(-gate[std::size_t(i)]));
        row const out = multiply(at + "mlp.down_proj.weight", gate);
        for (int i = 0; i < hidden; ++i) r[std::size_t(i)] += out[std::size_t(i)];
      }
    }
    std::vector<double> result;
    for (std::size_t t = 0; t < x.size(); ++t) {
      row const logits = multiply("model.embed_tokens.weight", norm("model.norm.weight", x[t]));
      double sum = 0;
      for (double e : logits) sum += std::exp(e);
      result.push_back(std::log(sum) - logits[std::size_t(targets[t])]);
    }
    return result;
  }
};

}  // namespace test
