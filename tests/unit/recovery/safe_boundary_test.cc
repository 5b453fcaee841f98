// The safe boundary of one request: what limits it, and views that are broken.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/support/geometry_builders.h"
#include "tests/support/held_request.h"

namespace hostkv::testing {
namespace {

constexpr std::uint32_t kLargest = std::numeric_limits<std::uint32_t>::max();

Geometry one_full() {
  return resolved({.groups = {full(16)}});
}
Geometry full_and_states() {
  return resolved({.groups = {full(64), mamba(64)}, .fine_hits = false});
}

TEST(SafeBoundary, WithoutFailuresIsTheTopCandidate) {
  EXPECT_EQ(safe_boundary_of(one_full(), {1, 70, {{1, 2, 3, 4, 5}}}, {}), 64);
  EXPECT_EQ(safe_boundary_of(one_full(), {1, 0, {{}}}, {}), 0);
}

TEST(SafeBoundary, EndsBeforeTheFirstBlockThatIsMissingFailedOrBehindTheTable) {
  const Geometry geometry = one_full();
  EXPECT_EQ(safe_boundary_of(geometry, {1, 64, {{1, 2, 0, 4}}}, {}), 32) << "null";
  EXPECT_EQ(safe_boundary_of(geometry, {1, 64, {{1, 2, 3}}}, {}), 48) << "a shorter table";
  EXPECT_EQ(safe_boundary_of(geometry, {1, 64, {{}}}, {}), 0) << "nothing is held";
  EXPECT_EQ(safe_boundary_of(geometry, {1, 64, {{1, 2, 3, 4}}}, {failed_load(1, 0, 3), failed_load(1, 0, 2)}), 16);
}

TEST(SafeBoundary, ChangesNothingForWhatFitsNothing) {
  const Geometry geometry = resolved({.groups = {full(16), ring(16)}});
  const HeldTables held(1, 64, {{1, 2, 3, 4}, {9}});
  const std::vector<FailedLoad> nothing = {failed_load(1, 0, 0), failed_load(1, 0, 9), failed_load(1, 1, 9),
                                           failed_load(1, 0, kLargest), failed_load(2, 7, 1)};
  EXPECT_EQ(safe_boundary_of(geometry, held, nothing), 64);
}

TEST(SafeBoundary, WhoseLoadItWasDoesNotMatter) {
  EXPECT_EQ(safe_boundary_of(one_full(), {1, 64, {{1, 2, 3, 4}}}, {failed_load(5, 0, 3)}), 32);
}

TEST(SafeBoundary, IsNothingWhereTheRanksDisagreeAboutTheShape) {
  EXPECT_EQ(safe_boundary_of(one_full(), {1, 64, {{1, 2, 3, 4}}}, {failed_load(1, 1, 3)}), 0);
}

TEST(SafeBoundary, FindsBlocksWithWildNumbers) {
  const HeldTables held(1, 64, {{1, kLargest, (1U << 26U) - 1, 1U << 26U}});
  EXPECT_EQ(safe_boundary_of(one_full(), held, {failed_load(1, 0, kLargest)}), 16);
  EXPECT_EQ(safe_boundary_of(one_full(), held, {failed_load(1, 0, (1U << 26U) - 1)}), 32);
  EXPECT_EQ(safe_boundary_of(one_full(), held, {failed_load(1, 0, 1U << 26U)}), 48);
  EXPECT_EQ(safe_boundary_of(one_full(), held, {failed_load(1, 0, kLargest - 1)}), 64);
}

TEST(SafeBoundary, ForgetsWhatFailedInTheCallBefore) {
  RecoveryPlanner planner(one_full());
  const std::vector<HeldTables> held = {{1, 64, {{1, 5000, kLargest, 4}}}};
  const HeldViews views(held);
  for (const std::uint32_t block : {1U, 5000U, kLargest, 4U}) {
    const std::vector<FailedLoad> failed = {failed_load(1, 0, block)};
    EXPECT_LT(planner.safe_boundary(views.front(), failed).value(), 64);
    EXPECT_EQ(planner.safe_boundary(views.front(), {}).value(), 64) << "after block " << block;
  }
}

TEST(SafeBoundary, TakesAStateFromAnyColumn) {
  const Geometry geometry = full_and_states();
  EXPECT_EQ(safe_boundary_of(geometry, {1, 256, {{1, 2, 3, 4}, {7, 8, 0, 0}}, {{}, {192, 64, 0, 0}}}, {}), 192);
  EXPECT_EQ(
      safe_boundary_of(geometry, {1, 256, {{1, 2, 3, 4}, {7, 8, 0, 0}}, {{}, {192, 64, 0, 0}}}, {failed_load(1, 1, 7)}),
      64);
}

// Twice in the table: the one at its position counts, else the first, so that ranks which lost different ones agree.
TEST(SafeBoundary, OfTwoStatesAfterAsManyTokensOneCounts) {
  const Geometry geometry = full_and_states();
  const HeldTables at_its_place(1, 128, {{1, 2}, {7, 8}}, {{}, {128, 128}});
  EXPECT_EQ(safe_boundary_of(geometry, at_its_place, {failed_load(1, 1, 7)}), 128);
  EXPECT_EQ(safe_boundary_of(geometry, at_its_place, {failed_load(1, 1, 8)}), 0);
  const HeldTables elsewhere(1, 128, {{1, 2}, {7, 0, 8, 9}}, {{}, {128, 0, 128, 64}});
  EXPECT_EQ(safe_boundary_of(geometry, elsewhere, {failed_load(1, 1, 8)}), 128);
  EXPECT_EQ(safe_boundary_of(geometry, elsewhere, {failed_load(1, 1, 7)}), 64);
}

TEST(SafeBoundary, NeedsNothingWhereAChunkBegins) {
  const Geometry geometry = resolved({.groups = {chunked(16, 64)}});
  const HeldTables held(1, 128, {{1, 2, 3, 4, 5, 6, 7, 8}});
  EXPECT_EQ(safe_boundary_of(geometry, held, {failed_load(1, 0, 8)}), 128) << "the next chunk reads none of them";
  const HeldTables longer(1, 120, {{1, 2, 3, 4, 5, 6, 7, 8}});
  EXPECT_EQ(safe_boundary_of(geometry, longer, {failed_load(1, 0, 6)}), 80);
  EXPECT_EQ(safe_boundary_of(geometry, longer, {failed_load(1, 0, 5)}), 64);
  EXPECT_EQ(safe_boundary_of(geometry, {1, 120, {{0, 0, 0, 0, 0, 0, 7}}}, {}), 64) << "all null, and nothing is read";
}

TEST(SafeBoundary, MarksCandidatesForOtherRanks) {
  RecoveryPlanner planner(one_full());
  const std::vector<HeldTables> held = {{1, 70, {{1, 2, 3, 4, 5}}}};
  const HeldViews views(held);
  ASSERT_EQ(planner.num_candidates(views.front()), 5U);
  std::vector<std::uint8_t> safe(5, 9);
  const std::vector<FailedLoad> failed = {failed_load(1, 0, 4)};
  EXPECT_EQ(planner.mark_safe(views.front(), failed, safe), Status());
  EXPECT_EQ(safe, (std::vector<std::uint8_t>{1, 1, 1, 1, 0}));
  safe.resize(4);
  EXPECT_NE(planner.mark_safe(views.front(), failed, safe).message().find("request 1: safe has 4 bytes; expected 5"),
            std::string::npos);
}

std::string refusal_of_view(const Geometry& geometry, const HeldTables& held) {
  RecoveryPlanner planner(geometry);
  const std::vector<HeldTables> one = {held};
  const auto answer = planner.safe_boundary(HeldViews(one).front(), {});
  EXPECT_FALSE(answer.has_value());
  return answer ? "" : answer.error().message();
}

TEST(SafeBoundary, RefusesBrokenViewsByRequestGroupAndSize) {
  const Geometry geometry = full_and_states();
  EXPECT_EQ(refusal_of_view(geometry, {3, 64, {{1}, {7, 0}}, {{}, {64}}}),
            "request 3: group 1 (mamba): state_tokens has 1 entries; expected 2, one a table entry");
  EXPECT_EQ(refusal_of_view(geometry, {3, 64, {{1}, {7}}, {{64}, {64}}}),
            "request 3: group 0 (full): state_tokens has 1 entries; expected none, the group keeps no states");
  EXPECT_EQ(refusal_of_view(geometry, {3, 64, {{1}, {7}}, {{}, {-64}}}),
            "request 3: group 1 (mamba): state_tokens holds -64; allowed: at least 0");
  EXPECT_EQ(refusal_of_view(geometry, {3, 64, {{1}}}), "request 3: groups has 1 entries; the geometry has 2 groups");
  EXPECT_EQ(refusal_of_view(geometry, {3, -1, {{1}, {7}}, {{}, {64}}}),
            "request 3: settled_tokens -1 is out of range; allowed: 0 to 1152921504606846976");
}

TEST(SafeBoundary, TakesTheLargestTokenNumbers) {
  const std::int64_t most = std::int64_t{1} << 60U;
  EXPECT_EQ(safe_boundary_of(one_full(), {1, most, {{1, 2}}}, {}), 32);
  const Geometry window_alone = resolved({.groups = {window(16, 33)}});
  EXPECT_EQ(safe_boundary_of(window_alone, {1, most, {{1, 2, 3}}}, {failed_load(1, 0, 2)}), 16);
}

}  // namespace
}  // namespace hostkv::testing
