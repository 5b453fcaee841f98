#ifndef HOSTKV_GEOMETRY_LOOKUP_RULES_H_
#define HOSTKV_GEOMETRY_LOOKUP_RULES_H_

// What the groups of one geometry mean for each other: which drop a unit, which may be drafts, where hits may end.

#include <cstdint>
#include <string>
#include <vector>

#include "hostkv/geometry.h"
#include "hostkv/status.h"

namespace hostkv::detail {

// A group that drops a unit at a lookup: draft groups and those that are looked up with one.
std::vector<bool> groups_that_drop(const std::vector<KvCacheGroup>& groups);

// Two windows that drop and are looked up apart: when the second shortens the hit, nothing asks again for the dropped
// block of the first. Attention over all tokens is safe: it keeps its dropped block when it is cut.
Status check_drafts(const std::vector<KvCacheGroup>& groups, const std::vector<std::string>& labels);

// What the alignment of hits needs to know about each group.
struct HitRules {
  const GeometrySpec& spec;
  const std::vector<std::string>& labels;
  const std::vector<std::int64_t>& spans;
  std::int64_t scheduler_block_tokens = 0;
  std::int64_t hash_block_tokens = 0;
};
// Do hits end inside blocks? As the engine chooses, or as spec.fine_hits says where that is possible.
Result<bool> resolve_fine_hits(const HitRules& rules);
// Groups whose chunk lookup walks blocks of the alignment's size.
Status check_chunked_alignment(const HitRules& rules, std::int64_t hit_alignment_tokens);

}  // namespace hostkv::detail

#endif  // HOSTKV_GEOMETRY_LOOKUP_RULES_H_
