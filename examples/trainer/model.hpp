// A language model of the Qwen3 kind: an embedding that is the head too where it is tied, and per layer
//
//   x += Wo attention(rope(norm(Wq n)), rope(norm(Wk n)), Wv n),  n = norm(x)      grouped-query, causal
//   x += Wd (silu(Wg n) * Wu n),                                  n = norm(x)
//   logits = E norm(x), or H norm(x) with a head of its own
//
// with RMSNorm throughout, no biases. Weights lie in flat arrays, named and shaped as Hugging Face's Qwen3 names them;
// neighbours that are multiplied by the same input (q, k, v; gate, up) lie side by side and are one product. Either all
// of them are trained, or they are frozen and adapters on chosen projections are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops.hpp"
#include "step_memory.hpp"
#include "weight_layout.hpp"

namespace trainer {

struct model_shape {
  std::int64_t vocabulary = 256, layers = 4, hidden = 128, q_heads = 4, kv_heads = 2, head_dim = 32, ffn = 384;
  double rope_theta = 10000, epsilon = norm_epsilon;
  bool tied = true;
  bool operator==(model_shape const&) const = default;

  constexpr std::int64_t all_heads() const { return q_heads + 2 * kv_heads; }
};

/// The projections that may have an adapter.
inline constexpr projection_site lm_sites[] = {
    {"q", "self_attn.q_proj"}, {"k", "self_attn.k_proj"}, {"v", "self_attn.v_proj"}, {"o", "self_attn.o_proj"},
    {"gate", "mlp.gate_proj"}, {"up", "mlp.up_proj"},     {"down", "mlp.down_proj"}};

/// Offsets into the array of norms, and the projections, that a layer's code uses.
struct layer_weights {
  std::int64_t input_norm, q_norm, k_norm, mlp_norm;
  projection_index qkv, o, gate_up, down;
};

class parameter_layout : public weight_layout {
 public:
  explicit parameter_layout(model_shape const& shape, adaptation const& how = {});

  std::int64_t embedding() const { return embedding_; }
  std::int64_t head() const { return head_; }
  std::int64_t final_norm() const { return final_norm_; }
  layer_weights const& layer(std::int64_t i) const { return layers_[std::size_t(i)]; }

 private:
  void add_layer(model_shape const& shape, std::string const& at);
  std::vector<layer_weights> layers_;
  std::int64_t embedding_ = 0, head_ = 0, final_norm_ = 0;
};

/// Draws matrices from N(0, 0.02^2), those that write to the residual stream from N(0, 0.02^2 / (2 layers)) as GPT-2
/// does; sets gains to 1. The same seed gives the same bits. weights: layout.full().
template <class T>
void initialise(parameter_layout const& layout, model_shape const& shape, std::uint64_t seed, T* weights);

/// Windows of `sequence` tokens; targets[i] follows tokens[i], or is no_target.
struct token_batch {
  std::int64_t batch, sequence;
  std::int32_t const* tokens;   ///< [batch, sequence]
  std::int32_t const* targets;  ///< [batch, sequence]
  constexpr std::int64_t rows() const { return batch * sequence; }
};

/// What a layer's forward keeps for its backward.
template <class T>
struct layer_tape {
  buffer<T> x, normed, inverse, qkv, qk, head_inverse, o, attention, middle, mlp_normed, mlp_inverse, gate_up, active;
};

/// The model's computation; weights and memory are the caller's. All of it runs under planning ops too.
template <class T>
class language_model {
 public:
  /// segments, 1 ... layers: the layers are cut into so many runs, of which only the inputs are kept; the backward
  /// computes the rest again. 1 keeps everything; the result does not depend on it.
  language_model(model_shape const& shape, attention_kind attention, parameter_layout const& layout,
                 std::int64_t segments = 1)
      : shape_(shape), attention_(attention), layout_(&layout), segments_(segments), kept_(std::size_t(segments - 1)),
        tapes_(std::size_t(shape.layers)) {}

  /// gradients, laid out as layout.trained(), += weight * d (sum of losses) / d weights; loss[rows] in nats. rotary:
  /// fill_rotary_table(sequence, head_dim).
  void train(ops<T> const& op, step_memory& memory, token_batch const& in, weight_arrays<T> const& weights,
             T const* rotary, T weight, T* gradients, T* loss);

  /// loss[rows] in nats.
  void evaluate(ops<T> const& op, step_memory& memory, token_batch const& in, weight_arrays<T> const& weights,
                T const* rotary, T* loss);

  /// logits[vocabulary] of one row.
  void predict(ops<T> const& op, step_memory& memory, token_batch const& in, std::int64_t row,
               weight_arrays<T> const& weights, T const* rotary, T* logits);

 private:
  struct scene;  // what every part of one pass needs
  buffer<T> layer_forward(scene const& s, std::int64_t layer, buffer<T> x, layer_tape<T>& tape) const;
  buffer<T> segment_forward(scene const& s, std::int64_t segment, buffer<T> x, buffer<T>* kept);
  void layer_backward(scene const& s, std::int64_t layer, layer_tape<T>& tape, T* d_x) const;
  void attention_backward(scene const& s, std::int64_t layer, layer_tape<T>& tape, T* d_x) const;
  void mlp_backward(scene const& s, std::int64_t layer, layer_tape<T>& tape, T* d_x) const;
  buffer<T> forward(scene const& s) const;
  attention_site site(scene const& s) const;
  attention_inputs<T> views(scene const& s, T const* qk, T const* qkv) const;
  head_shape heads(scene const& s) const;
  std::int64_t first_of(std::int64_t segment) const { return segment * shape_.layers / segments_; }

  model_shape shape_;
  attention_kind attention_;
  parameter_layout const* layout_;
  std::int64_t segments_;
  std::vector<buffer<T>> kept_;  ///< what goes into every segment but the last
  std::vector<layer_tape<T>> tapes_;
};

}  // namespace trainer
