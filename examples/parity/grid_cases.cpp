// The cases. Odd sizes are deliberate: they leave partial tiles on both sides.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "engine.hpp"
#include "grid.hpp"

namespace parity {

namespace {

using lanewise::precision;

using change = std::function<void(problem&)>;

change both(change a, change b) {
  return [=](problem& p) {
    if (a) a(p);
    if (b) b(p);
  };
}

change none() { return {}; }

/// A window of a quarter of the sequence at most, 128 keys a side where there is room.
change windowed() {
  return [](problem& p) {
    std::int32_t const w = std::int32_t(std::min<std::int64_t>(128, p.k.size.sequence / 4));
    p.variant.window = {true, {w, w}};
  };
}

/// Batch element b keeps the first 7/8, 6/8, ... of its keys.
std::vector<std::int32_t> lengths_of(problem const& p) {
  std::vector<std::int32_t> r;
  for (std::int64_t b = 0; b < p.k.size.batch; ++b)
    r.push_back(std::int32_t(p.k.size.sequence * std::max<std::int64_t>(7 - b, 1) / 8));
  return r;
}

change padded() {
  return [](problem& p) {
    p.masks->key_lengths = lengths_of(p);
    p.variant.key_padding = {true, {p.masks->key_lengths.data()}};
  };
}

change padded_self() {
  return [](problem& p) {
    p.masks->key_lengths = lengths_of(p);
    p.variant.self_padding = {true, {p.masks->key_lengths.data()}};
  };
}

/// Every 7th key is seen by no row.
change dead_keys() {
  return [](problem& p) { p.keep_keys([](std::int64_t, std::int64_t k) { return k % 7 != 0; }); };
}

/// Rows 0, S/2 and S-1 see nothing.
change rows_dead() {
  return [](problem& p) {
    std::int32_t const n = std::int32_t(p.q.size.sequence);
    p.variant.dead = {true, {{0, n / 2, n - 1}}};
  };
}

change top_left() {
  return [](problem& p) { p.variant.causal_top_left = {true, {}}; };
}
change bottom_right() {
  return [](problem& p) { p.variant.causal_bottom_right = {true, {}}; };
}

/// Five documents, one of them empty, and some positions at the end in none.
change documents() {
  return [](problem& p) {
    for (auto [table, length] :
         {std::pair{&p.masks->documents_q, p.q.size.sequence}, {&p.masks->documents_k, p.k.size.sequence}}) {
      std::int32_t const n = std::int32_t(length);
      *table = {0, n / 9, n / 3, n / 3, n * 2 / 3, n - 3};
    }
    p.variant.documents = {true, {p.masks->documents_q.data(), p.masks->documents_k.data(), 5}};
  };
}

void fill_parameter(parameter& x, std::uint64_t seed, float factor, float shift = 0) {
  for (std::size_t i = 0; i < x.value->size(); ++i) (*x.value)[i] = shift + factor * float(normal(seed, i));
}

change softcap(float cap) {
  return [=](problem& p) { p.variant.softcap = {true, {cap}}; };
}

/// Extents of 0 stand for the call's.
change biased(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) {
  return [=](problem& p) {
    auto const extent = [](std::int64_t want, std::int64_t all) { return want == 0 ? all : want; };
    p.bias = parameter(extent(b, p.q.size.batch), extent(h, p.q.size.heads), extent(q, p.q.size.sequence),
                       extent(k, p.k.size.sequence), true);
    fill_parameter(p.bias, 101, 1);
    p.variant.bias = {true, {p.bias.values(), p.bias.gradients()}};
  };
}

change alibi_of(bool align_right) {
  return [=](problem& p) {
    p.slope = parameter(1, p.q.size.heads, 1, 1, true);
    for (std::int64_t h = 0; h < p.q.size.heads; ++h)
      (*p.slope.value)[h] = std::exp2(-8.f * float(h + 1) / float(p.q.size.heads));
    p.variant.alibi = {
        true,
        {p.slope.values(), p.slope.gradients(), align_right ? std::int32_t(p.k.size.sequence - p.q.size.sequence) : 0}};
  };
}

change sink(std::int64_t batch) {
  return [=](problem& p) {
    p.logit = parameter(batch == 0 ? p.q.size.batch : batch, p.q.size.heads, 1, 1, true);
    fill_parameter(p.logit, 103, 1, 2);
    p.variant.sink = {true, {p.logit.values(), p.logit.gradients()}};
  };
}

class list {
 public:
  grid_case& add(std::string name, dimensions size, precision type, change variant = none()) {
    grid_case c;
    c.name = std::move(name), c.size = size, c.precision = type, c.variant = std::move(variant);
    cases.push_back(std::move(c));
    return cases.back();
  }
  std::vector<grid_case> cases{};
};

/// Self-attention over S x batch x masks, dead keys, cross-attention, dead rows, grouped heads, a long window.
void classic(list& l) {
  struct heads {
    std::int64_t batch, q, kv;
  };
  constexpr precision f32 = precision::f32;
  for (std::int64_t s : {64, 129, 198, 384, 1000})
    for (heads h : {heads{1, 32, 8}, {2, 32, 32}}) {
      int const d = s == 129 || s == 384 ? 128 : 64;
      dimensions const size{h.batch, h.q, h.kv, s, s, d};
      // bf16 and f16 take turns: their arithmetic is the same, their storage is what differs
      precision const low = (s == 64 || s == 198 || s == 1000) == (h.batch == 1) ? precision::bf16 : precision::f16;
      for (precision type : {f32, low}) {
        if (type != f32 && s == 1000 && h.batch == 2) continue;
        l.add("self", size, type);
        l.add("self window", size, type, windowed());
        l.add("self window padded", size, type, both(windowed(), padded_self()));
        if (s <= 198) l.add("self dead keys", size, type, dead_keys()).dead_keys = true;
      }
    }
  for (auto [q, k] : {std::pair<std::int64_t, std::int64_t>{384, 769}, {65, 200}})
    for (std::int64_t batch : {1, 2}) {
      dimensions const size{batch, 32, batch == 1 ? 8 : 32, q, k, q == 65 ? 128 : 64};
      for (precision type : {f32, batch == 1 ? precision::f16 : precision::bf16}) {
        l.add("cross", size, type);
        l.add("cross dead keys", size, type, dead_keys()).dead_keys = true;
      }
    }
  for (precision type : {f32, precision::bf16}) {
    l.add("dead rows", {2, 32, 8, 198, 198, 64}, type, rows_dead()).dead_rows = true;
    l.add("dead rows and keys", {1, 8, 8, 129, 200, 128}, type, both(rows_dead(), dead_keys())).dead_rows = true;
    l.add("expanded heads", {3, 32, 8, 129, 129, 64}, type).expanded = true;
    l.add("window of a long sequence", {1, 32, 8, 3000, 3000, 64}, type, windowed());
  }
  l.add("heads x keys x batch 60,064", {4, 32, 8, 64, 1877, 64}, f32);
  for (std::int64_t batch : {1, 2, 3})
    for (std::int64_t ratio : {1, 2, 4, 8})
      l.add("grouped heads", {batch, 16, 16 / ratio, 65, 97, 40}, f32, bottom_right()).expanded = true;
}

void masks(list& l) {
  for (precision type : {precision::f32, precision::bf16}) {
    l.add("causal top left", {2, 8, 2, 200, 131, 64}, type, top_left());
    l.add("causal top left, more keys", {1, 8, 2, 131, 200, 64}, type, top_left()).dead_keys = true;
    l.add("causal bottom right", {2, 8, 2, 131, 200, 64}, type, bottom_right());
    l.add("causal bottom right, more queries", {2, 8, 2, 200, 131, 64}, type, bottom_right()).dead_rows = true;
    l.add("key padding", {3, 8, 8, 100, 190, 64}, type, padded()).dead_keys = true;
    l.add("documents", {2, 8, 4, 260, 260, 64}, type, both(documents(), top_left())).dead_rows = true;
    l.add("documents, cross", {1, 8, 4, 150, 300, 64}, type, documents()).dead_keys = true;
    l.add("window and padding", {7, 8, 2, 300, 300, 64}, type, both(windowed(), padded())).dead_rows = true;
  }
  l.add("one side of a window", {1, 4, 4, 200, 200, 40}, precision::f32, [](problem& p) {
    p.variant.window = {true, {17, INT32_MAX}};
  });
  l.add("diagonal", {1, 4, 4, 70, 70, 40}, precision::f32, [](problem& p) {
     p.variant.window = {true, {0, 0}};
   }).d_lse = true;  // else dS is 0
  l.add("empty rows for merging", {2, 8, 2, 200, 131, 64}, precision::f32, bottom_right()).empty_lse =
      lanewise::empty_lse::minus_infinity;
  l.add("empty rows for merging", {2, 8, 2, 200, 131, 64}, precision::f16, bottom_right()).empty_lse =
      lanewise::empty_lse::minus_infinity;
}

void scores(list& l) {
  for (precision type : {precision::f32, precision::bf16, precision::f16}) {
    l.add("softcap", {2, 8, 2, 129, 200, 64}, type, softcap(2));
    l.add("bias [b, h, q, k]", {2, 4, 2, 129, 200, 64}, type, biased(0, 0, 0, 0));
    l.add("sink", {2, 32, 8, 129, 200, 64}, type, sink(0));
  }
  constexpr precision f32 = precision::f32;
  l.add("bias [1, h, q, k]", {2, 4, 2, 129, 200, 64}, f32, biased(1, 0, 0, 0));
  l.add("bias [b, 1, 1, k]", {2, 4, 2, 129, 200, 64}, f32, biased(0, 1, 1, 0));
  l.add("bias [1, 1, q, 1]", {2, 4, 2, 129, 200, 64}, f32, both(biased(1, 1, 0, 1), sink(0)));
  l.add("alibi", {2, 8, 2, 200, 200, 64}, f32, both(alibi_of(false), top_left()));
  l.add("alibi bottom right", {2, 8, 2, 129, 200, 64}, f32, both(alibi_of(true), bottom_right()));
  l.add("sink, dead rows", {2, 8, 2, 129, 200, 64}, f32, both(sink(1), rows_dead())).dead_rows = true;
  change const everything =
      both(both(both(softcap(3), alibi_of(true)), both(biased(0, 1, 0, 0), sink(0))), both(bottom_right(), windowed()));
  for (precision type : {f32, precision::bf16}) {
    l.add("softcap, alibi, bias, sink, causal, window", {2, 8, 2, 150, 200, 64}, type, everything).d_lse = true;
    l.add("softcap, alibi, bias, sink, causal, window", {1, 4, 1, 200, 200, 128}, type, both(everything, padded()))
        .accumulate = true;
  }
}

void all_head_dims(list& l, device where) {
  using lanewise::gradient_type;
  for (precision type : {precision::f32, precision::bf16, precision::f16, precision::bf16_split})
    for (gradient_type gradient : {gradient_type::storage, gradient_type::f32})
      for (int d : compiled_head_dims(where, type, gradient)) {
        if (type == precision::f32 && gradient == gradient_type::f32) continue;
        l.add("head dim", {1, 4, 2, 100, 133, d}, type, type == precision::f16 ? softcap(5) : bottom_right()).gradient =
            gradient;
      }
}

void memory(list& l) {
  for (placement where : {placement::heads_first, placement::sequence_first, placement::interleaved, placement::padded,
                          placement::broadcast})
    for (precision type : {precision::f32, precision::bf16}) {
      std::int64_t const k = where == placement::interleaved ? 100 : 133, kv = where == placement::interleaved ? 4 : 2;
      l.add(std::string("strides: ") + name_of(where), {2, 4, kv, 100, k, 40}, type, bottom_right()).placement = where;
    }
  for (precision type : {precision::f32, precision::bf16, precision::f16, precision::bf16_split})
    for (auto gradient : {lanewise::gradient_type::storage, lanewise::gradient_type::f32}) {
      if (type == precision::f32 && gradient == lanewise::gradient_type::f32) continue;
      for (bool accumulate : {false, true}) {
        grid_case& c = l.add(accumulate ? "gradients added, d_lse" : "gradients, d_lse", {2, 8, 2, 129, 200, 64}, type,
                             windowed());
        c.gradient = gradient, c.accumulate = accumulate, c.d_lse = true;
      }
    }
  for (auto [isa, name] : {std::pair{lanewise::cpu_isa::portable, "portable"},
                           {lanewise::cpu_isa::avx2, "avx2"},
                           {lanewise::cpu_isa::avx512, "avx512"}})
    for (precision type : {precision::f32, precision::bf16, precision::f16})
      for (int d : {64, 120})
        l.add(std::string("instructions: ") + name, {1, 4, 2, 100, 133, d}, type, both(bottom_right(), windowed()))
            .isa = isa;
  for (dimensions size : {dimensions{2, 4, 2, 0, 7, 64}, {2, 4, 2, 7, 0, 64}, {0, 4, 2, 5, 7, 64}, {2, 0, 0, 5, 7, 64}})
    l.add("nothing to do", size, precision::f32).zero = true;
  // In many heads: dS is a difference of equal sums here, and the relative error of a single number a draw.
  l.add("one query, one key", {8, 16, 16, 1, 1, 64}, precision::f32).d_lse = true;
  l.add("one query", {3, 8, 1, 1, 500, 128}, precision::f32);
  l.add("one key", {2, 4, 4, 100, 1, 64}, precision::f32).d_lse = true;
}

}  // namespace

std::vector<grid_case> grid_cases(device where) {
  list l;
  classic(l), masks(l), scores(l), all_head_dims(l, where), memory(l);
  if (where == device::cpu) return std::move(l.cases);
  // A GPU tells tf32 and f32_split from f32: each f32 case runs in all three where they are compiled. Instruction sets
  // are the CPU's.
  std::vector<grid_case> cases;
  for (grid_case const& c : l.cases) {
    if (c.isa != lanewise::cpu_isa::automatic) continue;
    cases.push_back(c);
    if (c.precision != precision::f32) continue;
    for (precision other : {precision::tf32, precision::f32_split}) {
      auto const dims = compiled_head_dims(where, other, c.gradient);
      if (std::find(dims.begin(), dims.end(), c.size.head_dim) == dims.end()) continue;
      if (c.empty_lse != lanewise::empty_lse::zero) continue;
      cases.push_back(c);
      cases.back().precision = other;
    }
  }
  return cases;
}

}  // namespace parity
