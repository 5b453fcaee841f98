#include "geometry/copy_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "tests/support/geometry_builders.h"
#include "tests/support/layout_builders.h"

namespace hostkv::testing {
namespace {

constexpr GroupIndex kG0{0};

std::vector<PlannedRun> plan(const KvLayout& layout, const std::vector<BlockPair>& pairs, GroupIndex g = kG0) {
  std::vector<PlannedRun> runs;
  append_copy_runs(layout, g, pairs, runs);
  return runs;
}

void execute(const KvLayout& layout, const std::vector<PlannedRun>& runs, unsigned char* host, bool store) {
  for (const PlannedRun& run : runs) {
    auto* device = static_cast<unsigned char*>(layout.regions[run.device_region].base) + run.device_offset_bytes;
    unsigned char* slot = host + run.host_offset_bytes;
    std::memcpy(store ? slot : device, store ? device : slot, static_cast<std::size_t>(run.size_bytes));
  }
}

TEST(CopyPlan, MakesOneRunOfABlockWhoseLayersAreAdjacent) {
  const OwnedLayout owned = block_outermost(8, {64, 64, 32});
  const std::vector<PlannedRun> runs = plan(owned.layout, {{BlockId{3}, 1000}});
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].device_offset_bytes, 3 * 160);
  EXPECT_EQ(runs[0].host_offset_bytes, 1000);
  EXPECT_EQ(runs[0].size_bytes, 160);
}

TEST(CopyPlan, MergesNeighbouringBlocksInNeighbouringSlots) {
  const OwnedLayout owned = block_outermost(8, {64, 64});
  const std::vector<PlannedRun> runs =
      plan(owned.layout, {{BlockId{2}, 0}, {BlockId{3}, 128}, {BlockId{4}, 256}, {BlockId{6}, 384}});
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].size_bytes, 384);
  EXPECT_EQ(runs[0].first_pair, 0U);
  EXPECT_EQ(runs[0].num_pairs, 3U);
  EXPECT_EQ(runs[1].first_pair, 3U);
  EXPECT_EQ(runs[1].num_pairs, 1U);
}

TEST(CopyPlan, MergesBlocksThatWereHandedOutInDescendingOrder) {
  const OwnedLayout owned = block_outermost(8, {64, 64});
  const std::vector<PlannedRun> runs = plan(owned.layout, {{BlockId{4}, 256}, {BlockId{3}, 128}, {BlockId{2}, 0}});
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].device_offset_bytes, 256);
  EXPECT_EQ(runs[0].host_offset_bytes, 0);
  EXPECT_EQ(runs[0].size_bytes, 384);
  EXPECT_EQ(runs[0].num_pairs, 3U);
}

TEST(CopyPlan, DoesNotMergeWhereOnlyOneSideIsAdjacent) {
  const OwnedLayout owned = block_outermost(8, {64});
  EXPECT_EQ(plan(owned.layout, {{BlockId{2}, 0}, {BlockId{3}, 128}}).size(), 2U);
  EXPECT_EQ(plan(owned.layout, {{BlockId{2}, 0}, {BlockId{4}, 64}}).size(), 2U);
}

TEST(CopyPlan, MakesOneRunALayerWhereLayersLieApart) {
  const OwnedLayout owned = layer_outermost(8, {64, 32});
  const std::vector<PlannedRun> runs = plan(owned.layout, {{BlockId{2}, 0}, {BlockId{3}, 96}});
  ASSERT_EQ(runs.size(), 4U);
  EXPECT_EQ(runs[1].device_offset_bytes, 8 * 64 + 2 * 32);
  EXPECT_EQ(runs[1].host_offset_bytes, 64);
}

TEST(CopyPlan, NeverMergesAcrossRegions) {
  OwnedLayout owned = block_outermost(2, {64});
  owned.add_region(128);
  owned.layout.groups[0].push_back({1, 64, 64, 64});
  EXPECT_EQ(plan(owned.layout, {{BlockId{1}, 0}}).size(), 2U);
}

TEST(CopyPlan, AppendsBehindTheRunsOfAnotherCallWithoutMerging) {
  const OwnedLayout owned = block_outermost(8, {64});
  std::vector<PlannedRun> runs;
  const std::array<BlockPair, 1> first{BlockPair{BlockId{2}, 0}};
  const std::array<BlockPair, 1> second{BlockPair{BlockId{3}, 64}};
  append_copy_runs(owned.layout, kG0, first, runs);
  append_copy_runs(owned.layout, kG0, second, runs);
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[1].first_pair, 0U);
}

std::vector<DeviceRun> plan_copies(const KvLayout& layout, const std::vector<DevicePair>& pairs) {
  std::vector<DeviceRun> runs;
  append_device_copy_runs(layout, kG0, pairs, runs);
  return runs;
}

TEST(DeviceCopyPlan, MergesWhatIsAdjacentAtTheSourceAndAtTheTarget) {
  const OwnedLayout owned = block_outermost(16, {64, 64});
  const std::vector<DeviceRun> runs =
      plan_copies(owned.layout, {{BlockId{2}, BlockId{8}}, {BlockId{3}, BlockId{9}}, {BlockId{4}, BlockId{12}}});
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].src_offset_bytes, 2 * 128);
  EXPECT_EQ(runs[0].dst_offset_bytes, 8 * 128);
  EXPECT_EQ(runs[0].size_bytes, 2 * 128);
  EXPECT_EQ(runs[0].first_pair, 0U);
  EXPECT_EQ(runs[0].num_pairs, 2U);
  EXPECT_EQ(runs[1].dst_offset_bytes, 12 * 128);
  EXPECT_EQ(runs[1].first_pair, 2U);
  EXPECT_EQ(runs[1].num_pairs, 1U);
  EXPECT_EQ(plan_copies(owned.layout, {{BlockId{2}, BlockId{8}}, {BlockId{4}, BlockId{9}}}).size(), 2U);
}

TEST(DeviceCopyPlan, MergesDescendingBlocks) {
  const OwnedLayout owned = block_outermost(16, {64});
  const std::vector<DeviceRun> runs =
      plan_copies(owned.layout, {{BlockId{4}, BlockId{9}}, {BlockId{3}, BlockId{8}}, {BlockId{2}, BlockId{7}}});
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].src_offset_bytes, 2 * 64);
  EXPECT_EQ(runs[0].dst_offset_bytes, 7 * 64);
  EXPECT_EQ(runs[0].size_bytes, 3 * 64);
}

TEST(DeviceCopyPlan, MakesOneRunALayerWhereLayersLieApart) {
  OwnedLayout owned = layer_outermost(8, {64, 32});
  owned.add_region(8 * 16);
  owned.layout.groups[0].push_back({1, 0, 16, 16});
  const std::vector<DeviceRun> runs = plan_copies(owned.layout, {{BlockId{2}, BlockId{5}}});
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_EQ(runs[1].device_region, 0U);
  EXPECT_EQ(runs[1].src_offset_bytes, 8 * 64 + 2 * 32);
  EXPECT_EQ(runs[1].dst_offset_bytes, 8 * 64 + 5 * 32);
  EXPECT_EQ(runs[2].device_region, 1U);
  EXPECT_EQ(runs[2].src_offset_bytes, 2 * 16);
  EXPECT_EQ(runs[2].dst_offset_bytes, 5 * 16);
}

// Field case A14: two groups interleaved in one buffer of 1 MiB.
TEST(CopyPlan, NeverTouchesTheBytesOfAnotherGroup) {
  constexpr std::int64_t kRows = 8;
  constexpr std::int64_t kHalf = 64 * 1024;
  OwnedLayout owned = block_outermost(kRows, {kHalf, kHalf});
  owned.layout.groups = {{owned.layout.groups[0][0]}, {owned.layout.groups[0][1]}};
  ASSERT_TRUE(owned.layout.validate(resolved({.groups = {full(16), mla(16)}})).ok());
  ASSERT_EQ(owned.layout.regions[0].size_bytes, 1 << 20);
  unsigned char* device = owned.memory[0].get();
  const auto fill = [&] {
    for (std::int64_t i = 0; i < 2 * kRows; ++i) {
      std::memset(device + i * kHalf, static_cast<int>(100 * (i % 2) + i / 2 + 1), kHalf);
    }
  };
  fill();
  std::vector<unsigned char> host(2 * kHalf);
  const std::vector<PlannedRun> runs = plan(owned.layout, {{BlockId{3}, 0}, {BlockId{5}, kHalf}}, GroupIndex{1});
  execute(owned.layout, runs, host.data(), true);
  EXPECT_EQ(host[0], 104);
  EXPECT_EQ(host[kHalf], 106);
  const std::vector<unsigned char> before(device, device + (1 << 20));
  std::memset(device + 7 * kHalf, 0, kHalf);
  std::memset(device + 11 * kHalf, 0, kHalf);
  execute(owned.layout, runs, host.data(), false);
  EXPECT_EQ(std::memcmp(device, before.data(), before.size()), 0);
}

// Field case A15: four layers strided through one allocation.
TEST(CopyPlan, GivesEachStridedLayerItsOwnBytesBack) {
  constexpr std::int64_t kBlocks = 5;
  OwnedLayout owned = layer_outermost(kBlocks, {32, 32, 32, 32});
  unsigned char* device = owned.memory[0].get();
  for (int layer = 0; layer < 4; ++layer) {
    std::memset(device + layer * kBlocks * 32, layer + 1, kBlocks * 32);
  }
  std::vector<unsigned char> host(128);
  const std::vector<PlannedRun> runs = plan(owned.layout, {{BlockId{2}, 0}});
  execute(owned.layout, runs, host.data(), true);
  std::int64_t copied = 0;
  for (const PlannedRun& run : runs) {
    copied += run.size_bytes;
  }
  EXPECT_EQ(copied, 4 * 32);
  for (std::size_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(host[layer * 32], layer + 1);
    EXPECT_EQ(host[layer * 32 + 31], layer + 1);
  }
  std::memset(device, 0, static_cast<std::size_t>(owned.layout.regions[0].size_bytes));
  execute(owned.layout, runs, host.data(), false);
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(device[(layer * kBlocks + 2) * 32], layer + 1);
    EXPECT_EQ(device[(layer * kBlocks + 1) * 32], 0);
  }
}

}  // namespace
}  // namespace hostkv::testing
