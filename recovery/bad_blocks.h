#ifndef HOSTKV_RECOVERY_BAD_BLOCKS_H_
#define HOSTKV_RECOVERY_BAD_BLOCKS_H_

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hostkv/types.h"
#include "recovery/block_marks.h"

namespace hostkv {

// A block that is right up to `usable_tokens` tokens from the start of the request: what it holds behind them was
// computed on blocks that failed.
struct VoidBlock {
  GroupIndex group;
  BlockId block;
  std::int64_t usable_tokens = 0;
};

// Blocks that a request cannot go on from, or not from all of their tokens: failed blocks and void ones.
//
// Thread-safety: one thread. Cost: usable_tokens() O(1) for a good or failed block, O(log void) for a void one.
class BadBlocks {
 public:
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

  explicit BadBlocks(std::uint32_t num_groups) : marks_(num_groups) {}

  void clear();
  // REQUIRES of all calls: group < num_groups.
  void add_failed(GroupIndex group, BlockId block) { marks_.add(group, block); }
  MarkWriter failed_writer() { return MarkWriter(marks_); }
  // What has failed stays failed; of several numbers of tokens the least counts.
  void add_void(std::span<const VoidBlock> blocks);

  // The block may be read by a request that goes on after at most so many tokens: kAll for a good block, 0 for one that
  // failed, and for null.
  [[nodiscard]] std::int64_t usable_tokens(GroupIndex group, BlockId block) const {
    if (block == kNullBlock) {
      return 0;
    }
    return marks_.contains(group, block) ? usable_tokens_of_marked(group, block) : kAll;
  }
  [[nodiscard]] bool has_failed(GroupIndex group, BlockId block) const {
    return marks_.contains(group, block) && find_void(group, block) == nullptr;
  }
  [[nodiscard]] bool has_void() const { return !voids_.empty(); }
  // Failed and void blocks alike.
  [[nodiscard]] const BlockMarks& marks() const { return marks_; }

 private:
  [[nodiscard]] const VoidBlock* find_void(GroupIndex group, BlockId block) const;
  [[nodiscard]] std::int64_t usable_tokens_of_marked(GroupIndex group, BlockId block) const;

  BlockMarks marks_;
  std::vector<VoidBlock> voids_;  // ascending by group and block, each once; none of them failed
};

}  // namespace hostkv

#endif  // HOSTKV_RECOVERY_BAD_BLOCKS_H_
