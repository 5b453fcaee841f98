#ifndef HOSTKV_GEOMETRY_GROUP_RULES_H_
#define HOSTKV_GEOMETRY_GROUP_RULES_H_

// What a group of each kind may and may not be, whatever stands beside it. Thread-safety: pure functions. Failure:
// kInvalidArgument naming the group, the value and what is allowed.

#include <cstdint>
#include <string>

#include "hostkv/geometry.h"
#include "hostkv/status.h"

namespace hostkv::detail {

// No length of tokens or bytes of one block is larger: products of two stay inside 64 bits where one of them is a
// parallel size, and sums always do.
inline constexpr std::int64_t kMaxQuantity = std::int64_t{1} << 40U;
inline constexpr std::int64_t kMaxParallelSize = std::int64_t{1} << 20U;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// "group 2 (mamba)", or "group 2 'draft' (sliding_window)".
std::string make_group_label(std::size_t index, const KvCacheGroup& group);

constexpr bool is_attention_over_all(GroupKind kind) {
  return kind == GroupKind::kFullAttention || kind == GroupKind::kMla;
}
// Part of hashing, lookup and recovery.
constexpr bool takes_part(const KvCacheGroup& group) {
  return group.cacheable && group.kind != GroupKind::kScratch;
}
// Can a hit end inside a block of this kind?
constexpr bool can_end_inside_block(GroupKind kind) {
  return is_attention_over_all(kind) || kind == GroupKind::kMamba;
}
// Equal but for name and draft flag: the engine looks such groups up together.
bool are_looked_up_together(const KvCacheGroup& a, const KvCacheGroup& b);

Status check_group(const std::string& label, const KvCacheGroup& group);
Status check_parallel(const ParallelLayout& parallel);
// The interleave must divide the block of a group that is dealt out over ranks, or rows land in the next block.
Status check_interleave(const std::string& label, const KvCacheGroup& group, const ParallelLayout& parallel);

}  // namespace hostkv::detail

#endif  // HOSTKV_GEOMETRY_GROUP_RULES_H_
