#ifndef HOSTKV_TESTS_PROPERTY_RECOVERY_TOKEN_ORACLE_H_
#define HOSTKV_TESTS_PROPERTY_RECOVERY_TOKEN_ORACLE_H_

// What can be read at a boundary, token by token, from what a model's layers read; without Geometry::needs or any other
// arithmetic of the library.

#include <cstdint>
#include <functional>
#include <optional>

#include "hostkv/geometry.h"
#include "tests/support/held_request.h"

namespace hostkv::testing {

// May the token be read from this block? (group, block, token)
using CanRead = std::function<bool(GroupIndex, BlockId, std::int64_t)>;

// Does the token at position `boundary` read or retain token `token`?
inline bool is_read(const KvCacheGroup& group, std::int64_t token, std::int64_t boundary) {
  switch (group.kind) {
    case GroupKind::kSlidingWindow:
      return token + group.window_tokens + group.extra_retained_tokens > boundary;
    case GroupKind::kChunkedLocal:
      return token / group.chunk_tokens == boundary / group.chunk_tokens;
    default:
      return true;
  }
}

inline bool has_part(const KvCacheGroup& group) {
  return group.cacheable && group.kind != GroupKind::kScratch;
}
inline std::int64_t span_of(const Geometry& geometry, const KvCacheGroup& group) {
  return group.block_tokens * (group.sharded ? geometry.spec().parallel.dcp : 1);
}

// The column of the state after exactly so many tokens: by position, else the first.
inline std::optional<std::size_t> state_column(const KvCacheGroup& group, const HeldTables& held, std::size_t g,
                                               std::int64_t tokens) {
  std::optional<std::size_t> first;
  for (std::size_t column = 0; column < held.tables[g].size(); ++column) {
    if (held.state_tokens[g][column] != tokens || held.tables[g][column] == kNullBlock) {
      continue;
    }
    if (static_cast<std::int64_t>(column) == (tokens - 1) / group.block_tokens) {
      return column;
    }
    first = first ? first : column;
  }
  return first;
}

inline bool group_is_safe(const Geometry& geometry, std::size_t g, const HeldTables& held, std::int64_t boundary,
                          const CanRead& can_read) {
  const GroupIndex index{static_cast<std::uint32_t>(g)};
  const KvCacheGroup& group = geometry.group(index);
  if (group.kind == GroupKind::kMamba) {
    const auto column = state_column(group, held, g, boundary);
    return column && can_read(index, held.tables[g][*column], boundary - 1);
  }
  const std::int64_t span = span_of(geometry, group);
  for (std::int64_t token = 0; token < boundary; ++token) {
    if (!is_read(group, token, boundary)) {
      continue;
    }
    const auto block = static_cast<std::size_t>(token / span);
    if (block >= held.tables[g].size() || held.tables[g][block] == kNullBlock ||
        !can_read(index, held.tables[g][block], token)) {
      return false;
    }
  }
  return true;
}

inline bool is_safe(const Geometry& geometry, const HeldTables& held, std::int64_t boundary, const CanRead& can_read) {
  for (std::size_t g = 0; g < geometry.num_groups() && boundary > 0; ++g) {
    if (has_part(geometry.group(GroupIndex{static_cast<std::uint32_t>(g)})) &&
        !group_is_safe(geometry, g, held, boundary, can_read)) {
      return false;
    }
  }
  return true;
}

// Every candidate in turn, from the top.
inline std::int64_t largest_safe(const Geometry& geometry, const HeldTables& held, const CanRead& can_read) {
  const std::int64_t step = geometry.hit_alignment_tokens();
  std::int64_t boundary = held.settled_tokens / step * step;
  while (!is_safe(geometry, held, boundary, can_read)) {
    boundary -= step;
  }
  return boundary;
}

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_PROPERTY_RECOVERY_TOKEN_ORACLE_H_
