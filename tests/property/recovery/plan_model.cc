#include "tests/property/recovery/plan_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tests/property/recovery/token_oracle.h"

namespace hostkv::testing {
namespace {

using Block = std::pair<GroupIndex, BlockId>;

class PlanModel {
 public:
  PlanModel(const Geometry& geometry, LoadFailurePolicy policy, const std::vector<HeldTables>& requests,
            const std::vector<FailedLoad>& failed)
      : geometry_(geometry), policy_(policy), requests_(requests), shape_(requests.size()), touched_(requests.size()) {
    for (const FailedLoad& load : failed) {
      take(load);
    }
    for (std::size_t r = 0; r < requests.size(); ++r) {
      if (shape_[r] && is_synchronous(r)) {
        each_block(r, [&](const Block& block, std::size_t) {
          failed_.insert(block);
          findable_.insert(block);
        });
      }
    }
    for (std::size_t r = 0; r < requests.size(); ++r) {
      touched_[r] = shape_[r];
      each_block(r, [&](const Block& block, std::size_t) { touched_[r] = touched_[r] || failed_.contains(block); });
    }
    spread();
  }

  RecoveryPlan plan() {
    RecoveryPlan plan;
    std::set<EvictedBlock> evicted;
    for (std::size_t r = 0; r < requests_.size(); ++r) {
      if (!touched_[r]) {
        continue;
      }
      plan.requests.push_back(recover(r));
      each_block(r, [&](const Block& block, std::size_t) {
        const bool leaves =
            failed_.contains(block) ? is_synchronous(r) || findable_.contains(block) : void_from_.contains(block);
        if (leaves) {
          evicted.insert({block.first, block.second});
        }
      });
    }
    plan.evicted.assign(evicted.begin(), evicted.end());
    return plan;
  }

 private:
  [[nodiscard]] bool is_synchronous(std::size_t r) const { return requests_[r].mode == LoadMode::kSynchronous; }
  [[nodiscard]] const KvCacheGroup& group(std::size_t g) const {
    return geometry_.group(GroupIndex{static_cast<std::uint32_t>(g)});
  }

  // Blocks of groups that take part, with their place in the table.
  template <class Visit>
  void each_block(std::size_t r, Visit visit) const {
    for (std::size_t g = 0; g < geometry_.num_groups(); ++g) {
      for (std::size_t i = 0; has_part(group(g)) && i < requests_[r].tables[g].size(); ++i) {
        if (requests_[r].tables[g][i] != kNullBlock) {
          visit(Block{GroupIndex{static_cast<std::uint32_t>(g)}, requests_[r].tables[g][i]}, i);
        }
      }
    }
  }

  void take(const FailedLoad& load) {
    const auto known = std::ranges::find(requests_, load.request, &HeldTables::id);
    if (load.group.value() >= geometry_.num_groups()) {
      if (known != requests_.end()) {
        shape_[static_cast<std::size_t>(known - requests_.begin())] = true;
      }
      return;
    }
    if (load.block == kNullBlock || !has_part(geometry_.group(load.group))) {
      return;
    }
    failed_.emplace(load.group, load.block);
    if (known == requests_.end() || known->mode == LoadMode::kSynchronous) {
      findable_.emplace(load.group, load.block);
    }
  }

  // The last token of a block: for states, the one they end with.
  [[nodiscard]] std::int64_t last_token(std::size_t r, const Block& block, std::size_t index) const {
    const std::size_t g = block.first.value();
    return group(g).kind == GroupKind::kMamba
               ? requests_[r].state_tokens[g][index] - 1
               : (static_cast<std::int64_t>(index) + 1) * span_of(geometry_, group(g)) - 1;
  }

  void spread() {
    for (std::ptrdiff_t num_touched = 0; num_touched != count_touched();) {
      num_touched = count_touched();
      for (std::size_t r = 0; r < requests_.size(); ++r) {
        if (touched_[r] && is_synchronous(r)) {
          mark_void(r);
        }
      }
      for (std::size_t r = 0; r < requests_.size(); ++r) {
        touched_[r] = touched_[r] || holds_void(r);
      }
    }
  }
  void mark_void(std::size_t r) {
    const std::int64_t settled = requests_[r].settled_tokens;
    each_block(r, [&](const Block& block, std::size_t index) {
      if (last_token(r, block, index) >= settled && !failed_.contains(block)) {
        const auto at = void_from_.try_emplace(block, settled).first;
        at->second = std::min(at->second, settled);
      }
    });
  }
  [[nodiscard]] std::ptrdiff_t count_touched() const { return std::ranges::count(touched_, true); }

  [[nodiscard]] bool can_read(const Block& block, std::int64_t token) const {
    const auto at = void_from_.find(block);
    return !failed_.contains(block) && (at == void_from_.end() || token < at->second);
  }

  // A settled token of the request that another has computed on a failed load.
  [[nodiscard]] bool holds_void(std::size_t r) const {
    bool found = false;
    each_block(r, [&](const Block& block, std::size_t index) {
      const bool is_state = group(block.first.value()).kind == GroupKind::kMamba;
      const std::int64_t last = last_token(r, block, index);
      const std::int64_t begin =
          is_state ? last : static_cast<std::int64_t>(index) * span_of(geometry_, group(block.first.value()));
      for (std::int64_t token = std::max<std::int64_t>(0, begin); token <= last && token < requests_[r].settled_tokens;
           ++token) {
        found = found || (!failed_.contains(block) && !can_read(block, token));
      }
    });
    return found;
  }

  RequestRecovery recover(std::size_t r) {
    RequestRecovery recovery;
    recovery.id = requests_[r].id;
    recovery.kept.resize(geometry_.num_groups());
    const bool one_dense = geometry_.num_groups() == 1 && has_part(group(0)) &&
                           (group(0).kind == GroupKind::kFullAttention || group(0).kind == GroupKind::kMla);
    const bool is_preempted = holds_void(r) || (is_synchronous(r) && !one_dense);
    recovery.action = policy_ == LoadFailurePolicy::kFail ? RecoveryAction::kEnd
                      : is_preempted                      ? RecoveryAction::kPreempt
                                                          : RecoveryAction::kRewind;
    if (recovery.action == RecoveryAction::kRewind && is_synchronous(r)) {
      in_place(r, recovery);
    } else if (!shape_[r]) {
      recovery.resume_tokens =
          largest_safe(geometry_, requests_[r], [&](GroupIndex g, BlockId block, std::int64_t token) {
            return can_read({g, block}, token);
          });
    }
    if (recovery.action == RecoveryAction::kRewind || recovery.action == RecoveryAction::kKeep) {
      keep(r, recovery);
    }
    return recovery;
  }

  void in_place(std::size_t r, RequestRecovery& recovery) {
    const HeldTables& held = requests_[r];
    const std::int64_t span = span_of(geometry_, group(0));
    const auto shared = [&](std::size_t index) {
      const auto owner =
          std::ranges::find_if(owned_, [&](const auto& owned) { return held.tables[0][index] == owned.block; });
      const std::int64_t begin = static_cast<std::int64_t>(index) * span;
      return owner != owned_.end() && owner->index == index && begin < held.settled_tokens &&
             std::min(begin + span, held.settled_tokens) <= owner->settled_tokens;
    };
    std::int64_t first_lost = held.settled_tokens;
    for (std::int64_t token = held.settled_tokens - 1; token >= 0; --token) {
      const auto index = static_cast<std::size_t>(token / span);
      const bool is_there = index < held.tables[0].size() && held.tables[0][index] != kNullBlock;
      if (!is_there || (failed_.contains({GroupIndex{0}, held.tables[0][index]}) && !shared(index))) {
        first_lost = token;
      }
    }
    bool keeps = !shape_[r] && first_lost == held.settled_tokens;
    std::vector<Owned> own;
    each_block(r, [&](const Block& block, std::size_t index) {
      if (failed_.contains(block) && !shared(index)) {
        keeps = false;
        own.push_back({block.second, index, held.settled_tokens});
      }
    });
    owned_.insert(owned_.end(), own.begin(), own.end());
    recovery.action = keeps ? RecoveryAction::kKeep : RecoveryAction::kRewind;
    const std::int64_t step = geometry_.hit_alignment_tokens();
    recovery.resume_tokens = keeps ? held.settled_tokens : shape_[r] ? 0 : first_lost / step * step;
  }

  void keep(std::size_t r, RequestRecovery& recovery) const {
    const std::int64_t boundary = recovery.resume_tokens;
    for (std::size_t g = 0; g < geometry_.num_groups() && boundary > 0; ++g) {
      if (!has_part(group(g))) {
        continue;
      }
      BlockIndexRange& kept = recovery.kept[g];
      if (group(g).kind == GroupKind::kMamba) {
        const auto column = static_cast<std::int64_t>(state_column(group(g), requests_[r], g, boundary).value());
        kept = {column, column + 1};
        continue;
      }
      const std::int64_t span = span_of(geometry_, group(g));
      for (std::int64_t token = boundary - 1; token >= 0 && is_read(group(g), token, boundary); --token) {
        kept = {token / span, (boundary - 1) / span + 1};
      }
    }
  }

  struct Owned {
    BlockId block;
    std::size_t index = 0;
    std::int64_t settled_tokens = 0;
  };

  const Geometry& geometry_;
  LoadFailurePolicy policy_;
  const std::vector<HeldTables>& requests_;
  std::vector<bool> shape_;
  std::vector<bool> touched_;
  std::set<Block> failed_;
  std::set<Block> findable_;
  std::map<Block, std::int64_t> void_from_;
  std::vector<Owned> owned_;  // of the requests so far, what they compute again
};

}  // namespace

RecoveryPlan model_plan(const Geometry& geometry, LoadFailurePolicy policy, const std::vector<HeldTables>& requests,
                        const std::vector<FailedLoad>& failed) {
  return PlanModel(geometry, policy, requests, failed).plan();
}

}  // namespace hostkv::testing
