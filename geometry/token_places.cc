// Token position -> rank and row, and back. A group that is dealt out over the DCP ranks gives each rank
// `interleave_tokens` tokens in turn; a rank's rows of a block follow each other in that order.

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "hostkv/geometry.h"

namespace hostkv {

TokenPlace Geometry::place_of_token(GroupIndex g, std::int64_t position) const {
  HOSTKV_DCHECK(g.value() < num_groups() && position >= 0, "group in range, position >= 0");
  const std::int64_t span = spans_[g.value()];
  const std::int64_t offset = position % span;
  if (!spec_.groups[g.value()].sharded) {
    return {.rank = -1, .block_index = position / span, .slot_in_block = offset};
  }
  const std::int64_t turn = spec_.parallel.interleave_tokens;
  const std::int64_t dcp = spec_.parallel.dcp;
  const std::int64_t turns_before = offset / turn;
  return {.rank = turns_before % dcp,
          .block_index = position / span,
          .slot_in_block = turns_before / dcp * turn + offset % turn};
}

std::optional<std::int64_t> Geometry::token_at(GroupIndex g, const TokenPlace& place) const {
  HOSTKV_DCHECK(g.value() < num_groups(), "group in range");
  const KvCacheGroup& group = spec_.groups[g.value()];
  const std::int64_t span = spans_[g.value()];
  const std::int64_t ranks = group.sharded ? spec_.parallel.dcp : 0;
  const bool rank_exists = group.sharded ? place.rank >= 0 && place.rank < ranks : place.rank == -1;
  const bool row_exists = place.slot_in_block >= 0 && place.slot_in_block < group.block_tokens;
  const std::int64_t last_block = std::numeric_limits<std::int64_t>::max() / span - 1;
  if (!rank_exists || !row_exists || place.block_index < 0 || place.block_index > last_block) {
    return std::nullopt;
  }
  if (!group.sharded) {
    return place.block_index * span + place.slot_in_block;
  }
  const std::int64_t turn = spec_.parallel.interleave_tokens;
  const std::int64_t turns_before = place.slot_in_block / turn * ranks + place.rank;
  return place.block_index * span + turns_before * turn + place.slot_in_block % turn;
}

std::int64_t Geometry::local_length_tokens(GroupIndex g, std::int64_t length_tokens, std::int64_t rank) const {
  HOSTKV_DCHECK(g.value() < num_groups() && length_tokens >= 0, "group in range, tokens >= 0");
  HOSTKV_DCHECK(rank >= 0 && rank < spec_.parallel.dcp, "rank of the DCP group");
  if (!spec_.groups[g.value()].sharded) {
    return length_tokens;
  }
  const std::int64_t turn = spec_.parallel.interleave_tokens;
  const std::int64_t round = turn * spec_.parallel.dcp;
  const std::int64_t rest = length_tokens % round;
  return length_tokens / round * turn + std::clamp<std::int64_t>(rest - rank * turn, 0, turn);
}

}  // namespace hostkv
