// Ranks that each know their own failures come to the plan of a scheduler that knows all.

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/geometry_builders.h"
#include "tests/support/recovery_plans.h"

namespace hostkv::testing {
namespace {

// Counts the calls of one rank.
class CountedCollective final : public Collective {
 public:
  explicit CountedCollective(Collective& inner) : inner_(&inner) {}
  [[nodiscard]] std::int64_t num_ranks() const override { return inner_->num_ranks(); }
  [[nodiscard]] RankIndex rank() const override { return inner_->rank(); }
  Status all_reduce_min(std::span<std::uint8_t> bytes) override {
    ++num_calls;
    return inner_->all_reduce_min(bytes);
  }
  int num_calls = 0;

 private:
  Collective* inner_;
};

struct Outcome {
  std::string text;  // of the plan, or the code of the failure
  int num_calls = 0;
};

// `failed` [ranks].
std::vector<Outcome> plan_on_ranks(const Geometry& geometry, const std::vector<HeldTables>& requests,
                                   const std::vector<std::vector<FailedLoad>>& failed) {
  auto ranks = create_in_process_collective(std::ssize(failed), std::chrono::minutes(5)).value();
  const HeldViews views(requests);
  std::vector<Outcome> outcomes(failed.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < failed.size(); ++rank) {
    threads.emplace_back([&, rank] {
      CountedCollective collective(*ranks[rank]);
      RecoveryPlanner planner(geometry);
      const auto plan = plan_together(planner, collective, views.all(), failed[rank]);
      outcomes[rank] = {plan ? text_of(*plan) : std::string(status_code_name(plan.error().code())),
                        collective.num_calls};
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return outcomes;
}

void expect_on_all(const std::vector<Outcome>& outcomes, const std::string& text, int num_calls) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.text, text);
    EXPECT_EQ(outcome.num_calls, num_calls);
  }
}

// A window that moves left needs blocks that are gone, so the least of the ranks' own answers (192) is not safe.
TEST(PlanTogether, IntersectsTheSafeSetsNotTheAnswers) {
  const Geometry geometry = resolved({.groups = {full(64), mamba(64)}, .fine_hits = false});
  const HeldTables held(1, 256, {{1, 2, 3, 4}, {11, 12, 13, 14}}, {{}, {64, 128, 192, 256}});
  const std::vector<std::vector<FailedLoad>> failed = {
      {failed_load(1, 1, 14, 0)}, {failed_load(1, 1, 13, 1), failed_load(1, 1, 14, 1)}, {}};
  EXPECT_EQ(safe_boundary_of(geometry, held, failed[0]), 192);
  EXPECT_EQ(safe_boundary_of(geometry, held, failed[1]), 128);
  expect_on_all(plan_on_ranks(geometry, {held}, failed), "1: rewind 128", 2);
  // Each rank alone would stop at 192 or at 128; together neither is left.
  expect_on_all(plan_on_ranks(geometry, {held},
                              {{failed_load(1, 1, 14)},
                               {failed_load(1, 1, 12), failed_load(1, 1, 14)},
                               {failed_load(1, 1, 13), failed_load(1, 1, 14)}}),
                "1: rewind 64", 2);
}

TEST(PlanTogether, OneCallIsEnoughWhereNothingFailedAndNoneWhereNobodyIsAsked) {
  const Geometry geometry = resolved({.groups = {full(16)}});
  expect_on_all(plan_on_ranks(geometry, {{1, 64, {{1, 2, 3, 4}}}}, {{}, {}}), "", 1);
  expect_on_all(plan_on_ranks(geometry, {{1, 64, {{1, 2, 3, 4}}}}, {{failed_load(1, 0, 9)}, {}}), "", 1);
  expect_on_all(plan_on_ranks(geometry, {}, {{failed_load(1, 0, 1)}, {}}), "", 0);
}

TEST(PlanTogether, TellsEveryRankWhichBlocksOfSynchronousLoadsFailed) {
  const Geometry geometry = resolved({.groups = {full(16), window(16, 33)}});
  const std::vector<HeldTables> requests = {{1, 64, {{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}}, {}, LoadMode::kSynchronous},
                                            {2, 48, {{6, 7, 8}, {6, 7, 8}}}};
  const std::vector<std::vector<FailedLoad>> failed = {
      {failed_load(1, 0, 4)}, {failed_load(2, 1, 8)}, {failed_load(1, 1, 4), failed_load(2, 1, 7)}};
  expect_on_all(plan_on_ranks(geometry, requests, failed), "1: preempt 48; 2: rewind 16; evicted 0/4 0/5 1/4 1/5", 2);
}

TEST(PlanTogether, OneRankWithAnotherShapeIsEnough) {
  const Geometry geometry = resolved({.groups = {full(16)}});
  const std::vector<HeldTables> requests = {{1, 64, {{1, 2, 3, 4}}}, {2, 64, {{5, 6, 7, 8}}}};
  expect_on_all(plan_on_ranks(geometry, requests, {{failed_load(1, 0, 4)}, {failed_load(1, 1, 4)}, {}}), "1: rewind 0",
                2);
}

// It might be in the cache by the word of one rank; the others know it as the target of a load that waits.
TEST(PlanTogether, EvictsWhatOneRankSaysOthersMayHaveFound) {
  const Geometry geometry = resolved({.groups = {full(16)}});
  const std::vector<HeldTables> requests = {{1, 64, {{1, 2, 3, 4}}}};
  expect_on_all(plan_on_ranks(geometry, requests, {{failed_load(1, 0, 3)}, {failed_load(9, 0, 2)}}),
                "1: rewind 16; evicted 0/2", 2);
}

TEST(PlanTogether, HandsTheFailureOfTheCollectiveOnAndUsesNothing) {
  const Geometry geometry = resolved({.groups = {full(16)}});
  const std::vector<HeldTables> requests = {{1, 64, {{1, 2, 3, 4}}}};
  const HeldViews views(requests);
  auto ranks = create_in_process_collective(2, std::chrono::minutes(5)).value();
  ranks[1].reset();
  RecoveryPlanner planner(geometry);
  const std::vector<FailedLoad> failed = {failed_load(1, 0, 3)};
  EXPECT_EQ(plan_together(planner, *ranks[0], views.all(), failed).error().code(), StatusCode::kUnavailable);
  EXPECT_EQ(planner.safe_boundary(views.front(), {}).value(), 64);
}

TEST(PlanTogether, RefusesABrokenViewBeforeItCallsAnybody) {
  const Geometry geometry = resolved({.groups = {full(16)}});
  for (const std::int64_t settled_tokens : {std::int64_t{-1}, std::int64_t{1} << 60U}) {
    const std::vector<HeldTables> broken = {{1, settled_tokens, {{1}}}};
    auto ranks = create_in_process_collective(2, std::chrono::minutes(5)).value();
    CountedCollective collective(*ranks[0]);
    RecoveryPlanner planner(geometry);
    const std::vector<FailedLoad> failed = {failed_load(1, 0, 1)};
    EXPECT_EQ(plan_together(planner, collective, HeldViews(broken).all(), failed).error().code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(collective.num_calls, 0);
  }
}

}  // namespace
}  // namespace hostkv::testing
