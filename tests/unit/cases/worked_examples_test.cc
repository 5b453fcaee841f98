// The worked examples V1 to V15 of the engine's semantics, at the level of the connector.

#include <gtest/gtest.h>

#include "tests/support/cases_rig.h"

namespace hostkv::testing {
namespace {

// Blocks of a group that a step loads, by their index in the request's table.
std::vector<std::size_t> loaded_indices(CasesRig& rig, const StepMetadata& load, std::uint64_t id,
                                        std::uint32_t group) {
  std::vector<std::size_t> indices;
  const std::vector<BlockId>& table = rig.tables[id][group];
  for (const StepJob& job : load.jobs) {
    for (const StepBlock& block : job.blocks) {
      if (block.group == GroupIndex{group}) {
        indices.push_back(static_cast<std::size_t>(std::ranges::find(table, block.block) - table.begin()));
      }
    }
  }
  std::ranges::sort(indices);
  return indices;
}

using Indices = std::vector<std::size_t>;

TEST(WorkedExamples, V1PromptsOf96To100TokensOverBlocksOf16) {
  CasesRig rig({.groups = {full(16)}});
  rig.store(1, "a", 100);
  ASSERT_EQ(rig.connector->metrics().stored_blocks, 6);
  for (const auto& [tokens, hit] : {std::pair{100, 96}, {97, 96}, {96, 80}}) {
    const auto id = static_cast<std::uint64_t>(tokens);
    rig.add(id, "a", tokens);
    EXPECT_EQ(rig.hit(id, tokens), hit);
  }
}

TEST(WorkedExamples, V2ADraftGroupAnswersOneBlockLess) {
  CasesRig rig({.groups = {draft(full(16))}});
  rig.store(1, "a", 100);
  rig.add(2, "a", 100);
  ASSERT_EQ(rig.hit(2, 100), 80);
  ASSERT_EQ(rig.admit(2, 100, 80), Status());
  EXPECT_EQ(blocks_of_group(rig.step(), 0, Direction::kLoad), 5);
}

// Attention is there up to 160, of which 128 leave a token to compute. The state at 128 is lost: the hit is 64, and a
// state at 128 would help the next sharer.
TEST(WorkedExamples, V5TheSharedPrefixBehindTheHitIsShown) {
  CasesRig rig({.groups = {full(32), mamba(32)}});
  for (std::int64_t boundary = 32; boundary <= 160; boundary += 32) {
    rig.cache_new("a", 0, boundary);
  }
  rig.cache_new("a", 1, 64);
  const BlockId deep = rig.cache_new("a", 1, 128);
  rig.add(1, "a", 160);
  EXPECT_EQ(rig.match(1, 160).num_external_tokens, 128);
  rig.device.pin({&deep, 1});
  rig.device.drop_keys(deep);
  EXPECT_EQ(rig.match(1, 160).num_external_tokens, 64);
  EXPECT_EQ(rig.match(1, 160).shared_prefix_tokens, 128);
}

TEST(WorkedExamples, V6ALoadOf128TokensFillsFourBlocksAndOneState) {
  CasesRig rig({.groups = {full(32), mamba(32)}});
  rig.store(1, "a", 160, 1, {64, 128});
  rig.add(2, "a", 160);
  ASSERT_EQ(rig.hit(2, 160), 128);
  ASSERT_EQ(rig.admit(2, 128, 128), Status());
  const StepMetadata load = rig.step();
  EXPECT_EQ(loaded_indices(rig, load, 2, 0), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(loaded_indices(rig, load, 2, 1), Indices{3});
}

TEST(WorkedExamples, V7BehindALocalHitOnlyTheRestIsLoaded) {
  CasesRig rig({.groups = {full(32), mamba(32)}});
  rig.store(1, "a", 160, 1, {64, 128});
  rig.add(2, "a", 160);
  ASSERT_EQ(rig.hit(2, 160, 64), 64);
  ASSERT_EQ(rig.admit(2, 128, 64, 64), Status());
  const StepMetadata load = rig.step();
  EXPECT_EQ(loaded_indices(rig, load, 2, 0), (Indices{2, 3}));
  EXPECT_EQ(loaded_indices(rig, load, 2, 1), Indices{3});
}

// Blocks of 64, hashes of 16: the tail of a prompt of 150 is at 144, a third of a block behind 128.
TEST(WorkedExamples, V8TheTailOfAPromptIsABoundary) {
  CasesRig rig({.groups = {full(64), mamba(64)}, .hash_block_tokens = 16});
  rig.store(1, "a", 150, 1, {128, 144});
  rig.add(2, "aaaaaaaaab", 200);
  ASSERT_EQ(rig.hit(2, 200), 144);
  ASSERT_EQ(rig.admit(2, 200, 144), Status());
  const StepMetadata load = rig.step();
  EXPECT_EQ(loaded_indices(rig, load, 2, 0), (Indices{0, 1, 2}));
  EXPECT_EQ(loaded_indices(rig, load, 2, 1), Indices{2});
  rig.answer_all(load);
  EXPECT_EQ(rig.connector->take_load_outcomes().size(), 1U);
}

// With prefill checkpoints the whole prompt is one chunk and the state at 144 sits in another column in that step.
TEST(WorkedExamples, V8ACheckpointIsKeyedByItsBoundaryNotByItsColumn) {
  CasesRig rig({.groups = {mamba(64), full(64)}, .hash_block_tokens = 16});
  rig.add(1, "a", 150);
  ASSERT_EQ(rig.admit(1, 150), Status());
  const BlockId exported = rig.tables[1][0][1];
  rig.cache("a", 0, 144, exported);
  const BoundaryHandOff hand_off{RequestId{1}, GroupIndex{0}, exported, 144};
  const StepMetadata stores = rig.step(1, 0, 150, {hand_off});
  EXPECT_EQ(blocks_of_group(stores, 0, Direction::kStore), 1);
  EXPECT_EQ(blocks_of_group(stores, 1, Direction::kStore), 3);
  rig.answer_all(stores);
  rig.add(2, "a", 150);
  EXPECT_EQ(rig.hit(2, 150), 144);
  rig.add(3, "aaaaaaaab", 150);
  EXPECT_EQ(rig.hit(3, 150), 0) << "128 would be the column's own boundary: there is no state at it";
}

// Attention of 16 over 4 ranks, states of 16: the hit at 80 needs the partial key of the second block.
TEST(WorkedExamples, V9AnOddBoundaryUnderDcpNeedsThePartialBlock) {
  const GeometrySpec spec{.groups = {full(16), mamba(16)}, .parallel = dcp_of(4)};
  CasesRig rig(spec);
  rig.store(1, "a", 100, 1, {64, 80});
  rig.add(2, "a", 100);
  ASSERT_EQ(rig.hit(2, 100), 80);
  ASSERT_EQ(rig.admit(2, 100, 80), Status());
  const StepMetadata load = rig.step();
  EXPECT_EQ(loaded_indices(rig, load, 2, 0), (Indices{0, 1}));
  EXPECT_EQ(loaded_indices(rig, load, 2, 1), Indices{4});

  CasesRig without(spec);
  for (const std::int64_t boundary : {64, 80}) {
    without.cache_new("a", 1, boundary);
  }
  without.cache_new("a", 0, 64);
  without.add(1, "a", 100);
  EXPECT_EQ(without.hit(1, 100), 64) << "the block behind 64 has no key at 80";
}

// Tables of align states change in place; what is kept is what was handed off.
TEST(WorkedExamples, V11StatesAreHandedOffAsTheTableMovesOn) {
  CasesRig rig({.groups = {full(32), mamba(32)}});
  rig.add(1, "a", 100);
  ASSERT_EQ(rig.admit(1, 160), Status());
  const BoundaryHandOff first = rig.hand_off(1, "a", 1, 96);
  rig.tables[1][1] = {kNullBlock, kNullBlock, first.block};
  ASSERT_EQ(rig.tell(1, 0), Status());
  const StepMetadata chunk = rig.step(1, 0, 96, {first});
  EXPECT_EQ(blocks_of_group(chunk, 1, Direction::kStore), 1);
  rig.answer_all(chunk);
  rig.tables[1][1] = {kNullBlock, kNullBlock, first.block, rig.device.take()};
  ASSERT_EQ(rig.tell(1, 0), Status());
  EXPECT_TRUE(rig.step(1, 96, 100).jobs.empty());
  rig.tables[1][1][2] = kNullBlock;
  ASSERT_EQ(rig.tell(1, 0), Status());
  EXPECT_TRUE(rig.step(1, 100, 101).jobs.empty());
  rig.add(2, "a", 100);
  EXPECT_EQ(rig.hit(2, 100), 96);
}

// Abort while the load is in flight: its targets stay pinned until the copy has ended, then nothing is left.
TEST(WorkedExamples, V14AnAbortedLoadKeepsItsBlocksUntilItHasEnded) {
  CasesRig rig({.groups = {full(16)}}, {}, 64, 64);
  rig.store(1, "a", 64);
  const std::int64_t before = rig.connector->metrics().pinned_device_blocks;
  rig.add(2, "a", 65);
  ASSERT_EQ(rig.hit(2, 65), 64);
  ASSERT_EQ(rig.admit(2, 65, 64), Status());
  const StepMetadata load = rig.step();
  rig.finish(2, 0);
  EXPECT_TRUE(rig.connector->has_pending_work());
  EXPECT_EQ(rig.connector->metrics().pinned_device_blocks, before + 4);
  rig.step();
  EXPECT_TRUE(rig.connector->has_pending_work());
  rig.answer_all(load);
  rig.connector->take_load_outcomes();
  rig.expect_idle();
}

// A prompt that is on the host whole: its last block is computed, with a state in the model too.
TEST(WorkedExamples, V15AFullPromptHitLeavesTheLastBlockToCompute) {
  CasesRig one({.groups = {full(16)}});
  one.store(1, "a", 96);
  one.add(2, "a", 96);
  EXPECT_EQ(one.hit(2, 96), 80);
  CasesRig two({.groups = {full(16), mamba(16)}});
  two.store(1, "a", 96, 1, {80, 96});
  two.add(2, "a", 96);
  EXPECT_EQ(two.hit(2, 96), 80);
}

}  // namespace
}  // namespace hostkv::testing
