// Padding: keys at the end of a batch element (or anywhere, by bit) that do not exist.
#pragma once

#include <cstdint>

#include "../status.hpp"
#include "../variant.hpp"

namespace lanewise {

/// Keeps k < lengths[batch] (exclusive). A length of 0 empties every row of its batch element; more than Sk keeps all.
struct key_padding {
  std::int32_t const* lengths = nullptr;  ///< [batch], where the call runs

  LANEWISE_HD constexpr bool operator()(position at) const { return at.k < lengths[at.batch]; }
  LANEWISE_HD constexpr cover cover_of(block b) const {
    std::int32_t const length = lengths[b.batch];
    if (b.k_end <= length) return cover::full;
    return b.k_begin >= length ? cover::empty : cover::partial;
  }
  LANEWISE_HD constexpr block hull_of(block b) const {
    if (lengths[b.batch] < b.k_end) b.k_end = lengths[b.batch];
    return b;
  }
  static constexpr bool sees_one_run = true;
  constexpr status validate(shape s) const {
    if (lengths || s.batch == 0) return {};
    return fail(status_code::null_view, "key_padding: lengths is null, ", s.batch, " batch elements need one each");
  }
};

/// For self-attention over a padded batch. Keeps k < lengths[batch] or q >= lengths[batch]: padding is hidden from real
/// queries but open to padded ones, so that every key has a row that sees it (its gradient is defined, and 0 when the
/// padded rows of d_o are 0). Needs Sq == Sk.
struct self_padding {
  std::int32_t const* lengths = nullptr;  ///< [batch], where the call runs

  LANEWISE_HD constexpr bool operator()(position at) const {
    std::int32_t const length = lengths[at.batch];
    return at.k < length || at.q >= length;
  }
  LANEWISE_HD constexpr cover cover_of(block b) const {
    std::int32_t const length = lengths[b.batch];
    if (b.k_end <= length || b.q_begin >= length) return cover::full;
    return b.k_begin >= length && b.q_end <= length ? cover::empty : cover::partial;
  }
  constexpr status validate(shape s) const {
    if (s.q != s.k)
      return fail(status_code::bad_extent, "self_padding: ", s.q, " queries but ", s.k,
                  " keys; it is for self-attention");
    if (lengths || s.batch == 0) return {};
    return fail(status_code::null_view, "self_padding: lengths is null, ", s.batch, " batch elements need one each");
  }
};

/// Words of 32 bits that hold one bit per key.
LANEWISE_HD constexpr std::int64_t bit_mask_words(std::int64_t keys) { return (keys + 31) / 32; }

/// Sets key k of one batch element's words to kept or hidden.
LANEWISE_HD constexpr void set_key(std::uint32_t* words, std::int64_t k, bool kept) {
  std::uint32_t const bit = std::uint32_t(1) << (k % 32);
  words[k / 32] = kept ? words[k / 32] | bit : words[k / 32] & ~bit;
}

/// Keeps the keys whose bit is 1: key k is bit k % 32 (least significant first) of word k / 32 of its batch element.
struct key_padding_bits {
  std::uint32_t const* words = nullptr;  ///< [batch, words_per_batch], where the call runs
  std::int64_t words_per_batch = 0;      ///< from one batch element to the next; 0: all share the first

  LANEWISE_HD constexpr bool operator()(position at) const {
    return words[at.batch * words_per_batch + (at.k >> 5)] >> (at.k & 31) & 1u;
  }
  /// Reads each word of the block once.
  LANEWISE_HD constexpr cover cover_of(block b) const {
    std::uint32_t const* const own = words + b.batch * words_per_batch;
    bool any = false, all = true;
    for (std::int32_t w = b.k_begin >> 5; w <= (b.k_end - 1) >> 5; ++w) {
      std::uint32_t inside = ~std::uint32_t(0);
      if (w == b.k_begin >> 5) inside &= ~std::uint32_t(0) << (b.k_begin & 31);
      if (w == (b.k_end - 1) >> 5) inside &= ~std::uint32_t(0) >> (31 - ((b.k_end - 1) & 31));
      any |= (own[w] & inside) != 0;
      all &= (own[w] & inside) == inside;
    }
    return all ? cover::full : any ? cover::partial : cover::empty;
  }
  constexpr status validate(shape s) const {
    if (words_per_batch != 0 && words_per_batch < bit_mask_words(s.k))
      return fail(status_code::bad_extent, "key_padding_bits: words_per_batch is ", words_per_batch, ", ", s.k,
                  " keys need ", bit_mask_words(s.k), " (0: one mask for every batch element)");
    if (words || s.batch == 0 || s.k == 0) return {};
    return fail(status_code::null_view, "key_padding_bits: words is null, ", s.k, " keys need ", bit_mask_words(s.k),
                " words");
  }
};

}  // namespace lanewise
