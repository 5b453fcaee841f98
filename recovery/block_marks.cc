#include "recovery/block_marks.h"

#include <algorithm>
#include <bit>

namespace hostkv {
namespace {

constexpr std::size_t kPageWords = 64;
constexpr std::size_t kMaxWords = (std::size_t{1} << 26U) / 64;
// Looked at together before one of them is looked at alone.
constexpr std::size_t kAtOnce = 8;

}  // namespace

void BlockMarks::add_bits(GroupIndex group, std::uint32_t word, std::uint64_t bits) {
  if (word == 0) {
    bits &= ~std::uint64_t{1};  // the null block
  }
  if (bits == 0) {
    return;
  }
  Group& set = groups_[group.value()];
  set.any = true;
  if (word >= kMaxWords) {
    for (; bits != 0; bits &= bits - 1) {
      set.large.insert(word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)));
    }
    return;
  }
  const std::size_t page = word / kPageWords;
  if (page >= set.page_used.size()) {
    const std::size_t pages = std::min(std::max(page + 1, 2 * set.page_used.size()), kMaxWords / kPageWords);
    set.page_used.resize(pages);
    set.words.resize(pages * kPageWords);
  }
  if (set.page_used[page] == 0) {
    set.page_used[page] = 1;
    set.used_pages.push_back(static_cast<std::uint32_t>(page));
  }
  set.words[word] |= bits;
}

void BlockMarks::clear() {
  for (Group& set : groups_) {
    for (const std::uint32_t page : set.used_pages) {
      std::fill_n(set.words.begin() + static_cast<std::ptrdiff_t>(page * kPageWords), kPageWords, 0);
      set.page_used[page] = 0;
    }
    set.used_pages.clear();
    set.large.clear();
    set.any = false;
  }
}

template <bool kNullCounts>
std::size_t BlockMarks::next(const Group& group, std::span<const BlockId> table, std::size_t begin) {
  const std::size_t end = table.size();
  if (!kNullCounts && !group.any) {
    return end;
  }
  const auto hit = [&](BlockId block) { return (kNullCounts && block == kNullBlock) || group.contains(block.value()); };
  std::size_t i = begin;
  if (i < end && hit(table[i])) {
    return i;  // hits that lie side by side
  }
  for (; i + kAtOnce <= end; i += kAtOnce) {
    bool some = false;
    for (std::size_t k = 0; k < kAtOnce; ++k) {
      some |= hit(table[i + k]);
    }
    if (some) {
      break;
    }
  }
  for (; i < end; ++i) {
    if (hit(table[i])) {
      return i;
    }
  }
  return end;
}

std::size_t BlockMarks::next_marked(GroupIndex group, std::span<const BlockId> table, std::size_t begin) const {
  return next<false>(groups_[group.value()], table, begin);
}

std::size_t BlockMarks::next_missing(GroupIndex group, std::span<const BlockId> table, std::size_t begin) const {
  return next<true>(groups_[group.value()], table, begin);
}

}  // namespace hostkv
