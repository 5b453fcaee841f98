// What failed loads lead to beyond their own request: blocks that were computed on them, requests that found those in
// the prefix cache, and what therefore has to leave it.

#include <algorithm>

#include "recovery/plan_builder.h"

namespace hostkv {

// Until nobody new is touched: what a touched synchronous request has computed behind its settled tokens is void, and
// touches the others that hold it.
void PlanBuilder::spread(std::vector<Touch>& touches) {
  std::vector<std::uint8_t> has_spread(requests_.size(), 0);
  for (std::vector<VoidBlock> blocks = take_computed_behind(touches, has_spread); !blocks.empty();
       blocks = take_computed_behind(touches, has_spread)) {
    bad_.add_void(blocks);
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (touches[i] == Touch::kNone && holds_void_of_others(i)) {
        touches[i] = Touch::kFindable;
      }
    }
  }
}

// Of those that are touched and were not asked yet.
std::vector<VoidBlock> PlanBuilder::take_computed_behind(std::span<const Touch> touches,
                                                         std::vector<std::uint8_t>& has_spread) const {
  std::vector<VoidBlock> blocks;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (touches[i] != Touch::kNone && has_spread[i] == 0 && is_synchronous(i)) {
      append_computed_behind(i, blocks);
      has_spread[i] = 1;
    }
  }
  return blocks;
}

// By what they hold: every block with a token behind the settled ones, every state with more tokens than these. A block
// with tokens on both sides is right up to the settled ones.
void PlanBuilder::append_computed_behind(std::size_t request, std::vector<VoidBlock>& blocks) const {
  const HeldRequest& held = requests_[request];
  const std::int64_t settled = held.settled_tokens;
  for (std::uint32_t i = 0; i < geometry_->num_groups(); ++i) {
    const GroupIndex g{i};
    if (!takes_part(g)) {
      continue;
    }
    const HeldBlocks& of_group = held.groups[i];
    const bool is_recurrent = geometry_->group(g).kind == GroupKind::kMamba;
    const std::int64_t first = is_recurrent ? 0 : settled / geometry_->span_tokens(g);
    for (auto k = static_cast<std::size_t>(first); k < of_group.table.size(); ++k) {
      if (of_group.table[k] != kNullBlock && (!is_recurrent || of_group.state_tokens[k] > settled)) {
        blocks.push_back({g, of_group.table[k], settled});
      }
    }
  }
}

// Its own void blocks are right up to its settled tokens, so what is left are those of others.
bool PlanBuilder::holds_void_of_others(std::size_t request) const {
  const HeldRequest& held = requests_[request];
  const std::int64_t settled = held.settled_tokens;
  for (std::uint32_t i = 0; i < geometry_->num_groups() && bad_.has_void(); ++i) {
    const GroupIndex g{i};
    if (!takes_part(g)) {
      continue;
    }
    const HeldBlocks& of_group = held.groups[i];
    const bool is_recurrent = geometry_->group(g).kind == GroupKind::kMamba;
    const std::int64_t span = geometry_->span_tokens(g);
    for (std::size_t k = bad_.marks().next_marked(g, of_group.table, 0); k < of_group.table.size();
         k = bad_.marks().next_marked(g, of_group.table, k + 1)) {
      const std::int64_t begin = is_recurrent ? 0 : static_cast<std::int64_t>(k) * span;
      const std::int64_t end = is_recurrent ? of_group.state_tokens[k] : std::min(settled, begin + span);
      const bool reads_it = is_recurrent ? end > 0 && end <= settled : end > begin;
      if (reads_it && bad_.usable_tokens(g, of_group.table[k]) < end && !bad_.has_failed(g, of_group.table[k])) {
        return true;
      }
    }
  }
  return false;
}

void PlanBuilder::append_evicted(std::size_t request, std::vector<EvictedBlock>& evicted) const {
  const HeldRequest& held = requests_[request];
  for (std::uint32_t i = 0; i < geometry_->num_groups(); ++i) {
    const GroupIndex g{i};
    const bool some_leave = is_synchronous(request) || findable_.any(g) || bad_.has_void();
    if (!takes_part(g) || !some_leave) {
      continue;
    }
    const auto table = held.groups[i].table;
    for (std::size_t k = bad_.marks().next_marked(g, table, 0); k < table.size();
         k = bad_.marks().next_marked(g, table, k + 1)) {
      if (is_synchronous(request) || findable_.contains(g, table[k]) || !bad_.has_failed(g, table[k])) {
        evicted.push_back({g, table[k]});
      }
    }
  }
}

}  // namespace hostkv
