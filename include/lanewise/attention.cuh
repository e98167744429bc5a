// Defines the GPU side of attention.hpp. Include it in the one .cu file of a program that instantiates:
//
//   #include <lanewise/attention.cuh>
//   template lanewise::status lanewise::forward<my_config>(on_cuda, forward_args<my_config> const&, my_variant const&,
//   workspace) noexcept;
//
// Other files see attention.hpp and `extern template`. One path, written on mma.sync, serves sm_80 ... sm_120; on sm_90
// the 16-bit forward runs on wgmma where the file is compiled for sm_90a. A call launches on its stream and returns: it
// allocates nothing, waits for nothing, and may be captured into a CUDA graph.
#pragma once

#include <optional>
#include <type_traits>

#include "attention.hpp"
#include "cuda/device.hpp"
#include "cuda/launch.cuh"
#include "cuda/sm80/backward.cuh"
#include "cuda/sm80/forward.cuh"
#include "cuda/sm80/parameter_gradient.cuh"
#include "cuda/sm80/preprocess.cuh"
#include "cuda/sm90/backward.cuh"
#include "cuda/sm90/backward_sums.cuh"
#include "cuda/sm90/forward.cuh"
#include "cuda/sm90/wide_keys.cuh"
#include "cuda/sm90/wide_queries.cuh"
#include "parameters.hpp"

namespace lanewise {

namespace gpu {

/// What a status says ran.
constexpr char const* label(precision p, bool aligned) {
  switch (p) {
    case precision::f32:
      return aligned ? "cuda sm80 ffma f32" : "cuda sm80 ffma f32, element copies: a row is not 16-byte aligned";
    case precision::tf32:
      return aligned ? "cuda sm80 mma tf32" : "cuda sm80 mma tf32, element copies: a row is not 16-byte aligned";
    case precision::f16:
      return aligned ? "cuda sm80 mma f16" : "cuda sm80 mma f16, element copies: a row is not 16-byte aligned";
    case precision::bf16:
      return aligned ? "cuda sm80 mma bf16" : "cuda sm80 mma bf16, element copies: a row is not 16-byte aligned";
    case precision::bf16_split:
      return aligned ? "cuda sm80 mma bf16, split"
                     : "cuda sm80 mma bf16, split, element copies: a row is not 16-byte aligned";
    case precision::f32_split:
      return aligned ? "cuda sm80 mma f32, split"
                     : "cuda sm80 mma f32, split, element copies: a row is not 16-byte aligned";
  }
  return "";
}

constexpr char const* label_sm90(precision p) {
  return p == precision::f16 ? "cuda sm90 wgmma f16" : "cuda sm90 wgmma bf16";
}

/// What a status says when the mma.sync forward runs on sm_90 in place of the other.
constexpr char const* label_instead(precision p, bool aligned, sm90a_image image) {
  bool const f16 = p == precision::f16;
  if (image == sm90a_image::other_chip || !aligned) return label(p, aligned);
  if (image == sm90a_image::not_compiled)
    return f16 ? "cuda sm80 mma f16: not compiled for sm_90a" : "cuda sm80 mma bf16: not compiled for sm_90a";
  return f16 ? "cuda sm80 mma f16: the copy engine cannot walk a view's strides"
             : "cuda sm80 mma bf16: the copy engine cannot walk a view's strides";
}

/// Bytes that parameter I needs for the sums of its query tiles.
template <config C, tuning T, class F, int I>
std::size_t partial_bytes(F const& f, extents q) {
  if constexpr (parameter_is_sink<I, F>) return 0;
  else
    return sizeof(float) *
           std::size_t(sm80::parameter_partials(parameter_gradient<I>(f), q, sm80::parameter_kernel<C, T, F, I>::rows));
}

/// The workspace of a backward: row sums; then, one after the other in the same room, what d_q, d_k and d_v need and
/// the partial sums of each parameter. The former are on wgmma the f32 sums of dQ, the shares of dK and dV, whose turn
/// it is at each query tile, and the blocks' numbers; on mma.sync the shares of dK and dV.
struct backward_room {
  std::size_t sums, key_sums, turns, bytes;
  std::int32_t shares;
  sm90::key_shares wgmma_shares;
};
template <config C, tuning T, class F>
backward_room backward_layout(cuda_target where, extents q, extents k, F const& f, bool wgmma, wanted grads) {
  auto const whole = [](std::size_t bytes) {
    return (bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
  };
  std::size_t most = 0;
  auto const at_least = [&](std::size_t bytes) { most = bytes > most ? bytes : most; };
  for_each_parameter<F>([&]<int I> { at_least(partial_bytes<C, T, F, I>(f, q)); });
  backward_room room{};
  room.sums = room.key_sums = room.turns = whole(row_values::bytes(q));
  if constexpr (sm90::has_backward<C>)
    if (wgmma) {
      using kernel = sm90::backward_kernel<C, T, F>;
      room.wgmma_shares = kernel::shares_of(q, k, f, where.multiprocessors);
      std::int64_t const tiles = kernel::query_tiles(q);
      std::size_t const sums = grads.d_q ? std::size_t(tiles) * sm90::query_sums::bytes : 0,
                        shares = sm90::key_sums<C>::bytes(room.wgmma_shares, grads);
      room.key_sums += sums;
      room.turns += sums + shares;
      at_least(sums + shares + std::size_t(tiles + 1) * sizeof(std::uint32_t));
    }
  if constexpr (sm90::has_wide_backward<C>)
    if (wgmma) {
      room.wgmma_shares = sm90::wide_key_kernel<C, T, F>::shares_of(q, k, f, where.multiprocessors);
      at_least(sm90::key_sums<C>::bytes(room.wgmma_shares, grads));
    }
  room.shares = sm80::gradient_kernel<C, T, F>::share_count(q, k, where.multiprocessors);
  // Where wgmma takes all but a few views, those get the shares that the room holds anyway.
  if (sm90::has_forward<C> && wgmma)
    while (sm80::key_shares::bytes(room.shares, k, grads) > most) --room.shares;
  at_least(sm80::key_shares::bytes(room.shares, k, grads));
  room.bytes = room.sums + whole(most);
  return room;
}

/// The mma.sync forward; its status names the kernel.
template <config C, tuning T, class F>
status forward_sm80(on_cuda on, forward_args<C> const& a, F const& f, sm90a_image image) {
  using kernel = sm80::forward_kernel<C, T, F>;
  typename kernel::problem const p = kernel::problem_of(a, f);
  status done = launch<kernel>(on, kernel::units(p), p);
  if (done) done.kernel = label_instead(C.precision, p.aligned, image);
  return done;
}

/// The wgmma forward where the device, the compiled code and the views allow it, else the other.
template <config C, tuning T, sm90::forward_shape size, class F>
status forward_sm90(on_cuda on, forward_args<C> const& a, F const& f) {
  using kernel = sm90::forward_kernel<C, F, size>;
  sm90a_image const image = image_of<kernel>();
  typename kernel::problem p = kernel::problem_of(a, f);
  if (image != sm90a_image::runs || !kernel::encode_maps(p, a)) return forward_sm80<C, T>(on, a, f, image);
  status done = launch_persistent<kernel>(on, p.order.count(), p);
  if (done) done.kernel = label_sm90(C.precision);
  return done;
}
/// The tile depends on the number of keys.
template <config C, tuning T, class F>
status forward_16_bit(on_cuda on, forward_args<C> const& a, F const& f) {
  constexpr sm90::forward_shape few = sm90::forward_tile_of_few_keys<C, T, F>(), many = sm90::forward_tile<C, T, F>();
  return a.k.size.sequence <= sm90::few_keys ? forward_sm90<C, T, few>(on, a, f) : forward_sm90<C, T, many>(on, a, f);
}

/// The launches of a backward.
template <config C, tuning T, class F>
struct backward_calls {
  on_cuda on;
  backward_args<C> const& a;
  F const& f;
  row_values row;
  sm80::key_shares shares;
  float* partials;

  /// `words` counters at `cleared` become 0.
  status row_sums(std::uint32_t* cleared = nullptr, std::int64_t words = 0) const {
    using kernel = sm80::preprocess_kernel<C>;
    return start<kernel>({a.o, a.d_o, a.lse, a.d_lse, row, padded_rows(a.q.size.sequence) / row_padding,
                          aligned_to_16(a.o) && aligned_to_16(a.d_o), cleared, words});
  }
  /// d_q, d_k and d_v on wgmma; `p` has its maps.
  template <class K>
  status gradients_sm90(typename K::problem& p) const {
    status done = row_sums(p.turns, K::query_tiles(a.q.size) + 1);
    if (done && (a.d_q || a.d_k || a.d_v))
      done = start_blocks<K>(kernel_sm90a<K>, on, p.shares.blocks(), p, start_time::early);
    if (done) done = add_sums<K>(p, a.d_q, p.sums);
    return done;
  }
  /// The same above head dim 128; `keys` and `queries` have their maps.
  template <class K, class Q>
  status wide_gradients_sm90(typename K::problem& keys, typename Q::problem& queries) const {
    status done = row_sums();
    if (done && (a.d_k || a.d_v))
      done = start_blocks<K>(kernel_sm90a<K>, on, keys.shares.blocks(), keys, start_time::early);
    if (done) done = add_sums<K>(keys, {}, nullptr);
    if (done && a.d_q) done = start_blocks<Q>(kernel_sm90a<Q>, on, queries.order.count(), queries, start_time::early);
    return done;
  }
  /// What the blocks of K left in f32.
  template <class K>
  status add_sums(typename K::problem const& p, view<gradient<C>> const& d_q, float const* sums) const {
    using sum = sm90::gradient_sums_kernel<C, T, F>;
    typename sum::problem x{d_q,         a.d_k,      a.d_v,       f,    p.tiles, p.order,
                            p.shares,    p.key_room, p.key_heads, sums, a.scale, aligned_to_16(d_q) && p.aligned,
                            a.accumulate};
    return start_blocks<sum>(kernel<sum>, on, sum::units(x), x, start_time::early);
  }
  /// What is left once d_q, d_k and d_v came from wgmma.
  status finish_sm90(status done) const {
    if (done) done = parameters();
    if (done) done.kernel = label_sm90(C.precision);
    return done;
  }
  /// d_q, d_k and d_v on mma.sync.
  status gradients_sm80() const {
    using kernel = sm80::gradient_kernel<C, T, F>;
    using sum = sm80::key_sum_kernel<C>;
    status done = row_sums();
    if (done) done = delta();
    if (done) done = start<kernel>(typename kernel::problem({{a, f, row}, shares}));
    if (done && shares.count > 1) done = start<sum>({shares, a});
    return done;
  }
  /// The part of delta that row_sums left out.
  status delta() const {
    if constexpr (recomputes_delta<C>)
      return start<sm80::query_gradient_kernel<C, T, F, sm80::query_walk::delta>>({a, f, row});
    else return {};
  }

  status parameters() const {
    status done;
    for_each_parameter<F>([&]<int I> {
      if (done) done = parameter<I>();
    });
    return done;
  }
  template <int I>
  status parameter() const {
    parameter_view<float> const to = parameter_gradient<I>(f);
    if (!to) return {};
    if constexpr (parameter_is_sink<I, F>) {
      return start<sm80::sink_kernel<C, F, I>>({a, f, row});
    } else {
      using kernel = sm80::parameter_kernel<C, T, F, I>;
      typename kernel::problem const p{a, f, row, partials};
      if (status done = start<kernel>(p); !done || to.size[2] != 1) return done;
      return start<sm80::parameter_sum_kernel>({to, partials, kernel::tiles(p).q_tiles(), a.accumulate});
    }
  }

 private:
  template <class K>
  status start(typename K::problem const& p) const {
    return launch<K>(on, K::units(p), p);
  }
};

/// Row sums, d_q, d_k and d_v, then the parameters': on wgmma where the device, the compiled code and the views allow
/// it.
template <config C, tuning T, class F>
status run_backward(on_cuda on, backward_args<C> const& a, F const& f, workspace scratch) {
  sm90a_image image = sm90a_image::other_chip;
  if constexpr (sm90::has_backward<C>) image = image_of<sm90::backward_kernel<C, T, F>>();
  if constexpr (sm90::has_wide_backward<C>) image = image_of<sm90::wide_key_kernel<C, T, F>>();
  // What backward_workspace counts for this chip, whichever kernel runs: it cannot know how this file was compiled.
  wanted const grads{bool(a.d_q), bool(a.d_k), bool(a.d_v)};
  backward_room const room =
      backward_layout<C, T>(target_of(on), a.q.size, a.k.size, f, image != sm90a_image::other_chip, grads);
  if (status s = detail::check_workspace(scratch, room.bytes); !s) return s;
  auto const at = [&](std::size_t offset) { return static_cast<std::byte*>(scratch.data) + offset; };
  float* const sums = reinterpret_cast<float*>(at(room.sums));
  backward_calls<C, T, F> const run{
      on, a, f, row_values::in(scratch.data, a.q.size), sm80::key_shares::in(sums, room.shares, a.k.size, grads), sums};
  sm90::key_sums<C> const key_room =
      sm90::key_sums<C>::in(reinterpret_cast<float*>(at(room.key_sums)), room.wgmma_shares, grads);
  if constexpr (sm90::has_backward<C>) {
    auto const run_where_walkable = [&]<bool sharing>(std::bool_constant<sharing>) -> std::optional<status> {
      using kernel = sm90::backward_kernel<C, T, F, sharing>;
      typename kernel::problem p =
          kernel::problem_of(a, f, run.row, a.d_q ? sums : nullptr, reinterpret_cast<std::uint32_t*>(at(room.turns)),
                             room.wgmma_shares, key_room);
      if (!kernel::encode_maps(p, a)) return std::nullopt;
      return run.finish_sm90(run.template gradients_sm90<kernel>(p));
    };
    if (image == sm90a_image::runs)
      if (auto const done = room.wgmma_shares.count > 1 ? run_where_walkable(std::true_type{})
                                                        : run_where_walkable(std::false_type{}))
        return *done;
  }
  if constexpr (sm90::has_wide_backward<C>) {
    using keys = sm90::wide_key_kernel<C, T, F>;
    using queries = sm90::wide_query_kernel<C, T, F>;
    typename keys::problem k = keys::problem_of(a, f, run.row, room.wgmma_shares, key_room);
    typename queries::problem q = queries::problem_of(a, f, run.row);
    if (image == sm90a_image::runs && keys::encode_maps(k, a) && queries::encode_maps(q, a)) {
      return run.finish_sm90(run.template wide_gradients_sm90<keys, queries>(k, q));
    }
  }
  status done = run.gradients_sm80();
  if (done) done = run.parameters();
  if (done) done.kernel = label_instead(C.precision, sm80::backward_problem<C, F>::inputs_aligned(a), image);
  return done;
}

}  // namespace gpu

template <config C, tuning T, class F>
std::size_t forward_workspace(cuda_target, extents, extents, F const&) noexcept {
  static_assert(check_variant<F, false>());
  return 0;
}

template <config C, tuning T, class F>
std::size_t backward_workspace(cuda_target where, extents q, extents k, F const& given, wanted grads) noexcept {
  static_assert(check_variant<F, true>());
  return gpu::backward_layout<C, T>(where, q, k, bind(given, shape_of(q, k)), where.sm == 90, grads).bytes;
}

template <config C, tuning T, class F>
status forward(on_cuda on, forward_args<C> const& a, F const& given, workspace) noexcept {
  static_assert(check_variant<F, false>());
  if (status s = check(a); !s) return s;
  shape const lengths = shape_of(a.q.size, a.k.size);
  if (status s = validate(given, lengths); !s) return s;
  auto const f = bind(given, lengths);
  if constexpr (sm90::has_forward<C>) return gpu::forward_16_bit<C, T>(on, a, f);
  else return gpu::forward_sm80<C, T>(on, a, f, gpu::sm90a_image::other_chip);
}

template <config C, tuning T, class F>
status backward(on_cuda on, backward_args<C> const& a, F const& given, workspace scratch) noexcept {
  static_assert(check_variant<F, true>());
  if (status s = check(a); !s) return s;
  shape const lengths = shape_of(a.q.size, a.k.size);
  if (status s = validate(given, lengths); !s) return s;
  auto const f = bind(given, lengths);
  if (status s = check_parameters(a, f); !s) return s;
  return gpu::run_backward<C, T>(on, a, f, scratch);
}

}  // namespace lanewise
