// Field cases B16, C5, D1, F3 and K6: bytes and their order, on one worker.

#include <gtest/gtest.h>

#include "hostkv/host_backend.h"
#include "tests/support/geometry_builders.h"
#include "tests/support/stream_gate.h"
#include "tests/unit/connector/worker_rig.h"

namespace hostkv::testing {
namespace {

constexpr GroupIndex kGroup{0};
using Bytes = std::vector<unsigned char>;

WorkerRig host_rig(const KvCacheGroup& group, OwnedLayout layout) {
  return {resolved({.groups = {group}}), std::move(layout), create_host_backend({}).value()};
}

// A state with a convolution window and a history beside it: all three move, nothing of the last occupant stays.
TEST(FieldCases, B16SideStatesMoveWithTheirState) {
  WorkerRig rig = host_rig(mamba(4), layer_outermost(12, {64, 24, 8}));
  rig.register_layout();
  rig.fill_device(3);
  const Bytes state = rig.read(kGroup, BlockId{2});
  ASSERT_EQ(state.size(), 96U);
  ASSERT_EQ(rig.run({store_job(1, {step_block(0, 2, make_slot_id(0, 0))})}), StatusCode::kOk);
  rig.write(kGroup, BlockId{9}, Bytes(96, 0xFF));
  ASSERT_EQ(rig.run({load_job(2, {step_block(0, 9, make_slot_id(0, 0))})}), StatusCode::kOk);
  EXPECT_EQ(rig.read(kGroup, BlockId{9}), state);
  EXPECT_EQ(rig.worker->metrics().loaded_bytes, 96);
}

// A block that slid out of a window is loaded into while the step that still reads it has not run yet.
TEST(FieldCases, C5AReusedBlockIsFilledAfterTheStepThatStillReadsIt) {
  WorkerRig rig = host_rig(window(4, 8), layer_outermost(12, {32, 32}));
  rig.register_layout();
  const Bytes fresh(64, 0x22);
  rig.write(kGroup, BlockId{3}, fresh);
  ASSERT_EQ(rig.run({store_job(1, {step_block(0, 3, make_slot_id(0, 0))})}), StatusCode::kOk);
  const Bytes live(64, 0x11);
  rig.write(kGroup, BlockId{7}, live);
  HostStream compute("compute");
  StreamGate gate(compute);
  Bytes seen;
  compute.enqueue([&] { seen = rig.read(kGroup, BlockId{7}); });
  ASSERT_EQ(rig.bind({load_job(2, {step_block(0, 7, make_slot_id(0, 0))})}, compute.handle()), Status());
  ASSERT_EQ(rig.worker->start_loads(), Status());
  EXPECT_TRUE(rig.poll().empty());
  gate.open();
  ASSERT_EQ(rig.worker->wait_idle(kLong), Status());
  EXPECT_EQ(rig.poll().size(), 1U);
  EXPECT_EQ(seen, live);
  EXPECT_EQ(rig.read(kGroup, BlockId{7}), fresh);
}

// The store is ordered behind the forward that fills its source; without that order it copies what was there before.
TEST(FieldCases, D1AStoreCopiesWhatTheForwardHasWritten) {
  WorkerRig rig = host_rig(full(4), layer_outermost(12, {32, 32}));
  rig.register_layout();
  const Bytes before(64, 0x01);
  const Bytes after(64, 0x0A);
  const auto stored_with = [&](std::uint64_t id, bool ordered) {
    rig.write(kGroup, BlockId{3}, before);
    HostStream compute("compute");
    StreamGate gate(compute);
    compute.enqueue([&] { rig.write(kGroup, BlockId{3}, after); });
    EXPECT_EQ(
        rig.bind({store_job(id, {step_block(0, 3, make_slot_id(0, 0))})}, ordered ? compute.handle() : StreamHandle{}),
        Status());
    EXPECT_EQ(rig.worker->start_stores(), Status());
    std::size_t num_results = rig.poll().size();
    if (ordered) {
      gate.open();
    }
    EXPECT_EQ(rig.worker->wait_idle(kLong), Status());
    num_results += rig.poll().size();
    EXPECT_EQ(num_results, 1U);
    gate.open();
    compute.synchronize();
    EXPECT_EQ(rig.run({load_job(id + 1, {step_block(0, 5, make_slot_id(0, 0))})}), StatusCode::kOk);
    return rig.read(kGroup, BlockId{5});
  };
  EXPECT_EQ(stored_with(1, true), after);
  EXPECT_EQ(stored_with(3, false), before) << "the check sees a store without order";
}

TEST(FieldCases, F3AZeroedTargetIsLoadedAfterItsZeros) {
  WorkerRig rig = host_rig(full(4), layer_outermost(12, {32, 32}));
  rig.register_layout();
  const Bytes kept(64, 0x33);
  rig.write(kGroup, BlockId{3}, kept);
  ASSERT_EQ(rig.run({store_job(1, {step_block(0, 3, make_slot_id(0, 0))})}), StatusCode::kOk);
  HostStream compute("compute");
  StreamGate gate(compute);
  compute.enqueue([&] { rig.write(kGroup, BlockId{4}, Bytes(64, 0)); });
  ASSERT_EQ(rig.bind({load_job(2, {step_block(0, 4, make_slot_id(0, 0))})}, compute.handle()), Status());
  ASSERT_EQ(rig.worker->start_loads(), Status());
  gate.open();
  ASSERT_EQ(rig.worker->wait_idle(kLong), Status());
  ASSERT_EQ(rig.poll().size(), 1U);
  EXPECT_EQ(rig.read(kGroup, BlockId{4}), kept);
}

// Ten blocks out, four back in.
TEST(FieldCases, K6EachDirectionCountsItsOwnBytes) {
  WorkerRig rig = host_rig(full(4), layer_outermost(16, {32, 32}));
  rig.register_layout();
  std::vector<StepBlock> blocks;
  for (std::uint32_t i = 0; i < 10; ++i) {
    blocks.push_back(step_block(0, i + 1, make_slot_id(i, 0)));
  }
  ASSERT_EQ(rig.run({store_job(1, blocks)}), StatusCode::kOk);
  EXPECT_EQ(rig.worker->metrics().loaded_bytes, 0);
  blocks.resize(4);
  ASSERT_EQ(rig.run({load_job(2, blocks)}), StatusCode::kOk);
  EXPECT_EQ(rig.worker->metrics().stored_bytes, 10 * 64);
  EXPECT_EQ(rig.worker->metrics().loaded_bytes, 4 * 64);
  EXPECT_EQ(rig.worker->metrics().device_copied_bytes, 0);
}

}  // namespace
}  // namespace hostkv::testing
