// Which tensors a model has, where they lie, and which of them are trained: all of its weights, or adapters beside
// projections of a frozen base. What is common to the language model and the diffusion transformer; each adds its own
// names and shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "parameters.hpp"
#include "projection.hpp"

namespace trainer {

/// A projection that may have an adapter: its name among the options, and how a layer's module ends.
struct projection_site {
  char const *name, *module;
};

/// What is trained, and how what is frozen is stored.
struct adaptation {
  adapter_settings adapter;        ///< kind none: every weight is trained, and stored in f32
  std::vector<std::string> sites;  ///< names of projection_site
  mirror storage = mirror::f32;    ///< of the frozen projections
  bool operator==(adaptation const&) const = default;
};

/// A projection, and the offset of its matrix in the array that it is stored in.
struct placed_projection {
  std::int64_t at;
  projection apply;
};
/// Of a projection in its layout.
using projection_index = std::size_t;

class weight_layout {
 public:
  /// `full` in T, `half` in bf16 (the projections, where they are mirrored), and the adapters'.
  parameter_list const& full() const { return full_; }
  parameter_list const& half() const { return half_; }
  parameter_list const& adapters() const { return adapters_; }
  /// What the optimiser changes: the adapters' tensors where there are any, else all.
  parameter_list const& trained() const { return is_frozen() ? adapters_ : full_; }
  bool is_frozen() const { return how_.adapter.kind != adapter_kind::none; }
  adaptation const& how() const { return how_; }
  /// Every site that a layer of the model has, in the order of the layer.
  std::span<projection_site const> sites() const { return sites_; }
  placed_projection const& operator[](projection_index i) const { return projections_[i]; }

  /// f(adapter) in the order of adapters().
  template <class F>
  void for_each_adapter(F const& f) const {
    for (placed_projection const& p : projections_)
      for (projection::adapted_rows const& a : p.apply.adapters()) f(a.change);
  }

 protected:
  /// sites outlives this.
  weight_layout(adaptation const& how, std::span<projection_site const> sites) : how_(how), sites_(sites) {}

  struct part {
    char const* site;
    std::int64_t out;
  };
  /// Appends matrices [out, in] that share an input, stacked, named `layer`, the site's module and ".weight".
  projection_index add_projection(std::string const& layer, std::int64_t in, std::initializer_list<part> parts);

  parameter_list full_;

 private:
  adaptation how_;
  std::span<projection_site const> sites_;
  parameter_list half_, adapters_;
  std::vector<placed_projection> projections_;
};

/// Draws the adapters' tensors so that they change nothing yet. trained: layout.adapters().
template <class T>
void initialise_adapters(weight_layout const& layout, std::uint64_t seed, T* trained) {
  std::uint64_t index = 0;
  layout.for_each_adapter([&](adapter const& a) { a.initialise(seed, index++, trained); });
}

/// The arrays that a layout describes; what is empty there is not looked at here.
template <class T>
struct weight_arrays {
  T const* full = nullptr;
  lanewise::bf16 const* half = nullptr;
  T const* adapters = nullptr;
};

/// What a pass over the layers needs to apply projections.
template <class T>
struct projections {
  ops<T> const& op;
  step_memory& memory;
  weight_layout const& layout;
  weight_arrays<T> const& weights;
  T* gradients = nullptr;  ///< laid out as layout.trained()

  /// Where the gradient of a weight in weights.full goes; null for a frozen one.
  T* gradient(std::int64_t at) const { return layout.is_frozen() ? nullptr : gradients + at; }
  base_matrix<T> matrix(placed_projection const& p) const {
    return layout.how().storage == mirror::f32 ? base_matrix<T>{weights.full + p.at, nullptr}
                                               : base_matrix<T>{nullptr, weights.half + p.at};
  }
  void forward(projection_index i, std::int64_t rows, T const* x, T const* residual, T* y) const {
    placed_projection const& p = layout[i];
    p.apply.forward(op, memory, rows, x, matrix(p), weights.adapters, residual, y);
  }
  void backward(projection_index i, std::int64_t rows, T const* x, T const* d_y, T* d_x) const {
    placed_projection const& p = layout[i];
    p.apply.backward(op, memory, rows, x, matrix(p), weights.adapters, d_y, d_x, gradient(p.at), gradients);
  }
};

}  // namespace trainer
