#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "hostkv/host_backend.h"
#include "tests/support/geometry_builders.h"
#include "tests/support/stream_gate.h"
#include "tests/unit/connector/worker_rig.h"

namespace hostkv::testing {
namespace {

std::unique_ptr<TransferBackend> host_backend() {
  auto made = create_host_backend({});
  EXPECT_TRUE(made.has_value());
  return std::move(*made);
}

constexpr std::int64_t kBlocks = 12;

OwnedLayout regions_per_layer() {
  OwnedLayout owned;
  owned.layout.num_blocks = kBlocks;
  owned.layout.groups.emplace_back();
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    const std::int64_t bytes = 40 + 8 * std::int64_t{layer};
    owned.add_region(bytes * kBlocks);
    owned.layout.groups[0].push_back({layer, 0, bytes, bytes});
  }
  return owned;
}

// Field case A14: two groups whose rows alternate in one buffer of 1 MiB.
OwnedLayout alternating_rows() {
  OwnedLayout owned;
  owned.layout.num_blocks = 16;
  owned.add_region(1 << 20);
  const std::int64_t row = (1 << 20) / 32;
  owned.layout.groups = {{{0, 0, 2 * row, row}}, {{0, row, 2 * row, row}}};
  return owned;
}

struct Case {
  const char* name;
  std::function<OwnedLayout()> layout;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

class WorkerCopies : public ::testing::TestWithParam<Case> {};

TEST_P(WorkerCopies, BringTheStoredBytesIntoOtherBlocksOnEveryRank) {
  const GroupIndex group{0};
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    WorkerRig rig(with_workers(resolved({.groups = {full(4)}}), 3), GetParam().layout(), host_backend(), 1 << 16,
                  {RankIndex{rank}, 3});
    const WorkerCapacity capacity = rig.register_layout();
    EXPECT_EQ(capacity.rank, RankIndex{rank});
    rig.fill_device(rank + 1);
    const std::uint32_t per_slab = capacity.slots_per_slab[0];
    std::vector<StepBlock> sources;
    std::vector<StepBlock> targets;
    std::vector<std::vector<unsigned char>> expected;
    for (std::uint32_t i = 0; i < 5; ++i) {
      const SlotId slot = make_slot_id(7 - i / per_slab, i % per_slab);
      sources.push_back(step_block(0, 1 + 2 * (i % 3) + i / 3, slot));  // 1, 3, 5, 2, 4: some are neighbours
      targets.push_back(step_block(0, 7 + i, slot));
      expected.push_back(rig.read(group, sources.back().block));
    }
    ASSERT_EQ(rig.run({store_job(1, sources)}), StatusCode::kOk);
    const std::vector<unsigned char> bystander = rig.read(group, BlockId{6});
    rig.fill_device(77);
    rig.write(group, BlockId{6}, bystander);
    ASSERT_EQ(rig.run({load_job(2, targets)}), StatusCode::kOk);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      EXPECT_EQ(rig.read(group, targets[i].block), expected[i]) << "rank " << rank << ", block " << i;
    }
    EXPECT_EQ(rig.read(group, BlockId{6}), bystander);
    const WorkerMetrics metrics = rig.worker->metrics();
    EXPECT_EQ(metrics.stored_bytes, 5 * rig.device.layout.block_bytes(group));
    EXPECT_EQ(metrics.loaded_bytes, metrics.stored_bytes);
    EXPECT_EQ(metrics.failed_jobs, 0);
    EXPECT_EQ(rig.worker->shutdown(kLong), Status());
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, WorkerCopies,
                         ::testing::Values(Case{"block_outermost",
                                                [] {
                                                  return block_outermost(kBlocks, {64, 40, 8});
                                                }},
                                           Case{"layer_outermost",
                                                [] {
                                                  return layer_outermost(kBlocks, {64, 40, 8});
                                                }},
                                           Case{"odd_sizes", [] { return block_outermost(kBlocks, {37}); }},
                                           Case{"region_per_layer", regions_per_layer}),
                         [](const auto& made) { return made.param.name; });

TEST(WorkerCopy, OfOneGroupLeavesTheRowsOfTheOtherAlone) {
  WorkerRig rig(resolved({.groups = {full(4), full(4)}}), alternating_rows(), host_backend(), 16 << 15);
  const WorkerCapacity capacity = rig.register_layout();
  ASSERT_GE(capacity.num_slabs, 4U);
  rig.fill_device(5);
  std::vector<std::vector<unsigned char>> before;
  for (std::uint32_t block = 0; block < 16; ++block) {
    before.push_back(rig.read(GroupIndex{0}, BlockId{block}));
  }
  const std::vector<StepBlock> blocks = {step_block(1, 3, make_slot_id(1, 0)), step_block(1, 5, make_slot_id(3, 0))};
  const auto third = rig.read(GroupIndex{1}, BlockId{3});
  const auto fifth = rig.read(GroupIndex{1}, BlockId{5});
  ASSERT_EQ(rig.run({store_job(1, blocks)}), StatusCode::kOk);
  for (const std::uint32_t block : {3U, 5U}) {
    rig.write(GroupIndex{1}, BlockId{block}, std::vector<unsigned char>(third.size(), 0xDD));
  }
  ASSERT_EQ(rig.run({load_job(2, blocks)}), StatusCode::kOk);
  EXPECT_TRUE(rig.read(GroupIndex{1}, BlockId{3}) == third);
  EXPECT_TRUE(rig.read(GroupIndex{1}, BlockId{5}) == fifth);
  for (std::uint32_t block = 0; block < 16; ++block) {
    EXPECT_TRUE(rig.read(GroupIndex{0}, BlockId{block}) == before[block]) << block;
  }
}

TEST_P(WorkerCopies, OnTheDeviceMakeTheTargetsEqualToTheSourcesAndNothingElse) {
  const GroupIndex group{0};
  WorkerRig rig(resolved({.groups = {full(4)}}), GetParam().layout(), host_backend());
  rig.register_layout();
  rig.fill_device(3);
  std::vector<std::vector<unsigned char>> expected;
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    expected.push_back(rig.read(group, BlockId{block}));
  }
  std::vector<StepBlock> blocks;
  for (const auto& [source, target] : {std::pair{1U, 7U}, {2U, 8U}, {4U, 11U}, {3U, 10U}, {4U, 6U}}) {
    blocks.push_back(copy_block(0, source, target));
    expected[target] = expected[source];
  }
  ASSERT_EQ(rig.run({device_copy_job(1, blocks)}), StatusCode::kOk);
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_EQ(rig.read(group, BlockId{block}), expected[block]) << "block " << block;
  }
  EXPECT_EQ(rig.worker->metrics().device_copied_bytes, 5 * rig.device.layout.block_bytes(group));
  EXPECT_EQ(rig.worker->metrics().stored_bytes, 0);
  EXPECT_EQ(rig.worker->metrics().loaded_bytes, 0);
}

// Groups of different sizes over the same bytes; a job that mixes them.
TEST(WorkerCopy, OfOverlaidGroupsKeepsEachBlockWithItsOwnSize) {
  OwnedLayout owned = layer_outermost(kBlocks, {512, 512});
  owned.layout.groups.push_back({{0, 0, 512, 128}});
  WorkerRig rig(resolved({.groups = {full(4), window(4, 8)}}), std::move(owned), host_backend(), 1 << 19);
  const WorkerCapacity capacity = rig.register_layout();
  ASSERT_GT(capacity.slots_per_slab[1], capacity.slots_per_slab[0]);
  rig.fill_device(9);
  const std::vector<StepBlock> sources = {step_block(0, 1, make_slot_id(0, 0)), step_block(1, 2, make_slot_id(1, 1)),
                                          step_block(1, 3, make_slot_id(1, 2)), step_block(0, 4, make_slot_id(2, 0))};
  std::vector<StepBlock> targets = sources;
  std::vector<std::vector<unsigned char>> expected;
  for (StepBlock& block : targets) {
    expected.push_back(rig.read(block.group, block.block));
    block.block = BlockId{block.block.value() + 5};
  }
  ASSERT_EQ(rig.run({store_job(1, sources)}), StatusCode::kOk);
  rig.fill_device(10);
  ASSERT_EQ(rig.run({load_job(2, targets)}), StatusCode::kOk);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    EXPECT_EQ(rig.read(targets[i].group, targets[i].block), expected[i]) << i;
  }
}

// R5: also where start_stores() was not called.
TEST(WorkerCopy, AStoreThatPollLaunchesReadsWhatTheForwardWrote) {
  WorkerRig rig(resolved({.groups = {full(4)}}), layer_outermost(kBlocks, {32, 32}), host_backend());
  rig.register_layout();
  HostStream compute("compute");
  const std::vector<unsigned char> written(64, 0x5A);
  ASSERT_EQ(rig.bind({store_job(1, {step_block(0, 3, make_slot_id(0, 0))})}, compute.handle()), Status());
  ASSERT_EQ(rig.worker->start_loads(), Status());
  StreamGate gate(compute);
  compute.enqueue([&] { rig.write(GroupIndex{0}, BlockId{3}, written); });
  EXPECT_TRUE(rig.poll().empty());
  EXPECT_EQ(rig.worker->wait_idle(std::chrono::nanoseconds(0)).code(), StatusCode::kDeadlineExceeded);
  gate.open();
  ASSERT_EQ(rig.worker->wait_idle(kLong), Status());
  ASSERT_EQ(rig.poll().size(), 1U);
  ASSERT_EQ(rig.run({load_job(2, {step_block(0, 8, make_slot_id(0, 0))})}), StatusCode::kOk);
  EXPECT_EQ(rig.read(GroupIndex{0}, BlockId{8}), written);
}

// R5: also where the source is written by this very step.
TEST(WorkerCopy, ADeviceCopyReadsWhatTheForwardWrote) {
  WorkerRig rig(resolved({.groups = {full(4)}}), layer_outermost(kBlocks, {32, 32}), host_backend());
  rig.register_layout();
  HostStream compute("compute");
  const std::vector<unsigned char> written(64, 0x5A);
  ASSERT_EQ(rig.bind({device_copy_job(1, {copy_block(0, 3, 8)})}, compute.handle()), Status());
  ASSERT_EQ(rig.worker->start_loads(), Status());
  StreamGate gate(compute);
  compute.enqueue([&] { rig.write(GroupIndex{0}, BlockId{3}, written); });
  ASSERT_EQ(rig.worker->start_stores(), Status());
  EXPECT_TRUE(rig.poll().empty());
  EXPECT_EQ(rig.worker->wait_idle(std::chrono::nanoseconds(0)).code(), StatusCode::kDeadlineExceeded);
  gate.open();
  ASSERT_EQ(rig.worker->wait_idle(kLong), Status());
  ASSERT_EQ(rig.poll().size(), 1U);
  EXPECT_EQ(rig.read(GroupIndex{0}, BlockId{8}), written);
}

// R6.
TEST(WorkerCopy, ALoadWritesOnlyAfterWhatWasIssuedBefore) {
  WorkerRig rig(resolved({.groups = {full(4)}}), layer_outermost(kBlocks, {32, 32}), host_backend());
  rig.register_layout();
  const std::vector<unsigned char> kept(64, 0x11);
  rig.write(GroupIndex{0}, BlockId{3}, kept);
  ASSERT_EQ(rig.run({store_job(1, {step_block(0, 3, make_slot_id(0, 0))})}), StatusCode::kOk);
  HostStream compute("compute");
  StreamGate gate(compute);
  compute.enqueue([&] { rig.write(GroupIndex{0}, BlockId{4}, std::vector<unsigned char>(64, 0)); });  // zeroing
  ASSERT_EQ(rig.bind({load_job(2, {step_block(0, 4, make_slot_id(0, 0))})}, compute.handle()), Status());
  ASSERT_EQ(rig.worker->start_loads(), Status());
  gate.open();
  ASSERT_EQ(rig.worker->wait_idle(kLong), Status());
  ASSERT_EQ(rig.poll().size(), 1U);
  EXPECT_EQ(rig.read(GroupIndex{0}, BlockId{4}), kept);
}

}  // namespace
}  // namespace hostkv::testing
