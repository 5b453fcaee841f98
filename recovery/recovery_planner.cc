#include "recovery/recovery_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "recovery/safe_boundary.h"

namespace hostkv {

RecoveryPlanner::RecoveryPlanner(Geometry geometry, LoadFailurePolicy policy)
    : impl_(std::make_unique<Impl>(std::move(geometry), policy)) {}
RecoveryPlanner::~RecoveryPlanner() = default;
RecoveryPlanner::RecoveryPlanner(RecoveryPlanner&&) noexcept = default;
RecoveryPlanner& RecoveryPlanner::operator=(RecoveryPlanner&&) noexcept = default;

Result<std::int64_t> RecoveryPlanner::safe_boundary(const HeldRequest& request, std::span<const FailedLoad> failed) {
  if (Status status = check_request(impl_->geometry, request); !status.ok()) {
    return error(std::move(status));
  }
  impl_->bad.clear();
  if (!add_failures(impl_->geometry, request, failed, impl_->bad)) {
    return 0;
  }
  impl_->walk.start(request, impl_->bad);
  return impl_->walk.top();
}

Status RecoveryPlanner::mark_safe(const HeldRequest& request, std::span<const FailedLoad> failed,
                                  std::span<std::uint8_t> safe) {
  if (Status status = check_request(impl_->geometry, request); !status.ok()) {
    return status;
  }
  if (safe.size() != num_candidates(request)) {
    return {StatusCode::kInvalidArgument, fmt::format("request {}: safe has {} bytes; expected {}, one a candidate",
                                                      request.id.value(), safe.size(), num_candidates(request))};
  }
  impl_->bad.clear();
  if (!add_failures(impl_->geometry, request, failed, impl_->bad)) {
    std::ranges::fill(safe, std::uint8_t{0});
    safe[0] = 1;
    return {};
  }
  impl_->walk.start(request, impl_->bad);
  mark_candidates(impl_->geometry, impl_->walk, safe);
  return {};
}

std::size_t RecoveryPlanner::num_candidates(const HeldRequest& request) const {
  return hostkv::num_candidates(impl_->geometry, request);
}

Result<RecoveryPlan> RecoveryPlanner::plan(std::span<const HeldRequest> requests, std::span<const FailedLoad> failed) {
  PlanBuilder& builder = impl_->builder;
  if (Status status = builder.start(requests); !status.ok()) {
    return error(std::move(status));
  }
  builder.add(failed);
  std::vector<Touch> touches;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    touches.push_back(builder.touch_of(i));
  }
  return builder.build(touches, {});
}

}  // namespace hostkv
