// The arena: plan first, bind later. A program of ops is recorded with the bytes of every tensor; the plan runs their
// lifetimes through a best-fit allocator without touching memory and gives each tensor's offset and the exact peak;
// bind puts the plan on a buffer. An estimate is therefore the allocation itself.
//
//   lanewise::arena_builder b;
//   auto x = b.input(bytes, "x"), h = b.tensor(bytes, "h"), y = b.tensor(bytes, "y");
//   b.op({x}, {h}, "gelu").in_place(h, x);
//   b.op({h}, {y}, "scale");
//   b.keep(y);
//   lanewise::arena_plan plan = b.plan();
//   lanewise::arena memory;
//   if (auto s = plan.bind(buffer, buffer_bytes, memory); !s) return s;     // "plan needs 512 bytes, budget 256 ..."
//   float* p = memory.at<float>(y);
//
// Best fit over coalesced free blocks: Knuth, The Art of Computer Programming 1, section 2.5. Where that leaves holes at
// the peak, the largest tensors are placed first, and the better of the two is the plan. Host code; it allocates its own
// tables with std::vector, std::map and std::set and throws nothing of its own.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "../status.hpp"

namespace lanewise {

/// Alignment of a tensor unless the request says otherwise: a cache line pair, and what every workspace needs.
inline constexpr std::size_t arena_alignment = 128;

/// No arena is larger: offsets must fit a pointer difference.
inline constexpr std::size_t arena_limit = std::size_t(std::numeric_limits<std::ptrdiff_t>::max());

constexpr bool is_power_of_two(std::size_t n) { return n != 0 && (n & (n - 1)) == 0; }

/// n rounded up to a multiple of `align` (a power of two); nothing when that passes arena_limit.
constexpr std::optional<std::size_t> round_up(std::size_t n, std::size_t align) {
  if (n > arena_limit || align - 1 > arena_limit - n) return std::nullopt;
  return (n + align - 1) & ~(align - 1);
}

/// Bytes that a tensor occupies: its size in whole multiples of its alignment, of 128 at most. So neighbours of equal
/// alignment leave no slivers between them, and a small tensor on a page boundary does not take the page.
constexpr std::optional<std::size_t> room_of(std::size_t bytes, std::size_t align) {
  return round_up(bytes, align < arena_alignment ? align : arena_alignment);
}

struct arena_statistics {
  std::size_t peak = 0;              ///< end of the highest block ever taken: the bytes a buffer needs
  std::size_t live = 0;              ///< bytes in use now, each block with its rounding
  std::size_t live_at_peak = 0;      ///< bytes in use when `peak` was reached
  std::size_t most_live = 0;         ///< most bytes ever in use at once: no placement can need less
  std::size_t free_blocks = 0;       ///< holes now; the open space above the highest block does not count
  std::size_t most_free_blocks = 0;  ///< most holes ever held at once

  /// Share of the peak that was never in use at once: 0 is a perfect packing.
  constexpr double fragmentation() const { return peak == 0 ? 0.0 : double(peak - most_live) / double(peak); }
  constexpr bool operator==(arena_statistics const&) const = default;
};

/// A range of the arena.
struct arena_block {
  std::size_t offset = 0, bytes = 0;
  constexpr std::size_t end() const { return offset + bytes; }
  constexpr bool operator==(arena_block const&) const = default;
};

/// Best-fit allocator over an address range that starts empty and grows at its end. Of the holes that hold a request
/// the smallest is taken, of equal ones the lowest; only when none does, the range grows. Offsets depend on the
/// sequence of calls alone. Every call is logarithmic in the number of holes, whose table has no fixed size; a request
/// aligned more strictly than its neighbours may walk over holes that are large enough but badly placed.
class free_blocks {
 public:
  /// limit: the range may not grow beyond so many bytes.
  explicit free_blocks(std::size_t limit = arena_limit) : limit_(std::min(limit, arena_limit)) {}

  /// Takes room_of(bytes, align) bytes at a multiple of `align`, a power of two. Zero bytes take nothing, at offset 0.
  /// Nothing when the limit, or what a pointer can address, would be passed.
  std::optional<arena_block> allocate(std::size_t bytes, std::size_t align = arena_alignment) {
    if (!is_power_of_two(align)) return std::nullopt;
    std::optional<std::size_t> const room = room_of(bytes, align);
    if (!room) return std::nullopt;
    if (*room == 0) return arena_block{};
    for (auto it = by_size_.lower_bound({*room, 0}); it != by_size_.end(); ++it) {
      arena_block const hole{it->second, it->first};
      std::size_t const at = (hole.offset + align - 1) & ~(align - 1);
      if (at - hole.offset > hole.bytes - *room) continue;
      erase(hole);
      insert({hole.offset, at - hole.offset});
      insert({at + *room, hole.end() - at - *room});
      return taken({at, *room});
    }
    std::optional<std::size_t> const at = round_up(end_, align);
    if (!at || *at > limit_ || *room > limit_ - *at) return std::nullopt;
    return taken(grow({*at, *room}));
  }

  /// Takes this very range. False, and no change, when some of it is in use or passes the limit.
  bool take(arena_block block) {
    if (block.bytes == 0) return true;
    if (block.offset > limit_ || block.bytes > limit_ - block.offset) return false;
    auto const next = by_offset_.upper_bound(block.offset);
    if (next != by_offset_.begin() && std::prev(next)->first + std::prev(next)->second >= block.end()) {
      arena_block const hole{std::prev(next)->first, std::prev(next)->second};
      erase(hole);
      insert({hole.offset, block.offset - hole.offset});
      insert({block.end(), hole.end() - block.end()});
    } else if (block.offset >= end_) {
      grow(block);
    } else {
      return false;
    }
    taken(block);
    return true;
  }

  /// Gives a block, or a part of one, back and joins it with the holes beside it. False, and no change, when some of
  /// it is not in use.
  bool release(arena_block block) {
    if (block.bytes == 0) return true;
    if (block.offset > end_ || block.bytes > end_ - block.offset) return false;
    auto const next = by_offset_.lower_bound(block.offset);
    if (next != by_offset_.end() && next->first < block.end()) return false;
    arena_block joined = block;
    std::optional<arena_block> before, after;
    if (next != by_offset_.begin()) {
      arena_block const left{std::prev(next)->first, std::prev(next)->second};
      if (left.end() > block.offset) return false;
      if (left.end() == block.offset) before = left;
    }
    if (next != by_offset_.end() && next->first == block.end()) after = arena_block{next->first, next->second};
    if (before) {
      erase(*before);
      joined = {before->offset, before->bytes + joined.bytes};
    }
    if (after) {
      erase(*after);
      joined.bytes += after->bytes;
    }
    if (joined.end() == end_) end_ = joined.offset;
    else insert(joined);
    statistics_.live -= block.bytes;
    count();
    return true;
  }

  arena_statistics const& statistics() const { return statistics_; }

  /// Calls f(arena_block) for every hole, lowest first.
  template <class F>
  void each_hole(F&& f) const {
    for (auto const& [offset, bytes] : by_offset_) f(arena_block{offset, bytes});
  }

 private:
  void insert(arena_block hole) {
    if (hole.bytes == 0) return;
    by_offset_.emplace(hole.offset, hole.bytes);
    by_size_.emplace(hole.bytes, hole.offset);
  }
  void erase(arena_block hole) {
    by_offset_.erase(hole.offset);
    by_size_.erase({hole.bytes, hole.offset});
  }
  /// Ends the range with `block`, which begins at its end or beyond.
  arena_block grow(arena_block block) {
    insert({end_, block.offset - end_});
    end_ = block.end();
    return block;
  }
  void count() {
    statistics_.free_blocks = by_offset_.size();
    statistics_.most_free_blocks = std::max(statistics_.most_free_blocks, statistics_.free_blocks);
  }
  arena_block taken(arena_block block) {
    statistics_.live += block.bytes;
    statistics_.most_live = std::max(statistics_.most_live, statistics_.live);
    if (end_ > statistics_.peak) {
      statistics_.peak = end_;
      statistics_.live_at_peak = statistics_.live;
    }
    count();
    return block;
  }

  std::map<std::size_t, std::size_t> by_offset_;           ///< offset -> bytes, for the neighbours
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  ///< (bytes, offset), for the best fit
  std::size_t end_ = 0;                                    ///< end of the highest block in use
  std::size_t limit_;
  arena_statistics statistics_{};
};

/// A tensor of a builder and of its plan.
struct tensor_id {
  static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t index = none;
  constexpr explicit operator bool() const { return index != none; }
  constexpr bool operator==(tensor_id const&) const = default;
};

/// A name for reports, with an optional number: "ffn_up" or {"ffn_up", layer}. The text must outlive the plan.
struct arena_label {
  char const* text = "";
  std::int64_t number = -1;
  constexpr arena_label() = default;
  constexpr arena_label(char const* text, std::int64_t number = -1) : text(text), number(number) {}
};

/// Where a tensor lies and when. Times are op numbers in program order.
struct placement {
  arena_label name{};
  std::size_t bytes = 0;  ///< as asked for
  std::size_t align = arena_alignment;
  std::size_t offset = 0;            ///< from the start of the buffer
  std::int64_t first = 0, last = 0;  ///< first and last op that needs the contents, its views' uses included
  tensor_id parent{};                ///< of a view: the tensor whose storage it shares
  std::size_t parent_offset = 0;     ///< of a view: bytes from the start of that storage
  tensor_id in_place_of{};           ///< the input whose bytes it took over
  bool input = false, kept = false;
};

inline sentence& operator<<(sentence& s, arena_label name) {
  s << "'" << name.text;
  if (name.number >= 0) s << "[" << name.number << "]";
  return s << "'";
}

/// ok when every tensor lies aligned below the peak, every view inside its parent, and no two tensors that are needed
/// at the same time share a byte, except the pairs declared in place, of which the input is needed by no later op.
/// Otherwise bad_argument with the first tensor that breaks this. Knows nothing of how they were placed; O(n log n).
inline status verify_placements(std::span<placement const> tensors, std::size_t peak);

class arena_plan;

/// A plan on a buffer: pointers. It owns nothing; copy it freely.
class arena {
 public:
  /// Address of a tensor. Zero-byte tensors have the address of the buffer.
  template <class T = std::byte>
  T* at(tensor_id id) const {
    return reinterpret_cast<T*>(base_ + tensors_[id.index].offset);
  }
  /// The same with its length, in whole elements.
  template <class T>
  std::span<T> span(tensor_id id) const {
    return {at<T>(id), tensors_[id.index].bytes / sizeof(T)};
  }

 private:
  friend class arena_plan;
  std::byte* base_ = nullptr;
  placement const* tensors_ = nullptr;
};

/// Offsets of every tensor of a program, made by arena_builder::plan. A plan of a faulty program holds no offsets:
/// `if (!plan)` look at plan.result().
class arena_plan {
 public:
  explicit operator bool() const { return bool(result_); }
  status const& result() const { return result_; }

  /// Bytes that a buffer needs; 0 when there is no plan.
  std::size_t peak() const { return statistics_.peak; }
  /// Alignment that the buffer's address needs: the strictest tensor's.
  std::size_t alignment() const { return alignment_; }
  arena_statistics const& statistics() const { return statistics_; }

  placement const& operator[](tensor_id id) const { return tensors_[id.index]; }
  std::span<placement const> tensors() const { return tensors_; }
  std::int64_t ops() const { return ops_; }
  /// The op at which the peak was reached; -1 when the inputs alone reach it.
  std::int64_t peak_op() const { return peak_op_; }

  /// ok exactly when peak() <= budget; otherwise out_of_memory with both numbers, the op and its largest live tensor.
  status fits(std::size_t budget) const {
    if (!result_ || peak() <= budget) return result_;
    sentence s(status_code::out_of_memory);
    s << "plan needs " << peak() << " bytes, budget " << budget << ": " << peak() - budget << " short";
    if (peak_op_ >= 0) s << " at op " << peak_op_ << " " << peak_op_name_;
    if (tensor_id const most = largest_at(peak_op_))
      s << "; the largest tensor there is " << (*this)[most].name << " of " << (*this)[most].bytes << " bytes";
    return s;
  }

  /// Puts the plan on `bytes` bytes at `base`. Errors: out_of_memory (too small), bad_workspace (null or misaligned).
  /// `into` refers to this plan, which must outlive it.
  status bind(void* base, std::size_t bytes, arena& into) const& {
    if (status s = fits(bytes); !s) return s;
    if (peak() > 0 && base == nullptr)
      return fail(status_code::bad_workspace, "the buffer is null and the plan needs ", peak(), " bytes");
    if (std::size_t const off = reinterpret_cast<std::uintptr_t>(base) % alignment_; peak() > 0 && off != 0)
      return fail(status_code::bad_workspace, "the buffer lies ", off, " bytes beyond a multiple of ", alignment_,
                  ", which its strictest tensor needs");
    into.base_ = static_cast<std::byte*>(base);
    into.tensors_ = tensors_.data();
    return {};
  }
  status bind(void* base, std::size_t bytes, arena& into) const&& = delete;  // the plan would be gone

  /// Proves the plan anew: verify_placements of its tensors.
  status verify() const { return result_ ? verify_placements(tensors_, peak()) : result_; }

  /// The largest tensor that is live at op `t`.
  tensor_id largest_at(std::int64_t t) const {
    tensor_id best{};
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      placement const& p = tensors_[i];
      if (p.parent || p.bytes == 0 || p.first > t || p.last < t) continue;
      if (!best || p.bytes > tensors_[best.index].bytes) best = {i};
    }
    return best;
  }

 private:
  friend class arena_builder;
  status result_{};
  std::vector<placement> tensors_;
  arena_statistics statistics_{};
  std::size_t alignment_ = arena_alignment;
  std::int64_t ops_ = 0, peak_op_ = -1;
  arena_label peak_op_name_{};
};

/// Records a program: tensors with their bytes, and ops in the order in which they will run. Lifetimes follow from the
/// ops: a tensor is live from the op that first writes it to the last op that names it or a view of it. The first
/// mistake is remembered and is the result of plan().
class arena_builder {
 public:
  /// A tensor that ops write and read. Scratch of one op is a tensor that only this op names, among what it writes.
  tensor_id tensor(std::size_t bytes, arena_label name, std::size_t align = arena_alignment) {
    return add({.name = name, .bytes = bytes, .align = align});
  }

  /// A tensor that the caller fills before the first op: live from the start to its last use.
  tensor_id input(std::size_t bytes, arena_label name, std::size_t align = arena_alignment) {
    return add({.name = name, .bytes = bytes, .align = align, .input = true});
  }

  /// A tensor with a place of its own from start to end: weights, gradients, optimiser state.
  tensor_id persistent(std::size_t bytes, arena_label name, std::size_t align = arena_alignment) {
    return add({.name = name, .bytes = bytes, .align = align, .input = true, .kept = true});
  }

  /// `bytes` bytes of `parent` from `offset` on, under a name of their own. Every use of a view keeps the parent's
  /// whole storage alive; writing a view writes the parent. Views of views are legal.
  tensor_id view_of(tensor_id parent, std::size_t offset, std::size_t bytes, arena_label name) {
    if (!known(parent)) return unknown("view_of", name);
    placement const& p = tensors_[parent.index];
    if (offset > p.bytes || bytes > p.bytes - offset) {
      refuse(sentence(status_code::bad_extent) << "view " << name << " of " << bytes << " bytes at " << offset
                                               << " passes the end of " << p.name << ", " << p.bytes << " bytes");
      return {};
    }
    tensor_id const storage = p.parent ? p.parent : parent;
    return add(
        {.name = name, .bytes = bytes, .align = 1, .parent = storage, .parent_offset = p.parent_offset + offset});
  }

  /// The caller reads this tensor after the last op: its storage is given to no one.
  void keep(tensor_id id) {
    if (!known(id)) return void(unknown("keep", {}));
    tensors_[storage_of(id).index].kept = true;
  }

  /// What op() returns, to grant permissions.
  class op_ref {
   public:
    /// `output` may take over the bytes of `input`. It does when it is as large, when the op names no other part of
    /// that storage, and when no later op reads it, nor the caller (keep). Otherwise it gets a place of its own.
    op_ref& in_place(tensor_id output, tensor_id input) {
      builder_->permit(op_, output, input);
      return *this;
    }

   private:
    friend class arena_builder;
    op_ref(arena_builder& builder, std::size_t op) : builder_(&builder), op_(op) {}
    arena_builder* builder_;
    std::size_t op_;
  };

  /// The next op of the program. What it reads and writes is live together: an output never lies on an input, save by
  /// in_place. Writing a tensor that was written before is legal (accumulation).
  op_ref op(std::span<tensor_id const> reads, std::span<tensor_id const> writes, arena_label name = {}) {
    ops_.push_back({name, uses_.size(), uses_.size() + reads.size()});
    for (tensor_id id : reads) use(id, false);
    for (tensor_id id : writes) use(id, true);
    return {*this, ops_.size() - 1};
  }
  op_ref op(std::initializer_list<tensor_id> reads, std::initializer_list<tensor_id> writes, arena_label name = {}) {
    return op(std::span(reads.begin(), reads.size()), std::span(writes.begin(), writes.size()), name);
  }

  /// Number of ops recorded so far.
  std::int64_t ops() const { return std::int64_t(ops_.size()); }

  /// Gives every lifetime its place. The builder is unchanged; record on and plan again if you like.
  arena_plan plan() const {
    arena_plan plan;
    plan.result_ = result_;
    plan.ops_ = ops();
    if (result_) plan.result_ = place(plan);
    if (!plan) {
      plan.tensors_.clear();
      plan.statistics_ = {};
    }
    return plan;
  }

 private:
  struct op_record {
    arena_label name;
    std::size_t reads, writes;  ///< where in uses_ its reads and its writes begin
  };
  struct permission {
    std::size_t op;
    tensor_id output, input;
  };

  static constexpr std::int64_t never = -2;  ///< first and last of a tensor that no op has named

  bool known(tensor_id id) const { return id.index < tensors_.size(); }
  tensor_id storage_of(tensor_id id) const { return tensors_[id.index].parent ? tensors_[id.index].parent : id; }
  std::span<tensor_id const> reads_of(std::size_t op) const {
    return {uses_.data() + ops_[op].reads, ops_[op].writes - ops_[op].reads};
  }
  std::span<tensor_id const> writes_of(std::size_t op) const {
    std::size_t const end = op + 1 < ops_.size() ? ops_[op + 1].reads : uses_.size();
    return {uses_.data() + ops_[op].writes, end - ops_[op].writes};
  }
  static bool contains(std::span<tensor_id const> ids, tensor_id id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  }

  void refuse(status const& s) {
    if (result_) result_ = s;
  }
  tensor_id unknown(char const* where, arena_label name) {
    refuse(sentence(status_code::bad_argument)
           << where << " " << name << " names a tensor that this builder did not make");
    return {};
  }

  tensor_id add(placement p) {
    if (!is_power_of_two(p.align))
      refuse(sentence(status_code::bad_argument)
             << "tensor " << p.name << ": alignment " << p.align << " is not a power of two");
    else if (!room_of(p.bytes, p.align))
      refuse(sentence(status_code::bad_extent)
             << "tensor " << p.name << " of " << p.bytes << " bytes is larger than any arena");
    p.first = p.input ? -1 : never;
    p.last = never;
    tensors_.push_back(p);
    return {std::uint32_t(tensors_.size() - 1)};
  }

  void use(tensor_id id, bool write) {
    uses_.push_back(id);
    if (!known(id)) return void(unknown("op", ops_.back().name));
    std::int64_t const now = ops() - 1;
    placement& storage = tensors_[storage_of(id).index];
    if (storage.first == never && !write)
      refuse(sentence(status_code::bad_argument)
             << "op " << now << " " << ops_.back().name << " reads " << tensors_[id.index].name
             << ", which nothing has written; is it an input?");
    for (placement* p : {&storage, &tensors_[id.index]}) {
      if (p->first == never) p->first = now;
      p->last = now;
    }
  }

  void permit(std::size_t op, tensor_id output, tensor_id input) {
    if (!contains(reads_of(op), input) || !contains(writes_of(op), output))
      return refuse(sentence(status_code::bad_argument)
                    << "op " << op << " " << ops_[op].name << ": in_place needs an output and an input of this op");
    auto const after = [](std::size_t op, permission const& p) { return op < p.op; };
    permits_.insert(std::upper_bound(permits_.begin(), permits_.end(), op, after), {op, output, input});
  }

  /// Checks that every tensor is used, and fills in lifetimes and alignment.
  status begin(arena_plan& plan) const;
  /// Walks the program: allocate(placement, blocks) places each tensor as it begins, blocks has it until it ends.
  template <class Allocate>
  status walk(arena_plan& plan, Allocate const& allocate) const;
  /// Fills in every placement, or finds that they pass any address.
  status place(arena_plan& plan) const;
  /// The tensor whose bytes `output`, first written by `op`, takes over, if any. spent: released or taken over.
  tensor_id take_over(arena_plan const& plan, std::size_t op, tensor_id output, std::vector<char> const& spent) const;

  std::vector<placement> tensors_;
  std::vector<op_record> ops_;
  std::vector<tensor_id> uses_;      ///< every op's reads, then its writes
  std::vector<permission> permits_;  ///< in the order of ops
  status result_{};
};

inline tensor_id arena_builder::take_over(arena_plan const& plan, std::size_t op, tensor_id output,
                                          std::vector<char> const& spent) const {
  placement const& out = plan.tensors_[output.index];
  auto const before = [](permission const& p, std::size_t op) { return p.op < op; };
  auto permit = std::lower_bound(permits_.begin(), permits_.end(), op, before);
  for (; permit != permits_.end() && permit->op == op; ++permit) {
    if (permit->output != output) continue;
    tensor_id const storage = storage_of(permit->input);
    placement const& in = plan.tensors_[storage.index];
    auto const other_part = [&](tensor_id id) { return id != permit->input && storage_of(id) == storage; };
    // The last op of what the caller keeps is past every op.
    bool const last_reader = in.last == std::int64_t(op) && !spent[storage.index];
    bool const same_bytes = plan.tensors_[permit->input.index].bytes == in.bytes && in.bytes == out.bytes &&
                            room_of(in.bytes, in.align) == room_of(out.bytes, out.align) && in.offset % out.align == 0;
    bool const sole_part = !contains(writes_of(op), permit->input) && std::ranges::none_of(reads_of(op), other_part) &&
                           std::ranges::none_of(writes_of(op), other_part);
    if (last_reader && same_bytes && sole_part) return storage;
  }
  return {};
}

/// More tensors than this are not placed by size, which would take a second and grow with their square.
inline constexpr std::size_t most_placed_by_size = std::size_t(1) << 15;

/// The lowest offsets at which nothing that lives at the same time overlaps, the largest tensors first: Pisarchyk and Lee,
/// Efficient Memory Management for Deep Neural Net Inference, 2020, section 4.3. A tensor that took over another's bytes
/// stays with it. Every pair of tensors may be looked at: 50 ms for 10,000 of them.
inline std::vector<std::size_t> offsets_by_size(std::span<placement const> tensors) {
  struct block {
    std::size_t bytes, align, offset;
    std::int64_t first, last;
  };
  std::vector<block> blocks(tensors.size());
  std::vector<std::uint32_t> owner(tensors.size());
  auto const hands_on = [&](std::uint32_t i) { return bool(tensors[i].in_place_of); };
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    placement const& p = tensors[i];
    std::uint32_t head = i;
    while (hands_on(head)) head = tensors[head].in_place_of.index;
    owner[i] = head;
    block& b = blocks[head];
    b.align = std::max(b.align, p.align);
    b.last = std::max(b.last, p.last);
    if (head == i) b.bytes = p.parent ? 0 : *room_of(p.bytes, p.align), b.first = p.first;
  }
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < tensors.size(); ++i)
    if (blocks[i].bytes > 0) order.push_back(i);
  std::ranges::stable_sort(order, std::greater{}, [&](std::uint32_t i) { return blocks[i].bytes; });
  std::vector<block> placed;  // lowest offset first
  for (std::uint32_t const i : order) {
    block& b = blocks[i];
    for (block const& other : placed) {
      if (other.last < b.first || b.last < other.first) continue;
      if (other.offset >= b.offset && other.offset - b.offset >= b.bytes) break;
      b.offset = std::max(b.offset, round_up(other.offset + other.bytes, b.align).value_or(arena_limit));
    }
    placed.insert(std::ranges::upper_bound(placed, b.offset, {}, &block::offset), b);
  }
  std::vector<std::size_t> offsets(tensors.size());
  for (std::uint32_t i = 0; i < tensors.size(); ++i) offsets[i] = blocks[owner[i]].offset;
  return offsets;
}
inline status arena_builder::begin(arena_plan& plan) const {
  plan.tensors_ = tensors_;
  for (placement& p : plan.tensors_) {
    if (p.parent) continue;
    if (p.last == never && !(p.input && p.kept))
      return sentence(status_code::bad_argument)
             << "tensor " << p.name << " of " << p.bytes << " bytes is named by no op";
    plan.alignment_ = std::max(plan.alignment_, p.align);
    if (p.kept) p.last = ops();
  }
  return {};
}

template <class Allocate>
status arena_builder::walk(arena_plan& plan, Allocate const& allocate) const {
  std::vector<placement>& tensors = plan.tensors_;
  std::vector<char> placed(tensors.size()), spent(tensors.size());
  free_blocks blocks;
  plan.statistics_ = {};
  auto const put = [&](std::uint32_t i, std::int64_t t) -> status {
    placement& p = tensors[i];
    std::optional<arena_block> const block = allocate(blocks, i);
    if (!block)
      return sentence(status_code::bad_extent) << "tensor " << p.name << " of " << p.bytes << " bytes beside "
                                               << blocks.statistics().live << " live ones is larger than any arena";
    p.offset = block->offset;
    if (blocks.statistics().peak > plan.statistics_.peak) {
      plan.peak_op_ = t;
      plan.peak_op_name_ = t < 0 ? arena_label{} : ops_[std::size_t(t)].name;
    }
    plan.statistics_ = blocks.statistics();
    return {};
  };

  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].parent || tensors[i].first != -1) continue;
    placed[i] = true;
    if (status s = put(i, -1); !s) return s;
  }
  for (std::size_t op = 0; op < ops_.size(); ++op) {
    std::int64_t const t = std::int64_t(op);
    for (tensor_id const written : writes_of(op)) {
      tensor_id const id = storage_of(written);
      placement& p = tensors[id.index];
      if (placed[id.index]) continue;
      placed[id.index] = true;
      p.in_place_of = take_over(plan, op, id, spent);
      if (p.in_place_of) {
        p.offset = tensors[p.in_place_of.index].offset;
        spent[p.in_place_of.index] = true;
      } else if (status s = put(id.index, t); !s) {
        return s;
      }
    }
    for (std::span<tensor_id const> const named : {reads_of(op), writes_of(op)})
      for (tensor_id const used : named) {
        tensor_id const id = storage_of(used);
        placement const& p = tensors[id.index];
        if (p.last != t || spent[id.index]) continue;
        spent[id.index] = true;
        blocks.release({p.offset, *room_of(p.bytes, p.align)});
      }
  }
  plan.statistics_ = blocks.statistics();
  return {};
}

inline status arena_builder::place(arena_plan& plan) const {
  if (status s = begin(plan); !s) return s;
  arena_plan by_size = plan;
  status s = walk(plan, [&](free_blocks& blocks, std::uint32_t i) {
    return blocks.allocate(plan.tensors_[i].bytes, plan.tensors_[i].align);
  });
  if (!s) return s;
  if (plan.peak() > plan.statistics_.most_live && tensors_.size() <= most_placed_by_size) {
    std::vector<std::size_t> const offsets = offsets_by_size(plan.tensors_);
    s = walk(by_size, [&](free_blocks& blocks, std::uint32_t i) -> std::optional<arena_block> {
      arena_block const block{offsets[i], *room_of(tensors_[i].bytes, tensors_[i].align)};
      return blocks.take(block) ? std::optional(block) : std::nullopt;
    });
    if (s && by_size.peak() < plan.peak()) plan = std::move(by_size);
  }
  for (placement& p : plan.tensors_) {
    if (!p.parent) continue;
    placement const& storage = plan.tensors_[p.parent.index];
    p.offset = storage.offset + p.parent_offset;
    p.kept = storage.kept;
    p.input = storage.input;
  }
  return {};
}

inline status verify_placements(std::span<placement const> tensors, std::size_t peak) {
  auto const wrong = [](placement const& p, char const* what, std::size_t number) -> status {
    return sentence(status_code::bad_argument)
           << "plan: tensor " << p.name << " of " << p.bytes << " bytes at " << p.offset << what << number;
  };
  struct event {
    std::int64_t time;
    int order;  // within one op: inputs hand over (0), outputs begin (1), what is no longer needed ends (2)
    std::uint32_t tensor;
    auto operator<=>(event const&) const = default;
  };
  std::vector<event> events;
  std::vector<char> handed_over(tensors.size());
  for (placement const& p : tensors) {
    if (!p.in_place_of) continue;
    placement const& in = tensors[p.in_place_of.index];
    if (in.last != p.first || in.kept || in.bytes != p.bytes || handed_over[p.in_place_of.index])
      return wrong(p, " takes over a tensor that is needed until op ", std::size_t(in.last));
    handed_over[p.in_place_of.index] = true;
  }
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    placement const& p = tensors[i];
    if (p.offset > peak || p.bytes > peak - p.offset) return wrong(p, " passes the peak ", peak);
    if (p.offset % p.align != 0) return wrong(p, " is not aligned to ", p.align);
    if (p.parent) {
      placement const& storage = tensors[p.parent.index];
      if (p.offset < storage.offset || p.offset + p.bytes > storage.offset + storage.bytes)
        return wrong(p, " leaves its parent at ", storage.offset);
    } else if (p.bytes > 0) {
      events.push_back({p.first, 1, i});
      events.push_back({p.last, handed_over[i] ? 0 : 2, i});
    }
  }
  std::sort(events.begin(), events.end());
  std::map<std::size_t, std::uint32_t> live;  // offset -> tensor
  for (event const& e : events) {
    placement const& p = tensors[e.tensor];
    if (e.order != 1) {
      live.erase(p.offset);
      continue;
    }
    auto const next = live.lower_bound(p.offset);
    if (next != live.end() && next->first < p.offset + p.bytes)
      return wrong(p, " overlaps a live tensor at ", next->first);
    if (next != live.begin()) {
      placement const& left = tensors[std::prev(next)->second];
      if (left.offset + left.bytes > p.offset) return wrong(p, " overlaps a live tensor at ", left.offset);
    }
    live.emplace(p.offset, e.tensor);
  }
  return {};
}

/// What fit() found.
struct arena_fit {
  status result{};        ///< ok exactly when plan.peak() <= budget
  std::int64_t size = 0;  ///< the size found; the smallest one tried when nothing fits
  arena_plan plan;        ///< its plan: bind this very one
  int plans = 0;          ///< how many were made
};

/// The largest size in [low, high] whose plan fits `budget` bytes, by bisection over build(size) -> arena_plan. The
/// result fits whatever build does; where the peak does not grow with size throughout, a larger one may fit as well.
/// Errors: out_of_memory with the numbers of `low` when not even that fits; build's own error when its plan is faulty.
template <class Build>
arena_fit fit(std::int64_t low, std::int64_t high, std::size_t budget, Build&& build) {
  arena_fit best;
  best.size = low;
  if (low > high) {
    best.result = fail(status_code::bad_argument, "fit: no sizes in [", low, ", ", high, "]");
    return best;
  }
  best.plan = build(low);
  best.plans = 1;
  best.result = best.plan.fits(budget);
  if (!best.result) return best;
  for (std::int64_t tried = high; best.size < high;) {
    arena_plan plan = build(tried);
    ++best.plans;
    if (!plan) {
      best.result = plan.result();
      best.size = tried;
      best.plan = std::move(plan);
      return best;
    }
    if (plan.peak() <= budget) {
      best.size = tried;
      best.plan = std::move(plan);
    } else {
      high = tried - 1;
    }
    tried = best.size + (high - best.size + 1) / 2;
  }
  return best;
}

}  // namespace lanewise
