// A diffusion transformer over frames of latents, in two styles. Neighbouring frames are joined to patches, which are
// the tokens.
//
//   ace   as ACE-Step 1.5: per layer, with six vectors (shift, scale, gate; twice) = table + projection of the time
//           x += gate attention(rope(norm q), rope(norm k), v),  adaptive norm before; even layers see a window
//           x += attention(norm q, norm k of the caption, v of the caption),  RMSNorm before; no rotation, no gate
//           x += gate SwiGLU,                                    adaptive norm before
//         and two embeddings of the time, of t and of t - r
//   mm3   as MM3: the time is a token before the others; LayerNorm with bias, attention with partial rotation and
//   without
//         norms of its heads, SwiGLU; what it is conditioned on comes frame by frame, as `context`
//
// Self-attention looks both ways. Padded tokens are no keys, so that they change nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dit_ops.hpp"
#include "step_memory.hpp"
#include "weight_layout.hpp"

namespace trainer {

enum class dit_style { ace, mm3 };

struct dit_shape {
  dit_style style = dit_style::ace;
  std::int64_t layers = 4, hidden = 128, q_heads = 4, kv_heads = 2, head_dim = 32, ffn = 384;
  std::int64_t channels = 128, context = 0;  ///< of a frame: latents, and what is known about it
  std::int64_t patch = 2;                    ///< frames of a token
  std::int64_t caption_width = 64;
  std::int64_t window = 128;  ///< of even layers: |q - k| <= window
  std::int64_t rotated = 32;  ///< numbers of a head that are rotated
  double rope_theta = 1e6, epsilon = 1e-6;
  bool operator==(dit_shape const&) const = default;

  constexpr std::int64_t all_heads() const { return q_heads + 2 * kv_heads; }
  constexpr std::int64_t prefix() const { return style == dit_style::mm3 ? 1 : 0; }  ///< tokens before the first
  constexpr std::int64_t patch_width() const { return patch * channels; }
};

inline constexpr std::int64_t time_features = 256;
/// Entries of the caption's table: the bytes, and the caption that stands for none.
inline constexpr std::int64_t caption_entries = 257;

/// The projections that may have an adapter, those of cross-attention last.
inline constexpr projection_site all_dit_sites[] = {
    {"q", "self_attn.q_proj"},        {"k", "self_attn.k_proj"},        {"v", "self_attn.v_proj"},
    {"o", "self_attn.o_proj"},        {"gate", "mlp.gate_proj"},        {"up", "mlp.up_proj"},
    {"down", "mlp.down_proj"},        {"cross_q", "cross_attn.q_proj"}, {"cross_k", "cross_attn.k_proj"},
    {"cross_v", "cross_attn.v_proj"}, {"cross_o", "cross_attn.o_proj"}};
/// MM3 has no cross-attention.
constexpr std::span<projection_site const> dit_sites(dit_style style) {
  return std::span(all_dit_sites).first(style == dit_style::ace ? 11 : 7);
}

struct dit_layer_weights {
  std::int64_t table, self_norm, self_bias, q_norm, k_norm, cross_norm, cross_q_norm, cross_k_norm, mlp_norm, mlp_bias;
  projection_index qkv, o, cross_q, cross_kv, cross_o, gate_up, down;
};
struct time_weights {
  std::int64_t in, in_bias, out, out_bias, projection, projection_bias;
};

class dit_layout : public weight_layout {
 public:
  explicit dit_layout(dit_shape const& shape, adaptation const& how = {});
  dit_layer_weights const& layer(std::int64_t i) const { return layers_[std::size_t(i)]; }

  std::int64_t in = 0, in_context = 0, in_bias = 0, caption = 0, condition = 0, condition_bias = 0;
  time_weights time{}, time_gap{};
  std::int64_t norm_out = 0, norm_out_bias = 0, table_out = 0, out = 0, out_bias = 0;

 private:
  time_weights add_time(dit_shape const& shape, std::string const& name);
  void add_layer(dit_shape const& shape, std::string const& at);
  std::vector<dit_layer_weights> layers_;
};

/// One step's input. Pointers may be null where the style has no use for them.
template <class T>
struct dit_batch {
  std::int64_t batch, tokens, caption_length;
  T const* noised;                      ///< [batch, tokens, patch_width()]
  T const* context;                     ///< [batch, tokens, patch * context]
  T const *time, *time_gap;             ///< [batch, time_features]
  std::int32_t const* key_lengths;      ///< [batch]: real tokens, with the prefix; null: all are
  std::int32_t const* caption;          ///< [batch, caption_length], entries of the caption's table
  std::int32_t const* caption_lengths;  ///< [batch]
};

/// What a layer's forward keeps for its backward. inverse: of a norm, also LayerNorm's statistics.
template <class T>
struct dit_tape {
  buffer<T> modulation, normed, inverse, qkv, qk, head_inverse, o, saved, attended, middle;
  buffer<T> cross_normed, cross_inverse, q, q_normed, q_inverse, kv, k_normed, k_inverse, cross_o, cross_saved, crossed;
  buffer<T> mlp_normed, mlp_inverse, gate_up, active, mlp_out;
};

template <class T>
struct dit_scene;
template <class T>
struct dit_time_tape;
template <class T>
struct dit_start;
template <class T>
struct dit_ending;

/// The model's computation; weights and memory are the caller's. All of it runs under planning ops too.
template <class T>
class dit_model {
 public:
  /// segments: the layers are cut into so many runs, of which only the inputs are kept; the backward computes the rest
  /// again. 1 keeps everything; the result does not depend on it.
  dit_model(dit_shape const& shape, attention_kind attention, dit_layout const& layout, std::int64_t segments = 1);

  /// prediction[batch, tokens, patch_width()]. rotary: fill_rotary_table(tokens + prefix, rotated).
  void predict(ops<T> const& op, dit_ops<T> const& dit, step_memory& memory, dit_batch<T> const& in,
               weight_arrays<T> const& weights, T const* rotary, T* prediction);

  /// gradients += d (sum of row_weight loss) / d of what the layout has trained; loss[batch, tokens], the mean squared
  /// error against target [batch, tokens, patch_width()]. channel_weight: [patch_width()].
  void train(ops<T> const& op, dit_ops<T> const& dit, step_memory& memory, dit_batch<T> const& in,
             weight_arrays<T> const& weights, T const* rotary, T const* target, T const* row_weight,
             T const* channel_weight, T* gradients, T* loss);

 private:
  using scene = dit_scene<T>;
  using time_tape = dit_time_tape<T>;
  using start = dit_start<T>;
  using ending = dit_ending<T>;
  void embed(scene& s, start& kept) const;
  void time_forward(scene const& s, time_weights const& at, T const* features, time_tape& kept) const;
  void time_backward(scene const& s, time_weights const& at, T const* features, time_tape& kept, T* d_embedding) const;
  void embed_backward(scene const& s, start& kept, T* d_x) const;
  void finish(scene const& s, T const* x, T* prediction, ending& kept) const;
  void finish_backward(scene const& s, T const* x, ending& kept, T const* d_prediction, T* d_x, T* d_embedding) const;

  buffer<T> layer_forward(scene const& s, std::int64_t layer, T const* x, dit_tape<T>& t) const;
  buffer<T> self_attention(scene const& s, std::int64_t layer, T const* x, dit_tape<T>& t) const;
  buffer<T> cross_attention(scene const& s, std::int64_t layer, dit_tape<T>& t) const;
  buffer<T> mlp(scene const& s, std::int64_t layer, T const* x, dit_tape<T>& t) const;
  void layer_backward(scene const& s, std::int64_t layer, T const* x, dit_tape<T>& t, T* d_x) const;
  void self_backward(scene const& s, std::int64_t layer, T const* x, dit_tape<T>& t, T* d_x, T* d_modulation) const;
  void cross_backward(scene const& s, std::int64_t layer, dit_tape<T>& t, T* d_x) const;
  /// Where the norm before a layer's self-attention or MLP has its weights, and, of the ACE style, its slots.
  struct norm_site {
    std::int64_t gain, bias, shift, scale;
  };
  /// The style's norm: adaptive, or with a bias.
  void norm(scene const& s, norm_site at, T const* x, T const* modulation, T* y, T* inverse) const;
  void norm_backward(scene const& s, norm_site at, T const* x, T const* modulation, T const* inverse, T const* d_y,
                     T* d_x, T* d_modulation) const;
  void mlp_backward(scene const& s, std::int64_t layer, T const* x, dit_tape<T>& t, T* d_x, T* d_modulation) const;

  bool is_ace() const { return shape_.style == dit_style::ace; }
  attention_site self_site(scene const& s, std::int64_t layer) const;
  attention_site cross_site(scene const& s) const;
  std::int64_t first_of(std::int64_t segment) const { return segment * shape_.layers / segments_; }

  dit_shape shape_;
  attention_kind attention_;
  dit_layout const* layout_;
  std::int64_t segments_;
  std::vector<buffer<T>> inputs_;  ///< inputs_[i] goes into layer i; after a forward only those that the backward needs
  std::vector<dit_tape<T>> tapes_;
};

/// Draws the numbers begin ... end-1 of a tensor of an unmirrored layout, its index-th: matrices from N(0, 0.02^2),
/// tables from N(0, 1 / hidden); gains are 1, biases 0. The same seed gives the same bits, however a tensor is cut.
template <class T>
void draw_weight(parameter const& p, std::uint64_t index, dit_shape const& shape, std::uint64_t seed,
                 std::int64_t begin, std::int64_t end, T* to);
/// All of layout.full(), of an unmirrored layout.
template <class T>
void initialise(dit_layout const& layout, dit_shape const& shape, std::uint64_t seed, T* weights);

}  // namespace trainer
