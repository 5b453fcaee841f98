#include "recovery/plan_builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "geometry/group_rules.h"
#include "recovery/safe_boundary.h"

namespace hostkv {
namespace {

// What a rank says of one table entry; the least over the ranks counts.
constexpr std::uint8_t kEntryFindable = 0;  // failed, may be in the prefix cache
constexpr std::uint8_t kEntryFailed = 1;
constexpr std::uint8_t kEntryGood = 2;

}  // namespace

PlanBuilder::PlanBuilder(const Geometry& geometry, LoadFailurePolicy policy)
    : geometry_(&geometry),
      policy_(policy),
      bad_(geometry.num_groups()),
      findable_(geometry.num_groups()),
      walk_(geometry) {}

Status PlanBuilder::start(std::span<const HeldRequest> requests) {
  requests_ = requests;
  by_id_.clear();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (Status status = check_request(*geometry_, requests[i]); !status.ok()) {
      return status;
    }
    by_id_.emplace_back(requests[i].id, i);
  }
  std::ranges::sort(by_id_);
  const auto twice = std::ranges::adjacent_find(by_id_, {}, &std::pair<RequestId, std::size_t>::first);
  if (twice != by_id_.end()) {
    return {StatusCode::kInvalidArgument, fmt::format("request {}: twice among the {} requests; name each once",
                                                      twice->first.value(), requests.size())};
  }
  restart();
  return {};
}

void PlanBuilder::restart() {
  shape_differs_.assign(requests_.size(), 0);
  bad_.clear();
  findable_.clear();
}

bool PlanBuilder::takes_part(GroupIndex group) const {
  return detail::takes_part(geometry_->group(group));
}

std::optional<std::size_t> PlanBuilder::find_request(RequestId id) const {
  const auto found = std::ranges::lower_bound(by_id_, id, {}, &std::pair<RequestId, std::size_t>::first);
  return found != by_id_.end() && found->first == id ? std::optional(found->second) : std::nullopt;
}

void PlanBuilder::add(std::span<const FailedLoad> failed) {
  std::optional<std::size_t> request;
  std::optional<RequestId> id;  // whose index `request` is
  MarkWriter bad = bad_.failed_writer();
  MarkWriter findable(findable_);
  for (const FailedLoad& load : failed) {
    if (id != load.request) {
      id = load.request;
      request = find_request(load.request);
    }
    if (load.group.value() >= geometry_->num_groups()) {
      if (request) {
        shape_differs_[*request] = 1;
      }
    } else if (takes_part(load.group)) {
      bad.add(load.group, load.block);
      if (!request || is_synchronous(*request)) {
        findable.add(load.group, load.block);
      }
    }
  }
  bad.flush();
  findable.flush();
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (shape_differs_[i] != 0 && is_synchronous(i)) {
      add_all_blocks(i);  // any block of its load may be the one, and others may have found it
    }
  }
}

void PlanBuilder::add_all_blocks(std::size_t request) {
  for (std::uint32_t g = 0; g < geometry_->num_groups(); ++g) {
    if (takes_part(GroupIndex{g})) {
      for (const BlockId block : requests_[request].groups[g].table) {
        bad_.add_failed(GroupIndex{g}, block);
        findable_.add(GroupIndex{g}, block);
      }
    }
  }
}

Touch PlanBuilder::touch_of(std::size_t request) const {
  if (shape_differs_[request] != 0) {
    return Touch::kShapeDiffers;
  }
  Touch touch = Touch::kNone;
  for (std::uint32_t i = 0; i < geometry_->num_groups(); ++i) {
    const GroupIndex g{i};
    if (!takes_part(g)) {
      continue;
    }
    const auto table = requests_[request].groups[i].table;
    if (bad_.marks().next_marked(g, table, 0) == table.size()) {
      continue;
    }
    if (is_synchronous(request) || findable_.next_marked(g, table, 0) < table.size()) {
      return Touch::kFindable;
    }
    touch = Touch::kUnfindable;
  }
  return touch;
}

std::size_t PlanBuilder::num_bytes(std::size_t request, Touch touch) const {
  if (touch == Touch::kNone) {
    return 0;
  }
  if (touch == Touch::kUnfindable) {
    return num_candidates(*geometry_, requests_[request]);
  }
  std::size_t num_entries = 0;
  for (std::uint32_t g = 0; g < geometry_->num_groups(); ++g) {
    num_entries += takes_part(GroupIndex{g}) ? requests_[request].groups[g].table.size() : 0;
  }
  return num_entries;
}

template <class Visit>
void PlanBuilder::for_each_entry(std::size_t request, const Visit& visit) const {
  for (std::uint32_t i = 0; i < geometry_->num_groups(); ++i) {
    const GroupIndex g{i};
    if (!takes_part(g)) {
      continue;
    }
    for (const BlockId block : requests_[request].groups[i].table) {
      visit(g, block);
    }
  }
}

void PlanBuilder::write(std::size_t request, Touch touch, std::span<std::uint8_t> bytes) {
  if (touch == Touch::kNone) {
    return;
  }
  if (touch == Touch::kUnfindable) {
    walk_.start(requests_[request], bad_);
    mark_candidates(*geometry_, walk_, bytes);
    return;
  }
  auto byte = bytes.begin();
  for_each_entry(request, [&](GroupIndex g, BlockId block) {
    *byte++ = findable_.contains(g, block) ? kEntryFindable : bad_.has_failed(g, block) ? kEntryFailed : kEntryGood;
  });
}

void PlanBuilder::add_entries(std::size_t request, std::span<const std::uint8_t> bytes) {
  auto byte = bytes.begin();
  for_each_entry(request, [&](GroupIndex g, BlockId block) {
    const std::uint8_t entry = *byte++;
    if (entry != kEntryGood) {
      bad_.add_failed(g, block);
    }
    if (entry == kEntryFindable) {
      findable_.add(g, block);
    }
  });
}

RecoveryPlan PlanBuilder::build(std::span<const Touch> touches, std::span<const std::span<const std::uint8_t>> safe) {
  std::vector<Touch> all(touches.begin(), touches.end());
  spread(all);
  promised_.clear();
  RecoveryPlan plan;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (all[i] != Touch::kNone) {
      plan.requests.push_back(recover(i, all[i], safe.empty() ? std::span<const std::uint8_t>() : safe[i]));
      append_evicted(i, plan.evicted);
    }
  }
  std::ranges::sort(plan.evicted);
  plan.evicted.erase(std::unique(plan.evicted.begin(), plan.evicted.end()), plan.evicted.end());
  return plan;
}

}  // namespace hostkv
