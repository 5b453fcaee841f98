// The plan of all ranks from what each rank knows, in at most two minima over bytes.

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "recovery/recovery_planner.h"

namespace hostkv {
namespace {

constexpr std::size_t kMostCandidates = std::size_t{1} << 28U;  // of a request, a byte each

// Before the first collective call, and alike on all ranks: none is left waiting.
Status check_candidates(const RecoveryPlanner& planner, std::span<const HeldRequest> requests) {
  for (const HeldRequest& request : requests) {
    if (const std::size_t count = planner.num_candidates(request); count > kMostCandidates) {
      return {StatusCode::kInvalidArgument, "request " + std::to_string(request.id.value()) + ": settled_tokens is " +
                                                std::to_string(request.settled_tokens) + ", " + std::to_string(count) +
                                                " boundaries to agree on; at most " + std::to_string(kMostCandidates) +
                                                " are allowed"};
    }
  }
  return {};
}

std::vector<Touch> touches_of(const PlanBuilder& builder, std::size_t num_requests) {
  std::vector<Touch> touches(num_requests);
  for (std::size_t i = 0; i < num_requests; ++i) {
    touches[i] = builder.touch_of(i);
  }
  return touches;
}

// The least over all ranks of each.
Status agree(Collective& collective, std::vector<Touch>& touches) {
  std::vector<std::uint8_t> bytes(touches.size());
  std::ranges::transform(touches, bytes.begin(), [](Touch touch) { return static_cast<std::uint8_t>(touch); });
  Status status = collective.all_reduce_min(bytes);
  std::ranges::transform(bytes, touches.begin(), [](std::uint8_t byte) { return static_cast<Touch>(byte); });
  return status;
}

// Where the bytes of each request begin, and the end of the last.
std::vector<std::size_t> offsets_of(const PlanBuilder& builder, std::span<const Touch> touches) {
  std::vector<std::size_t> offsets = {0};
  for (std::size_t i = 0; i < touches.size(); ++i) {
    offsets.push_back(offsets.back() + builder.num_bytes(i, touches[i]));
  }
  return offsets;
}

}  // namespace

Result<RecoveryPlan> plan_together(RecoveryPlanner& planner, Collective& collective,
                                   std::span<const HeldRequest> requests, std::span<const FailedLoad> own_failed) {
  PlanBuilder& builder = planner.impl_->builder;
  if (Status status = builder.start(requests); !status.ok()) {
    return error(std::move(status));
  }
  if (requests.empty()) {
    return RecoveryPlan{};
  }
  if (Status status = check_candidates(planner, requests); !status.ok()) {
    return error(std::move(status));
  }
  builder.add(own_failed);
  std::vector<Touch> touches = touches_of(builder, requests.size());
  if (Status status = agree(collective, touches); !status.ok()) {
    return error(std::move(status));
  }
  if (std::ranges::all_of(touches, [](Touch touch) { return touch == Touch::kNone; })) {
    return RecoveryPlan{};
  }

  // From here on everything hangs on what all ranks know together, so every rank comes to the same sizes and plan
  // (R22).
  const std::vector<std::size_t> offsets = offsets_of(builder, touches);
  std::vector<std::uint8_t> bytes(offsets.back());
  const auto bytes_of = [&](std::size_t i) {
    return std::span(bytes).subspan(offsets[i], offsets[i + 1] - offsets[i]);
  };
  for (std::size_t i = 0; i < requests.size(); ++i) {
    builder.write(i, touches[i], bytes_of(i));
  }
  if (Status status = collective.all_reduce_min(bytes); !status.ok()) {
    return error(std::move(status));
  }
  builder.restart();
  std::vector<std::span<const std::uint8_t>> safe(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (touches[i] == Touch::kUnfindable) {
      safe[i] = bytes_of(i);
    } else if (touches[i] != Touch::kNone) {
      builder.add_entries(i, bytes_of(i));
    }
  }
  return builder.build(touches, safe);
}

}  // namespace hostkv
