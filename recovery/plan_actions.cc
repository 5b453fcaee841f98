// What becomes of one request that is touched.

#include <algorithm>

#include "geometry/group_rules.h"
#include "recovery/plan_builder.h"

namespace hostkv {
namespace {

// Requests of one group of attention over all tokens are rewound in place behind a synchronous load too: their table
// still holds all that a step in flight has read.
bool can_rewind_running(const Geometry& geometry) {
  const KvCacheGroup& group = geometry.group(GroupIndex{0});
  return geometry.num_groups() == 1 && detail::takes_part(group) && detail::is_attention_over_all(group.kind);
}

}  // namespace

RequestRecovery PlanBuilder::recover(std::size_t request, Touch touch, std::span<const std::uint8_t> safe) {
  RequestRecovery recovery;
  recovery.id = requests_[request].id;
  recovery.action = action_of(request);
  if (recovery.action == RecoveryAction::kRewind && is_synchronous(request)) {
    rewind_sharing(request, touch, recovery);
  } else {
    recovery.resume_tokens = touch == Touch::kShapeDiffers ? 0 : safe_boundary(request, safe);
  }
  const bool keeps = recovery.action == RecoveryAction::kRewind || recovery.action == RecoveryAction::kKeep;
  recovery.kept =
      keeps ? kept_at(request, recovery.resume_tokens) : std::vector<BlockIndexRange>(geometry_->num_groups());
  return recovery;
}

RecoveryAction PlanBuilder::action_of(std::size_t request) const {
  if (policy_ == LoadFailurePolicy::kFail) {
    return RecoveryAction::kEnd;
  }
  // In place it would write into blocks that the request which filled them writes again, perhaps with other tokens.
  if (holds_void_of_others(request)) {
    return RecoveryAction::kPreempt;
  }
  return is_synchronous(request) && !can_rewind_running(*geometry_) ? RecoveryAction::kPreempt
                                                                    : RecoveryAction::kRewind;
}

std::int64_t PlanBuilder::safe_boundary(std::size_t request, std::span<const std::uint8_t> safe) {
  const std::int64_t alignment = geometry_->hit_alignment_tokens();
  walk_.start(requests_[request], bad_);
  std::int64_t boundary = walk_.top();
  if (safe.empty()) {
    return boundary;
  }
  while (safe[static_cast<std::size_t>(boundary / alignment)] == 0) {
    boundary = walk_.next(boundary - alignment);  // ends at 0, which is always safe
  }
  return boundary;
}

void PlanBuilder::rewind_sharing(std::size_t request, Touch touch, RequestRecovery& recovery) {
  constexpr GroupIndex kOnly{0};
  const HeldRequest& held = requests_[request];
  const auto table = held.groups[0].table;
  const std::int64_t span = geometry_->span_tokens(kOnly);
  const std::int64_t alignment = geometry_->hit_alignment_tokens();
  const auto limit = [&](std::int64_t tokens) {
    recovery.resume_tokens = std::min(recovery.resume_tokens, tokens - tokens % alignment);
  };
  recovery.resume_tokens = held.settled_tokens;
  bool all_promised = touch != Touch::kShapeDiffers;
  std::vector<std::size_t> own;
  for (std::size_t i = bad_.marks().next_missing(kOnly, table, 0); i < table.size();
       i = bad_.marks().next_missing(kOnly, table, i + 1)) {
    const bool is_null = table[i] == kNullBlock;
    const auto begin = static_cast<std::int64_t>(i) * span;
    if (is_null ? begin >= held.settled_tokens : !bad_.has_failed(kOnly, table[i]) || is_promised(request, i)) {
      continue;
    }
    all_promised = false;
    limit(std::min(begin, held.settled_tokens));
    if (!is_null) {
      own.push_back(i);
    }
  }
  if (const std::int64_t num_held = std::ssize(table); num_held < detail::ceil_div(held.settled_tokens, span)) {
    all_promised = false;
    limit(num_held * span);
  }
  if (touch == Touch::kShapeDiffers) {
    limit(0);
  }
  if (all_promised) {
    recovery.action = RecoveryAction::kKeep;
  }
  for (const std::size_t i : own) {
    promised_.try_emplace(table[i], Promise{i, held.settled_tokens});
  }
}

// It is computed again up to where this request reads it.
bool PlanBuilder::is_promised(std::size_t request, std::size_t table_index) const {
  const HeldRequest& held = requests_[request];
  const std::int64_t span = geometry_->span_tokens(GroupIndex{0});
  const std::int64_t begin = static_cast<std::int64_t>(table_index) * span;
  const auto found = promised_.find(held.groups[0].table[table_index]);
  return found != promised_.end() && found->second.table_index == table_index && begin < held.settled_tokens &&
         std::min(begin + span, held.settled_tokens) <= found->second.settled_tokens;
}

std::vector<BlockIndexRange> PlanBuilder::kept_at(std::size_t request, std::int64_t boundary_tokens) const {
  std::vector<BlockIndexRange> kept(geometry_->num_groups());
  for (std::uint32_t i = 0; i < geometry_->num_groups() && boundary_tokens > 0; ++i) {
    const GroupIndex g{i};
    if (!takes_part(g)) {
      continue;
    }
    if (geometry_->group(g).kind == GroupKind::kMamba) {
      const auto column = find_state(requests_[request].groups[i], geometry_->span_tokens(g), boundary_tokens);
      const auto first = static_cast<std::int64_t>(column.value_or(0));
      kept[i] = column ? BlockIndexRange{first, first + 1} : BlockIndexRange{};
    } else if (const BlockIndexRange needed = geometry_->needs(g, boundary_tokens); !needed.empty()) {
      kept[i] = needed;
    }
  }
  return kept;
}

}  // namespace hostkv
