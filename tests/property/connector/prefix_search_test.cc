// Lookups with worked answers: vectors V1 to V7 and field cases as far as they concern the host at coarse boundaries.

#include <gtest/gtest.h>

#include "tests/property/connector/host_shelf.h"

namespace hostkv::testing {
namespace {

using Load = HostShelf::Load;

TEST(PrefixSearch, V1ALastTokenIsAlwaysLeftToCompute) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  HostShelf host(geometry, 96);
  host.put_blocks(0, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(host.hit(100), 96);
  EXPECT_EQ(host.hit(97), 96);
  EXPECT_EQ(host.hit(96), 80) << "R3: the sixth block is of no use to an identical prompt";
  EXPECT_EQ(host.hit(1), 0);
}

TEST(PrefixSearch, V2ADraftGroupDropsItsLastBlock) {
  const Geometry geometry = coarse({.groups = {draft(full(16))}});
  HostShelf host(geometry, 100);
  host.put_blocks(0, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(host.hit(100), 80);
  EXPECT_EQ(host.load(0, 80), (Load{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}})) << "the dropped block is not loaded";
}

// As vLLM answers it: conformance cases eagle-one-group-on-boundary and eagle-two-groups-on-boundary.
TEST(PrefixSearch, ADraftUnitReachesTheLastTokenButOneAloneAndTheLastHashBesideOtherGroups) {
  const Geometry one = coarse({.groups = {draft(full(16))}});
  HostShelf alone(one, 96);
  alone.put_blocks(0, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(alone.hit(96), 64);
  EXPECT_EQ(alone.hit(97), 80);
  const Geometry two = coarse({.groups = {full(16), draft(full(16))}});
  HostShelf beside(two, 96);
  beside.put_blocks(0, {0, 1, 2, 3, 4, 5});
  beside.put_blocks(1, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(beside.hit(96), 80);
}

TEST(PrefixSearch, V3AWindowNeedsTheRunBeforeTheBoundary) {
  const Geometry geometry = coarse({.groups = {window(16, 40)}});
  HostShelf deep(geometry, 100);
  deep.put_blocks(0, {3, 4, 5});
  EXPECT_EQ(deep.hit(100), 96);
  EXPECT_EQ(deep.load(0, 96), (Load{{0, 3}, {0, 4}, {0, 5}}));
  HostShelf head(geometry, 100);
  head.put_blocks(0, {0, 1});
  EXPECT_EQ(head.hit(100), 32) << "a run that begins with the prompt is never too short";
  HostShelf middle(geometry, 100);
  middle.put_blocks(0, {1, 2});
  EXPECT_EQ(middle.hit(100), 0);
}

TEST(PrefixSearch, V4AWindowCutsFullAttention) {
  const Geometry geometry = coarse({.groups = {full(16), window(16, 40)}});
  HostShelf host(geometry, 100);
  host.put_blocks(0, {0, 1, 2, 3, 4, 5});
  host.put_blocks(1, {1, 2, 3});
  EXPECT_EQ(host.hit(100), 64);
}

TEST(PrefixSearch, V5AStateIsFoundAtExactlyTheBoundary) {
  const Geometry geometry = coarse({.groups = {full(32), mamba(32)}});
  HostShelf host(geometry, 160);
  host.put_blocks(0, {0, 1, 2, 3, 4});
  host.put(1, {64, 128});
  EXPECT_EQ(host.hit(160), 128);
  host.remove(1, 128);
  EXPECT_EQ(host.hit(160), 64);
}

TEST(PrefixSearch, V6AnExternalLoadCopiesOneStateBehindItsAttentionBlocks) {
  const Geometry geometry = coarse({.groups = {full(32), mamba(32)}});
  HostShelf host(geometry, 160);
  host.put_blocks(0, {0, 1, 2, 3, 4});
  host.put(1, {64, 128});
  EXPECT_EQ(host.load(0, host.hit(160)), (Load{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 3}}));
}

TEST(PrefixSearch, V7ALocalHitIsNotLoadedAgain) {
  const Geometry geometry = coarse({.groups = {full(32), mamba(32)}});
  HostShelf host(geometry, 160);
  host.put_blocks(0, {2, 3});  // 0 and 1 are on the device only
  host.put(1, {128});
  EXPECT_EQ(host.hit(160, 64), 128);
  EXPECT_EQ(host.load(64, 128), (Load{{0, 2}, {0, 3}, {1, 3}}));
}

TEST(PrefixSearch, A8AMissingShareOfADealtOutBlockEndsTheHit) {
  const Geometry geometry = coarse({.groups = {full(16)}, .parallel = dcp_of(4)});
  HostShelf host(geometry, 200);
  host.put(0, {64, 128, 192});
  EXPECT_EQ(host.hit(200), 192);
  host.remove(0, 128);  // a span that one rank lacks is published for none
  EXPECT_EQ(host.hit(200), 64);
}

TEST(PrefixSearch, A21TheHitRateDoesNotDependOnTheNumberOfRanks) {
  for (const std::int64_t dcp : {1, 2, 4, 8}) {
    const Geometry geometry = coarse({.groups = {full(16)}, .parallel = dcp_of(dcp)});
    HostShelf host(geometry, 16'000);
    for (std::int64_t boundary = 16 * dcp; boundary <= 16'000; boundary += 16 * dcp) {
      host.put(0, {boundary});
    }
    EXPECT_EQ(host.hit(16'100), 16'000) << "dcp " << dcp;
  }
}

TEST(PrefixSearch, B4AnswersTheLargestBoundaryThatAllGroupsHold) {
  const Geometry geometry = coarse({.groups = {full(256), mamba(256)}});
  HostShelf host(geometry, 1100);
  host.put_blocks(0, {0, 1});
  host.put_blocks(1, {0, 3});
  EXPECT_EQ(host.hit(1100), 256) << "neither the largest of the groups' hits, 1024, nor the smallest, 512";
}

TEST(PrefixSearch, B14LoadsAllGroupsAtOneBoundaryOrNothing) {
  const Geometry geometry = coarse({.groups = {full(64), mamba(64)}});
  HostShelf host(geometry, 300);
  host.put(0, {64, 128, 192});
  host.put(1, {64, 128, 192});
  EXPECT_EQ(host.hit(300), 192);
  host.remove(1, 192);
  EXPECT_EQ(host.hit(300), 128);
  EXPECT_EQ(host.load(0, 128), (Load{{0, 0}, {0, 1}, {1, 1}}));
}

TEST(PrefixSearch, F5GivesTheLastBlockBackFromTheExternalSpan) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  HostShelf host(geometry, 64);
  host.put_blocks(0, {0, 1, 2, 3});
  EXPECT_EQ(host.hit(64, 32) - 32, 16);
}

TEST(PrefixSearch, C7LoadsOnlyTheWindowOfALongPrefix) {
  const Geometry geometry = coarse({.groups = {window(16, 64)}});
  HostShelf host(geometry, 640);
  std::vector<std::int64_t> blocks;
  for (std::int64_t i = 0; i < 40; ++i) {
    blocks.push_back(i);
  }
  host.put_blocks(0, blocks);
  EXPECT_EQ(host.hit(641), 640);
  EXPECT_EQ(host.load(0, 640), (Load{{0, 36}, {0, 37}, {0, 38}, {0, 39}}));
}

// R9.
TEST(PrefixSearch, DoesNotSeeABlockThatIsStillOnItsWay) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  HostShelf host(geometry, 100);
  host.put_blocks(0, {0, 2});
  host.put_unfinished(0, 32);
  EXPECT_EQ(host.hit(100), 16);
}

// R20: tokens that are kept behind a window are never read, but the engine gives their block a row and a key.
TEST(PrefixSearch, ABlockThatIsOnlyRetainedIsStillPartOfTheHit) {
  const Geometry geometry = coarse({.groups = {window(16, 17, 16)}});
  HostShelf host(geometry, 100);
  host.put_blocks(0, {3, 4, 5});
  EXPECT_EQ(host.hit(100), 96);
  EXPECT_EQ(host.load(0, 96), (Load{{0, 4}, {0, 5}}));
  host.remove(0, 5 * 16);
  EXPECT_EQ(host.hit(100), 0) << "block 4 would be filled with nothing and found again";
}

TEST(PrefixSearch, AModelWithAStateThatCannotBeFoundHasNoHits) {
  const Geometry geometry = coarse({.groups = {full(16), mamba(16, MambaMode::kNone)}});
  HostShelf host(geometry, 100);
  host.put_blocks(0, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(host.hit(100), 0);
}

// R25: three blocks of 16 tokens would share the key of the fourth.
TEST(PrefixSearch, AGeometryWhoseBlocksEndAtNoHashIsRefused) {
  const Geometry geometry = resolved({.groups = {full(16), mamba(64, MambaMode::kAll)}});
  ASSERT_EQ(geometry.hash_block_tokens(), 64);
  const Result<Geometry> refused = working_geometry(geometry, Boundaries::kCoarse);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.error().message().find("group 0"), std::string::npos) << refused.error().message();
  EXPECT_NE(refused.error().message().find("blocks of 64 tokens"), std::string::npos) << refused.error().message();
}

TEST(PrefixSearch, StatesOfModeAllAreFoundAtTheirBoundary) {
  const Geometry geometry = coarse({.groups = {full(64), mamba(16, MambaMode::kAll)}});
  HostShelf host(geometry, 256);
  host.put(0, {64, 128, 192});
  host.put(1, {64, 128});
  EXPECT_EQ(host.hit(256), 128);
  EXPECT_EQ(host.load(0, 128), (Load{{0, 0}, {0, 1}, {1, 7}}));
}

TEST(PrefixSearch, AShorterHashListThanThePromptLimitsTheHit) {
  const Geometry geometry = coarse({.groups = {full(16)}});
  HostShelf host(geometry, 40);
  host.put_blocks(0, {0, 1});
  EXPECT_EQ(host.hit(1000), 32);
  EXPECT_EQ(host.hit(1000, 32), 32);
}

}  // namespace
}  // namespace hostkv::testing
