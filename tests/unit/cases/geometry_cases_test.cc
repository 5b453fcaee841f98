// Field cases A: block sizes, DCP, groups that take no part.

#include <gtest/gtest.h>

#include "tests/property/connector/host_shelf.h"
#include "tests/property/connector/planner_harness.h"
#include "tests/support/cases_rig.h"

namespace hostkv::testing {
namespace {

std::vector<std::int64_t> keys_of(const std::vector<JobBlock>& plan, const PlannerHarness& host,
                                  const RequestState& request, std::uint32_t group, std::int64_t end_tokens) {
  std::vector<std::int64_t> ends;
  const std::int64_t unit = request.hashes.hash_block_tokens;
  for (std::int64_t boundary = unit; boundary <= end_tokens; boundary += unit) {
    if (host.holds(request.hashes, group, boundary)) {
      ends.push_back(boundary);
    }
  }
  EXPECT_EQ(std::ssize(ends), count_of_group(plan, group));
  return ends;
}

using Ends = std::vector<std::int64_t>;

// 2 whole blocks and 4 states; a state at an odd multiple of 16 brings the half-filled block that it needs.
TEST(FieldCases, A1SpanIsPerGroupAttentionShardsOverDcpStatesDoNot) {
  const Geometry geometry = resolved({.groups = {full(16), mamba(16)}, .parallel = dcp_of(2)});
  ASSERT_TRUE(geometry.fine_hits());
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 64, 4);
  std::vector<BoundaryHandOff> hand_offs;
  for (std::uint32_t i = 1; i <= 4; ++i) {
    hand_offs.push_back(host.hand_off(request, 1, i, 16 * i));
  }
  const auto plan = host.plan(request, 64, hand_offs);
  host.finish_copies();
  EXPECT_EQ(keys_of(plan, host, request, 1, 64), (Ends{16, 32, 48, 64}));
  EXPECT_EQ(keys_of(plan, host, request, 0, 64), (Ends{16, 32, 48, 64})) << "32 and 64 are whole blocks of 32 tokens";
  EXPECT_EQ(host.hit(request.hashes, 65), 64);
  EXPECT_EQ(host.hit(request.hashes, 64), 48);
}

// A candidate that is no multiple of the span of 12288: floored by a coarse connector, taken by a fine one.
TEST(FieldCases, A5AnOddBoundaryUnderDcpIsFlooredCoarseAndRoundedUpFine) {
  const GeometrySpec spec{.groups = {mamba(1536), full(1536)}, .parallel = dcp_of(8)};
  for (const Boundaries boundaries : {Boundaries::kCoarse, Boundaries::kFine}) {
    const Geometry geometry = working_geometry(resolved(spec), boundaries).value();
    HostShelf host(geometry, 64'600);
    host.put(0, {61'440, 64'512});
    host.put(1, {12'288, 24'576, 36'864, 49'152, 61'440, 64'512});
    const bool fine = boundaries == Boundaries::kFine;
    const std::int64_t hit = host.hit(64'600);
    EXPECT_EQ(hit, fine ? 64'512 : 61'440);
    const auto load = host.load(0, hit);
    EXPECT_EQ(std::ranges::count(load, 1U, &std::pair<std::uint32_t, std::int64_t>::first), fine ? 6 : 5);
    EXPECT_EQ(std::ranges::count(load, 0U, &std::pair<std::uint32_t, std::int64_t>::first), 1);
  }
}

// At DCP 1 the pair is coarse: 128. With attention dealt out over 4 ranks the tail is a boundary: 144.
TEST(FieldCases, A6APromptThatEndsInsideABlockHitsItsTailWhereTheModelHasFineHits) {
  CasesRig coarse({.groups = {full(64), mamba(16)}, .hash_block_tokens = 16});
  coarse.store(1, "a", 144, 1, {64, 128});
  coarse.add(2, "aaaaaaaaab", 184);
  EXPECT_EQ(coarse.hit(2, 184), 128);

  CasesRig fine({.groups = {full(16), mamba(16)}, .parallel = dcp_of(4), .hash_block_tokens = 16});
  fine.store(1, "a", 144, 1, {64, 128, 144});
  fine.add(2, "aaaaaaaaab", 184);
  ASSERT_EQ(fine.hit(2, 184), 144);
  ASSERT_EQ(fine.admit(2, 184, 144), Status());
  const StepMetadata load = fine.step();
  EXPECT_EQ(blocks_of_group(load, 0, Direction::kLoad), 3) << "the last one is partly filled";
  EXPECT_EQ(blocks_of_group(load, 1, Direction::kLoad), 1);
  fine.answer_all(load);
  EXPECT_EQ(fine.connector->metrics().loaded_blocks, 4);
}

TEST(FieldCases, A10ScratchGroupsTakeNoPartAndGroupNumbersStay) {
  CasesRig rig({.groups = {full(3584), ring(4), mamba(3584), full(64)}, .hash_block_tokens = 64}, coarse_options());
  rig.add(1, "a", 7168);
  ASSERT_EQ(rig.admit(1, 7168), Status());
  const StepMetadata stores = rig.step(1, 0, 7168, {rig.hand_off(1, "a", 2, 3584), rig.hand_off(1, "a", 2, 7168)});
  for (const auto& [group, count] : {std::pair{0U, 2}, {1U, 0}, {2U, 2}, {3U, 112}}) {
    EXPECT_EQ(blocks_of_group(stores, group, Direction::kStore), count) << "group " << group;
  }
  rig.answer_all(stores);
  rig.add(2, "a", 7169);
  EXPECT_EQ(rig.hit(2, 7169), 7168);
}

// The scratch ring of 8 tokens is no multiple of the hash of 32: start and first store are right all the same.
TEST(FieldCases, A12AGroupThatIsNotCachedDoesNotStopTheFirstStore) {
  std::vector<KvCacheGroup> groups(7, full(32));
  groups.push_back(full(64));
  groups.push_back(ring(8));
  CasesRig rig({.groups = groups, .hash_block_tokens = 32});
  rig.store(1, "a", 64);
  EXPECT_EQ(rig.connector->metrics().stored_blocks, 7 * 2 + 1);
  rig.add(2, "a", 65);
  EXPECT_EQ(rig.hit(2, 65), 64);
}

TEST(FieldCases, A19APromptBelowTheCommonAlignmentNeverHitsALongerOneDoes) {
  CasesRig rig({.groups = {window(128, 256), mla(4096), window(32, 64), window(2, 4), window(8, 128)}}, {}, 1 << 16,
               1 << 16);
  EXPECT_EQ(rig.connector->geometry().min_reusable_tokens(), 4096);
  rig.store(1, "a", 8200);
  rig.add(2, "a", 2048);
  EXPECT_EQ(rig.hit(2, 2048), 0);
  rig.add(3, "a", 8200);
  EXPECT_EQ(rig.hit(3, 8200), 8192);
}

// 2 whole blocks of attention and 16 states; each state inside a block has the part of it that it needs.
TEST(FieldCases, A24SlotsOfAPrefixAreTheSumOverGroupsAlsoBetweenSpans) {
  const Geometry geometry = resolved({.groups = {full(1536), mamba(1536)}, .parallel = dcp_of(8)});
  ASSERT_TRUE(geometry.fine_hits());
  PlannerHarness host(geometry, 100);
  RequestState request = host.request(1, 24'576, 16);
  std::vector<BoundaryHandOff> hand_offs;
  for (std::uint32_t i = 1; i <= 16; ++i) {
    hand_offs.push_back(host.hand_off(request, 1, i, 1536 * i));
  }
  const auto plan = host.plan(request, 24'576, hand_offs);
  EXPECT_EQ(count_of_group(plan, 1), 16);
  EXPECT_EQ(count_of_group(plan, 0), 2 + 14);
  host.finish_copies();
  for (std::int64_t boundary = 1536; boundary <= 24'576; boundary += 1536) {
    EXPECT_EQ(host.hit(request.hashes, boundary + 1), boundary);
  }
}

// Every second prompt ends in the middle of a block of 64 over 2 ranks: the only state is at 288.
TEST(FieldCases, A6HalfOfAllPromptsUnderDcpEndInsideABlockAndHit) {
  CasesRig rig({.groups = {full(32), mamba(32)}, .parallel = dcp_of(2)});
  rig.store(1, "a", 300, 1, {288});
  rig.add(2, "a", 300);
  EXPECT_EQ(rig.hit(2, 300), 288);
}

}  // namespace
}  // namespace hostkv::testing
