// From a command line and a safetensors file to a problem, and back to a file.
#include "request.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace parity {

namespace {

/// The shape of a tensor of the file.
std::string shape_of(safetensors::tensor const& t) { return safetensors::text_of(t.shape); }

std::map<std::string, std::string> layouts_of(std::string const& text) {
  std::map<std::string, std::string> r;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    auto const equals = part.find('=');
    if (equals == std::string::npos)
      throw std::runtime_error("--layout: '" + part + "' is not NAME=ORDER, as in q=bhsd");
    std::string const name = part.substr(0, equals);
    if (std::string_view(" q k v d_o d_lse o lse dq dk dv ").find(" " + name + " ") == std::string_view::npos)
      throw std::runtime_error("--layout: '" + name + "' is none of q k v d_o d_lse o lse dq dk dv");
    r[name] = part.substr(equals + 1);
  }
  return r;
}

std::string layout_of(std::map<std::string, std::string> const& layouts, std::string const& name) {
  auto const found = layouts.find(name);
  if (found == layouts.end()) return "bshd";
  if (name == "lse" || name == "d_lse") return found->second + (found->second.size() == 3 ? "d" : "");
  return found->second;
}

/// A tensor of the file as it lies there, its dimensions named by `order`.
array array_of(safetensors::file const& f, std::string const& name, std::string const& order, std::size_t dimensions) {
  safetensors::tensor const& t = safetensors::at(f, name);
  std::string const whose = f.path.string() + ": tensor '" + name + "' " + shape_of(t);
  if (t.shape.size() != dimensions || order.size() != 4)
    throw std::runtime_error(whose + ": expected the " + std::to_string(dimensions) + " dimensions " +
                             order.substr(0, dimensions));
  array x;
  if (t.dtype == "F64") x.type = number::f64;
  else if (t.dtype == "F32") x.type = number::f32;
  else if (t.dtype == "F16") x.type = number::f16;
  else if (t.dtype == "BF16") x.type = number::bf16;
  else throw std::runtime_error(whose + ": dtype " + t.dtype + " is none of F64 F32 F16 BF16");
  x.size = {1, 1, 1, 1};
  for (std::size_t i = 0; i < dimensions; ++i) {
    char const letter = order[i];
    (letter == 'b'   ? x.size.batch
     : letter == 's' ? x.size.sequence
     : letter == 'h' ? x.size.heads
                     : x.size.head_dim) = t.shape[i];
  }
  x.stride = strides_of(x.size, order);
  x.bytes = std::make_shared<std::vector<std::byte>>(t.data);
  if (x.bytes->empty()) x.bytes->resize(8);  // an empty tensor is given all the same
  return x;
}

std::vector<std::int32_t> integers(safetensors::file const& f, std::string const& name,
                                   std::vector<std::int64_t> const& shape) {
  safetensors::tensor const& t = safetensors::at(f, name);
  std::string const whose = f.path.string() + ": tensor '" + name + "' " + shape_of(t);
  if (t.dtype != "I32" && t.dtype != "I64" && t.dtype != "U8" && t.dtype != "BOOL")
    throw std::runtime_error(whose + ": dtype " + t.dtype + " is no integer type");
  if (!shape.empty() && t.shape != shape)
    throw std::runtime_error(whose + ": expected " + safetensors::text_of(shape));
  std::vector<std::int32_t> r;
  for (std::int64_t n : safetensors::numbers<std::int64_t>(t)) {
    if (n < 0 || n > INT32_MAX)
      throw std::runtime_error(whose + ": holds " + std::to_string(n) + ", not within 0 ... 2147483647");
    r.push_back(std::int32_t(n));
  }
  return r;
}

lanewise::window window_of(std::string const& text) {
  auto const side = [&](std::string const& part) -> std::int32_t {
    if (part == "inf") return lanewise::unbounded;
    std::size_t used = 0;
    long n = -1;
    try {
      n = std::stol(part, &used);
    } catch (std::exception const&) {
    }
    if (used != part.size() || n < 0 || n >= INT32_MAX)
      throw std::runtime_error("--window: '" + part + "' is neither a whole number of 0 or more nor inf");
    return std::int32_t(n);
  };
  auto const comma = text.find(',');
  if (comma == std::string::npos) throw std::runtime_error("--window: '" + text + "' is not LEFT,RIGHT");
  return {side(text.substr(0, comma)), side(text.substr(comma + 1))};
}

void check_ascending(safetensors::file const& f, std::string const& name, std::vector<std::int32_t> const& table,
                     std::int64_t length) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    bool const falls = i > 0 && table[i] < table[i - 1];
    if (falls || table[i] > length)
      throw std::runtime_error(
          f.path.string() + ": " + name + "[" + std::to_string(i) + "] is " + std::to_string(table[i]) +
          (falls ? ", less than the entry before it" : ", beyond the sequence of " + std::to_string(length)));
  }
}

void add_documents(problem& p, safetensors::file const& f) {
  p.masks->documents_q = integers(f, "cu_seqlens_q", {});
  p.masks->documents_k = f.tensors.count("cu_seqlens_k") ? integers(f, "cu_seqlens_k", {}) : p.masks->documents_q;
  auto const& cu_q = p.masks->documents_q;
  auto const& cu_k = p.masks->documents_k;
  if (cu_q.empty() || cu_q.size() != cu_k.size())
    throw std::runtime_error(f.path.string() + ": cu_seqlens_q has " + std::to_string(cu_q.size()) +
                             " entries, cu_seqlens_k " + std::to_string(cu_k.size()) +
                             "; both need one more than there are documents");
  std::int32_t const count = std::int32_t(cu_q.size()) - 1;
  check_ascending(f, "cu_seqlens_q", cu_q, p.q.size.sequence);
  check_ascending(f, "cu_seqlens_k", cu_k, p.k.size.sequence);
  p.variant.documents.f.cu_q = cu_q.data(), p.variant.documents.f.cu_k = cu_k.data(),
  p.variant.documents.f.count = count;
  p.variant.documents.on = true;
}

void add_masks(problem& p, safetensors::file const& f, request const& r, std::vector<std::string>& remarks) {
  bool windowed = false, lengths = false;
  std::int64_t const batch = p.k.size.batch, keys = p.k.size.sequence;
  for (std::string const& name : r.masks) {
    if (name == "full") continue;
    if (name == "causal_top_left") p.variant.causal_top_left = {true, {}};
    else if (name == "causal_bottom_right") p.variant.causal_bottom_right = {true, {}};
    else if (name == "window" || name == "window_bottom_right") {
      if (r.window.empty()) throw std::runtime_error("--mask " + name + " needs --window LEFT,RIGHT");
      p.variant.window = {true, window_of(r.window)};
      if (name == "window_bottom_right") p.variant.window.f.offset = std::int32_t(keys - p.q.size.sequence);
      windowed = true;
    } else if (name == "key_padding" || name == "self_padding") {
      p.masks->key_lengths = integers(f, "kv_lengths", {batch});
      if (name == "key_padding") p.variant.key_padding = {true, {p.masks->key_lengths.data()}};
      else p.variant.self_padding = {true, {p.masks->key_lengths.data()}};
      lengths = true;
    } else if (name == "key_padding_bits") {
      auto const kept = integers(f, "kv_keep", {batch, keys});
      p.keep_keys([&](std::int64_t b, std::int64_t k) { return kept[b * keys + k] != 0; });
    } else if (name == "documents") {
      add_documents(p, f);
    } else {
      std::string known;
      for (std::string const& n : mask_names()) known += " " + n;
      throw std::runtime_error("--mask: '" + name + "' is none of" + known);
    }
  }
  auto const unused = [&](char const* tensor, bool used, char const* mask) {
    if (f.tensors.count(tensor) && !used)
      remarks.push_back(std::string(tensor) + " is in the file but not used: --mask does not name " + mask);
  };
  unused("kv_lengths", lengths, "key_padding");
  unused("kv_keep", p.variant.key_padding_bits.on, "key_padding_bits");
  unused("cu_seqlens_q", p.variant.documents.on, "documents");
  if (!r.window.empty() && !windowed)
    throw std::runtime_error("--window " + r.window + " needs --mask window or window_bottom_right");
}

/// Fills a parameter of extents [B|1, H|1, Q|1, K|1] from a tensor of that shape, or of its last dimensions.
parameter parameter_of(safetensors::file const& f, std::string const& name, std::vector<std::int64_t> shape,
                       bool gradient) {
  safetensors::tensor const& t = safetensors::at(f, name);
  std::string const whose = f.path.string() + ": tensor '" + name + "' " + shape_of(t);
  std::vector<std::int64_t> given = t.shape;
  if (name != "bias" && given.size() <= 2) {  // [H] or [B, H]
    if (given.size() < 2) given.insert(given.begin(), 1);
    given.resize(4, 1);
  }
  while (given.size() < 4) given.insert(given.begin(), 1);
  for (std::size_t i = 0; i < 4; ++i)
    if (given.size() != 4 || (given[i] != 1 && given[i] != shape[i]))
      throw std::runtime_error(whose + ": expected " + safetensors::text_of(shape) + " or 1 for any of them");
  parameter p(given[0], given[1], given[2], given[3], gradient);
  *p.value = safetensors::numbers<float>(t);
  return p;
}

void add_scores(problem& p, safetensors::file const& f, request const& r) {
  extents const q = p.q.size, k = p.k.size;
  if (r.softcap) p.variant.softcap = {true, {*r.softcap}};
  if (!r.alibi.empty()) {
    if (f.tensors.count("alibi_slopes"))
      p.slope = parameter_of(f, "alibi_slopes", {q.batch, q.heads, 1, 1}, p.backward());
    else {  // the paper's geometric series
      p.slope = parameter(1, q.heads, 1, 1, p.backward());
      for (std::int64_t h = 0; h < q.heads; ++h) (*p.slope.value)[h] = std::exp2(-8.f * float(h + 1) / float(q.heads));
    }
    if (r.alibi != "top_left" && r.alibi != "bottom_right")
      throw std::runtime_error("--alibi: '" + r.alibi + "' is neither top_left nor bottom_right");
    std::int32_t const offset = r.alibi == "bottom_right" ? std::int32_t(k.sequence - q.sequence) : 0;
    p.variant.alibi = {true, {p.slope.values(), p.slope.gradients(), offset}};
  }
  if (f.tensors.count("bias")) {
    p.bias = parameter_of(f, "bias", {q.batch, q.heads, q.sequence, k.sequence}, p.backward());
    p.variant.bias = {true, {p.bias.values(), p.bias.gradients()}};
  }
  if (f.tensors.count("sink")) {
    p.logit = parameter_of(f, "sink", {q.batch, q.heads, 1, 1}, p.backward());
    p.variant.sink = {true, {p.logit.values(), p.logit.gradients()}};
  }
}

void check_sizes(problem const& p, std::string const& path) {
  auto const refuse = [&](char const* name, extents have, std::string const& rule) {
    throw std::runtime_error(path + ": " + name + " is " + text_of(have) + " in [b, s, h, d]: " + rule);
  };
  extents const q = p.q.size, k = p.k.size;
  if (k.batch != q.batch || k.head_dim != q.head_dim) refuse("k", k, "batch or head dim differ from q's " + text_of(q));
  if (!(p.v.size == k)) refuse("v", p.v.size, "it must have k's " + text_of(k));
  if (k.heads == 0 ? q.heads != 0 : q.heads % k.heads != 0)
    refuse("q", q, "its heads are no multiple of k's " + std::to_string(k.heads));
  if (p.d_o && !(p.d_o.size == q)) refuse("d_o", p.d_o.size, "it must have q's " + text_of(q));
  if (p.d_lse && !(p.d_lse.size == p.lse_size())) refuse("d_lse", p.d_lse.size, "it must be " + text_of(p.lse_size()));
}

}  // namespace

std::vector<std::string> mask_names() {
  return {"full",        "causal_top_left", "causal_bottom_right", "window",   "window_bottom_right",
          "key_padding", "self_padding",    "key_padding_bits",    "documents"};
}

problem problem_of(safetensors::file const& f, request const& r, std::vector<std::string>& remarks) {
  auto const layouts = layouts_of(r.layout);
  problem p;
  p.q = array_of(f, "q", layout_of(layouts, "q"), 4);
  p.precision = r.precision.value_or(p.q.type == number::bf16  ? lanewise::precision::bf16
                                     : p.q.type == number::f16 ? lanewise::precision::f16
                                                               : lanewise::precision::f32);
  number const storage = storage_of(p.precision);
  auto const stored = [&](char const* name) {
    array x = array_of(f, name, layout_of(layouts, name), 4);
    if (x.type == storage) return x;
    remarks.push_back(std::string(name) + " converted from " + name_of(x.type) + " to " + name_of(storage));
    return converted(x, storage, layout_of(layouts, name));
  };
  p.q = stored("q"), p.k = stored("k"), p.v = stored("v");
  if (f.tensors.count("d_o")) p.d_o = stored("d_o");
  else remarks.push_back("no tensor d_o in the file: forward only");
  if (p.d_o && f.tensors.count("d_lse")) {
    p.d_lse = file_array(f, "d_lse", r);
    if (p.d_lse.type != number::f32) p.d_lse = converted(p.d_lse, number::f32, layout_of(layouts, "d_lse"));
  }
  check_sizes(p, f.path.string());
  p.scale = r.scale.value_or(lanewise::default_scale(int(std::max<std::int64_t>(p.q.size.head_dim, 1))));
  p.gradient = r.gradient == "f32" ? lanewise::gradient_type::f32 : lanewise::gradient_type::storage;
  p.empty_lse = r.empty_lse == "minus_infinity" ? lanewise::empty_lse::minus_infinity : lanewise::empty_lse::zero;
  add_masks(p, f, r, remarks);
  add_scores(p, f, r);
  return p;
}

outputs outputs_of(problem const& p, request const& r) {
  auto const layouts = layouts_of(r.layout);
  outputs out;
  out.o = make(p.storage(), p.q.size, layout_of(layouts, "o"));
  out.lse = make(number::f32, p.lse_size(), layout_of(layouts, "lse"));
  if (p.backward()) {
    out.d_q = make(p.gradient_storage(), p.q.size, layout_of(layouts, "dq"));
    out.d_k = make(p.gradient_storage(), p.k.size, layout_of(layouts, "dk"));
    out.d_v = make(p.gradient_storage(), p.v.size, layout_of(layouts, "dv"));
  }
  return out;
}

array file_array(safetensors::file const& f, std::string const& name, request const& r) {
  std::size_t const dimensions = name == "lse" || name == "d_lse" ? safetensors::at(f, name).shape.size() : 4;
  return array_of(f, name, layout_of(layouts_of(r.layout), name), dimensions == 4 ? 4 : 3);
}

safetensors::file file_of(problem const& p, outputs const& out, request const& r) {
  auto const layouts = layouts_of(r.layout);
  safetensors::file f;
  auto const add = [&](std::string const& name, array const& x) {
    if (!x) return;
    char const* const dtype = x.type == number::f32 ? "F32" : x.type == number::f16 ? "F16" : "BF16";
    std::vector<std::int64_t> shape;
    for (char letter : layout_of(layouts, name)) {
      if (letter == 'd' && name == "lse") continue;
      shape.push_back(letter == 'b'   ? x.size.batch
                      : letter == 's' ? x.size.sequence
                      : letter == 'h' ? x.size.heads
                                      : x.size.head_dim);
    }
    std::vector<std::byte> data = *x.bytes;
    data.resize(x.size.count() * bytes_of(x.type));
    f.tensors[name] = {dtype, std::move(shape), std::move(data)};
  };
  add("o", out.o), add("lse", out.lse), add("dq", out.d_q), add("dk", out.d_k), add("dv", out.d_v);
  auto const add_parameter = [&](char const* name, parameter const& x) {
    if (x.gradient)
      f.tensors[name] = safetensors::make<float>({x.size[0], x.size[1], x.size[2], x.size[3]}, *x.gradient);
  };
  add_parameter("dalibi_slopes", p.slope), add_parameter("dbias", p.bias), add_parameter("dsink", p.logit);
  f.metadata = {{"precision", name_of(p.precision)},
                {"forward_kernel", out.forward_kernel},
                {"backward_kernel", out.backward_kernel}};
  return f;
}

lanewise::cpu_isa isa_of(std::string const& name) {
  if (name == "portable") return lanewise::cpu_isa::portable;
  if (name == "avx2") return lanewise::cpu_isa::avx2;
  return name == "avx512" ? lanewise::cpu_isa::avx512 : lanewise::cpu_isa::automatic;
}

int threads_of(request const& r) {
  return r.threads > 0 ? r.threads : std::max(1, int(std::thread::hardware_concurrency()));
}

}  // namespace parity
