#ifndef HOSTKV_RECOVERY_BLOCK_MARKS_H_
#define HOSTKV_RECOVERY_BLOCK_MARKS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "hostkv/types.h"

namespace hostkv {

// A set of blocks. A block is (group, number): every group has numbers of its own (R12). Never holds the null block.
//
// One bit a number up to 2^26, a hash set above: a wild number costs no gigantic bitmap. Thread-safety: one thread.
// Cost: add and contains O(1); clear() O(pages of 4096 numbers that were used); memory is kept.
class BlockMarks {
 public:
  explicit BlockMarks(std::uint32_t num_groups) : groups_(num_groups) {}

  // REQUIRES of every call: group < num_groups.
  void add(GroupIndex group, BlockId block) { add_bits(group, block.value() / 64, bit_of(block)); }
  void clear();

  [[nodiscard]] bool contains(GroupIndex group, BlockId block) const {
    return groups_[group.value()].contains(block.value());
  }
  [[nodiscard]] bool any(GroupIndex group) const { return groups_[group.value()].any; }

  // The first index from `begin` on whose block is in the set; table.size() where there is none.
  [[nodiscard]] std::size_t next_marked(GroupIndex group, std::span<const BlockId> table, std::size_t begin) const;
  // The same, but the null block counts too: what cannot be read.
  [[nodiscard]] std::size_t next_missing(GroupIndex group, std::span<const BlockId> table, std::size_t begin) const;

 private:
  friend class MarkWriter;

  static std::uint64_t bit_of(BlockId block) { return std::uint64_t{1} << (block.value() % 64); }
  // Numbers 64 * word + i for each bit i.
  void add_bits(GroupIndex group, std::uint32_t word, std::uint64_t bits);

  struct Group {
    std::vector<std::uint64_t> words;     // whole pages
    std::vector<std::uint8_t> page_used;  // [pages]
    std::vector<std::uint32_t> used_pages;
    std::unordered_set<std::uint32_t> large;  // numbers from 2^26 on
    bool any = false;

    [[nodiscard]] bool contains(std::uint32_t number) const {
      const std::size_t word = number / 64;
      if (word < words.size()) [[likely]] {
        return ((words[word] >> (number % 64)) & 1U) != 0;
      }
      return !large.empty() && large.contains(number);
    }
  };
  template <bool kNullCounts>
  static std::size_t next(const Group& group, std::span<const BlockId> table, std::size_t begin);

  std::vector<Group> groups_;
};

// Adds many blocks: those of one word of 64 numbers are gathered before they are written, so that a list in the order
// of a table does not wait for each write. What was added is in the set after flush().
class MarkWriter {
 public:
  explicit MarkWriter(BlockMarks& marks) : marks_(&marks) {}

  void add(GroupIndex group, BlockId block) {
    const std::uint32_t word = block.value() / 64;
    if (group != group_ || word != word_) {
      flush();
      group_ = group;
      word_ = word;
    }
    bits_ |= BlockMarks::bit_of(block);
  }
  void flush() {
    if (bits_ != 0) {
      marks_->add_bits(group_, word_, bits_);
      bits_ = 0;
    }
  }

 private:
  BlockMarks* marks_;
  GroupIndex group_{};
  std::uint32_t word_ = 0;
  std::uint64_t bits_ = 0;
};

}  // namespace hostkv

#endif  // HOSTKV_RECOVERY_BLOCK_MARKS_H_
