#include "recovery/boundary_walk.h"

#include <algorithm>
#include <tuple>

#include "geometry/group_rules.h"

namespace hostkv {

std::optional<std::size_t> find_state(const HeldBlocks& held, std::int64_t span_tokens, std::int64_t tokens) {
  const auto holds = [&](std::size_t column) {
    return held.state_tokens[column] == tokens && held.table[column] != kNullBlock;
  };
  const auto by_position = static_cast<std::size_t>((tokens - 1) / span_tokens);
  if (by_position < held.table.size() && holds(by_position)) {
    return by_position;
  }
  for (std::size_t column = 0; column < held.table.size(); ++column) {
    if (holds(column)) {
      return column;
    }
  }
  return std::nullopt;
}

RangeWalk::RangeWalk(const Geometry& geometry, GroupIndex group, const HeldBlocks& held, const BadBlocks& bad)
    : geometry_(&geometry), held_(&held), bad_(&bad), group_(group), span_tokens_(geometry.span_tokens(group)) {}

std::int64_t RangeWalk::largest(std::int64_t boundary) {
  while (boundary > 0) {
    const std::int64_t bad = last_bad(geometry_->needs(group_, boundary), boundary);
    if (bad < 0) {
      return boundary;
    }
    boundary = below(bad);
    boundary -= boundary % geometry_->hit_alignment_tokens();
  }
  return 0;
}

std::int64_t RangeWalk::last_bad(const BlockIndexRange& needed, std::int64_t boundary) {
  for (std::int64_t i = std::min(sound_from_, needed.end_block); i > needed.first_block; --i) {
    if (usable_tokens(i - 1) < boundary) {
      sound_from_ = i;
      return i - 1;
    }
  }
  sound_from_ = std::min(sound_from_, needed.first_block);
  return -1;
}

std::int64_t RangeWalk::below(std::int64_t block) const {
  if (const std::int64_t usable = usable_tokens(block); usable > block * span_tokens_) {
    return usable;
  }
  // Every boundary reads the block of its last token, so those in a row of unusable blocks go together; but a chunk
  // that has just begun reads nothing.
  const KvCacheGroup& group = geometry_->group(group_);
  const bool is_chunked = group.kind == GroupKind::kChunkedLocal;
  const std::int64_t begin = is_chunked ? block - block % (group.chunk_tokens / span_tokens_) : 0;
  std::int64_t end = std::max(begin, std::min(block, std::ssize(held_->table)));
  while (end > begin && usable_tokens(end - 1) <= (end - 1) * span_tokens_) {
    --end;
  }
  return end * span_tokens_;
}

StateWalk::StateWalk(const Geometry& geometry, GroupIndex group, const HeldBlocks& held, const BadBlocks& bad,
                     std::vector<std::uint32_t>& order)
    : held_(&held),
      bad_(&bad),
      group_(group),
      alignment_tokens_(geometry.hit_alignment_tokens()),
      order_(&order),
      is_ordered_(is_ascending()),
      left_(held.table.size()) {
  if (!is_ordered_) {
    sort_states(geometry.span_tokens(group));
    left_ = order_->size();
  }
}

bool StateWalk::is_ascending() const {
  std::int64_t last = 0;
  for (std::size_t column = 0; column < held_->table.size(); ++column) {
    const std::int64_t tokens = held_->state_tokens[column];
    if (tokens > 0 && held_->table[column] != kNullBlock) {
      if (tokens <= last) {
        return false;
      }
      last = tokens;
    }
  }
  return true;
}

// Of several columns with a state after as many tokens the one that find_state() names.
void StateWalk::sort_states(std::int64_t span_tokens) {
  order_->clear();
  for (std::size_t column = 0; column < held_->table.size(); ++column) {
    if (held_->state_tokens[column] > 0 && held_->table[column] != kNullBlock) {
      order_->push_back(static_cast<std::uint32_t>(column));
    }
  }
  const auto tokens_of = [&](std::uint32_t column) { return held_->state_tokens[column]; };
  std::ranges::sort(*order_, {}, [&](std::uint32_t column) {
    const std::int64_t tokens = tokens_of(column);
    return std::tuple(tokens, (tokens - 1) / span_tokens != std::int64_t{column}, column);
  });
  const auto same = [&](std::uint32_t a, std::uint32_t b) { return tokens_of(a) == tokens_of(b); };
  order_->erase(std::unique(order_->begin(), order_->end(), same), order_->end());
}

std::int64_t StateWalk::largest(std::int64_t boundary) {
  for (; left_ > 0; --left_) {
    const std::size_t column = is_ordered_ ? left_ - 1 : (*order_)[left_ - 1];
    const std::int64_t tokens = held_->state_tokens[column];
    if (tokens > 0 && tokens <= boundary && bad_->usable_tokens(group_, held_->table[column]) >= tokens &&
        tokens % alignment_tokens_ == 0) {
      return tokens;
    }
  }
  return 0;
}

void BoundaryWalk::start(const HeldRequest& request, const BadBlocks& bad) {
  ranges_.clear();
  states_.clear();
  orders_.resize(geometry_->num_groups());
  top_tokens_ = aligned(request.settled_tokens);
  for (std::uint32_t i = 0; i < geometry_->num_groups(); ++i) {
    const GroupIndex g{i};
    const KvCacheGroup& group = geometry_->group(g);
    if (detail::takes_part(group) && detail::is_attention_over_all(group.kind)) {
      limit_by_attention(g, request.groups[i], bad);
    }
  }
  for (std::uint32_t i = 0; i < geometry_->num_groups() && top_tokens_ > 0; ++i) {
    const GroupIndex g{i};
    const KvCacheGroup& group = geometry_->group(g);
    if (!detail::takes_part(group) || detail::is_attention_over_all(group.kind)) {
      continue;
    }
    if (group.kind == GroupKind::kMamba) {
      states_.emplace_back(*geometry_, g, request.groups[i], bad, orders_[i]);
    } else if (group.kind == GroupKind::kChunkedLocal || group.window_tokens + group.extra_retained_tokens > 1) {
      ranges_.emplace_back(*geometry_, g, request.groups[i], bad);  // a window of one token reads nothing that is held
    }
  }
}

// Full attention reads everything: nothing behind its first bad block is safe.
void BoundaryWalk::limit_by_attention(GroupIndex group, const HeldBlocks& held, const BadBlocks& bad) {
  const std::int64_t span = geometry_->span_tokens(group);
  const std::int64_t num_held = std::ssize(held.table);
  const std::int64_t num_read = std::min(detail::ceil_div(top_tokens_, span), num_held);
  const auto table = held.table.first(static_cast<std::size_t>(num_read));
  for (std::size_t i = bad.marks().next_missing(group, table, 0); i < table.size();
       i = bad.marks().next_missing(group, table, i + 1)) {
    const std::int64_t readable = std::max(static_cast<std::int64_t>(i) * span, bad.usable_tokens(group, table[i]));
    if (readable < top_tokens_) {
      top_tokens_ = aligned(readable);
      return;
    }
  }
  if (num_read == num_held) {
    top_tokens_ = aligned(std::min(top_tokens_, num_held * span));
  }
}

std::int64_t BoundaryWalk::next(std::int64_t limit_tokens) {
  std::int64_t boundary = aligned(std::min(limit_tokens, top_tokens_));
  for (std::int64_t before = -1; boundary > 0 && boundary != before;) {
    before = boundary;
    for (StateWalk& walk : states_) {
      boundary = boundary > 0 ? walk.largest(boundary) : 0;
    }
    for (RangeWalk& walk : ranges_) {
      boundary = walk.largest(boundary);
    }
  }
  return boundary;
}

}  // namespace hostkv
