#ifndef HOSTKV_RECOVERY_BOUNDARY_WALK_H_
#define HOSTKV_RECOVERY_BOUNDARY_WALK_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "hostkv/geometry.h"
#include "hostkv/recovery.h"
#include "recovery/bad_blocks.h"

namespace hostkv {

// Where the state after exactly `tokens` tokens is: the column at which an engine keeps it by position, where it holds
// that state, else the first column that does. The choice hangs on the table alone, not on what failed, so that all
// ranks make the same one.
std::optional<std::size_t> find_state(const HeldBlocks& held, std::int64_t span_tokens, std::int64_t tokens);

// A group that reads a range of blocks which moves with the boundary: windows and chunks. Walks from the top down.
class RangeWalk {
 public:
  RangeWalk(const Geometry& geometry, GroupIndex group, const HeldBlocks& held, const BadBlocks& bad);

  // The largest multiple of the alignment, at most `boundary`, at which the blocks of this group can be read.
  // REQUIRES: a multiple of the alignment, not above that of the call before.
  std::int64_t largest(std::int64_t boundary);

 private:
  // The last block of the range that cannot be read from at the boundary, -1: none.
  std::int64_t last_bad(const BlockIndexRange& needed, std::int64_t boundary);
  // No boundary between the one at which `block` was needed and this one can be read.
  [[nodiscard]] std::int64_t below(std::int64_t block) const;
  [[nodiscard]] std::int64_t usable_tokens(std::int64_t block) const {
    return block < std::ssize(held_->table) ? bad_->usable_tokens(group_, held_->table[static_cast<std::size_t>(block)])
                                            : 0;
  }

  const Geometry* geometry_;
  const HeldBlocks* held_;
  const BadBlocks* bad_;
  GroupIndex group_;
  std::int64_t span_tokens_;
  // Blocks from here on to the end of what was needed last can be read: they are not looked at twice.
  std::int64_t sound_from_ = std::numeric_limits<std::int64_t>::max();
};

// A recurrent group: boundaries at which a whole state is held. Walks from the top down.
class StateWalk {
 public:
  // `order`: memory for the states' order where the table is not in the order of tokens.
  StateWalk(const Geometry& geometry, GroupIndex group, const HeldBlocks& held, const BadBlocks& bad,
            std::vector<std::uint32_t>& order);

  // As RangeWalk::largest.
  std::int64_t largest(std::int64_t boundary);

 private:
  [[nodiscard]] bool is_ascending() const;
  void sort_states(std::int64_t span_tokens);

  const HeldBlocks* held_;
  const BadBlocks* bad_;
  GroupIndex group_;
  std::int64_t alignment_tokens_;
  std::vector<std::uint32_t>* order_;  // columns by ascending tokens; unused where the table has that order itself
  bool is_ordered_;
  std::size_t left_;  // states that were not passed yet, from the lowest on
};

// The safe boundaries of one request from the top down, jumping over what a bad block or a missing state rules out.
//
// Thread-safety: one thread. Ownership: keeps its memory between requests; views are read until the next start().
// Cost: start() looks at the blocks of full attention up to the first that is bad, and once at recurrent tables; all
// calls of next() together look at each other block about once.
class BoundaryWalk {
 public:
  explicit BoundaryWalk(const Geometry& geometry) : geometry_(&geometry) {}

  // REQUIRES: a checked request (check_request). Geometry, request and bad blocks stay as they are until the last
  // next().
  void start(const HeldRequest& request, const BadBlocks& bad);
  // The largest safe boundary that is not above `limit_tokens`. REQUIRES: not above the limit of the call before.
  std::int64_t next(std::int64_t limit_tokens);
  // The largest one of the request.
  std::int64_t top() { return next(std::numeric_limits<std::int64_t>::max()); }

 private:
  [[nodiscard]] std::int64_t aligned(std::int64_t tokens) const {
    return tokens - tokens % geometry_->hit_alignment_tokens();
  }
  void limit_by_attention(GroupIndex group, const HeldBlocks& held, const BadBlocks& bad);

  const Geometry* geometry_;
  std::int64_t top_tokens_ = 0;
  std::vector<RangeWalk> ranges_;
  std::vector<StateWalk> states_;
  std::vector<std::vector<std::uint32_t>> orders_;  // [num_groups]
};

}  // namespace hostkv

#endif  // HOSTKV_RECOVERY_BOUNDARY_WALK_H_
