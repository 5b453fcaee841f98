#ifndef HOSTKV_TESTS_SUPPORT_RECOVERY_PLANS_H_
#define HOSTKV_TESTS_SUPPORT_RECOVERY_PLANS_H_

// Plans of tests, and as text: "1: rewind 32; 2: keep 64; evicted 0/3 0/5".

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/held_request.h"

namespace hostkv::testing {

using Ranges = std::vector<BlockIndexRange>;

inline RecoveryPlan plan_of(const Geometry& geometry, const std::vector<HeldTables>& requests,
                            const std::vector<FailedLoad>& failed,
                            LoadFailurePolicy policy = LoadFailurePolicy::kRecompute) {
  RecoveryPlanner planner(geometry, policy);
  const HeldViews views(requests);
  Result<RecoveryPlan> plan = planner.plan(views.all(), failed);
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message());
  return plan ? *std::move(plan) : RecoveryPlan{};
}

// Group and number of each.
inline std::vector<EvictedBlock> blocks(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& names) {
  std::vector<EvictedBlock> out;
  for (const auto& [group, block] : names) {
    out.push_back({GroupIndex{group}, BlockId{block}});
  }
  return out;
}

inline std::string text_of(const RecoveryPlan& plan) {
  constexpr std::array kNames = {"rewind", "preempt", "keep", "end"};
  std::string text;
  for (const RequestRecovery& recovery : plan.requests) {
    text += (text.empty() ? "" : "; ") + std::to_string(recovery.id.value()) + ": " +
            kNames[static_cast<std::size_t>(recovery.action)] + " " + std::to_string(recovery.resume_tokens);
  }
  text += plan.evicted.empty() ? "" : "; evicted";
  for (const EvictedBlock& block : plan.evicted) {
    text += " " + std::to_string(block.group.value()) + "/" + std::to_string(block.block.value());
  }
  return text;
}

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_RECOVERY_PLANS_H_
