// A worker whose engine discards its device memory and brings it back.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "hostkv/host_backend.h"
#include "tests/support/geometry_builders.h"
#include "tests/support/step_backend.h"
#include "tests/unit/connector/worker_rig.h"

namespace hostkv::testing {
namespace {

constexpr GroupIndex kGroup{0};

std::unique_ptr<TransferBackend> host_backend() {
  auto made = create_host_backend({});
  EXPECT_TRUE(made.has_value());
  return std::move(*made);
}

void expect_refused(const Status& status, StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << "want \"" << part << "\" in " << status.message();
}

TEST(WorkerSleep, ThePoolKeepsItsBytesForALayoutElsewhere) {
  WorkerRig rig(resolved({.groups = {full(4)}}), layer_outermost(8, {32, 32}), host_backend());
  const WorkerCapacity before = rig.register_layout();
  rig.fill_device(7);
  const std::vector<unsigned char> stored = rig.read(kGroup, BlockId{3});
  ASSERT_EQ(rig.run({store_job(1, {step_block(0, 3, make_slot_id(0, 0))})}), StatusCode::kOk);
  ASSERT_EQ(rig.worker->unregister_layout(kLong), Status());
  rig.device = layer_outermost(6, {32, 32});  // other memory, and fewer blocks
  const WorkerCapacity after = rig.register_layout();
  EXPECT_EQ(after.slots_per_slab, before.slots_per_slab);
  EXPECT_EQ(after.num_slabs, before.num_slabs);
  ASSERT_EQ(rig.run({load_job(2, {step_block(0, 5, make_slot_id(0, 0))})}), StatusCode::kOk);
  EXPECT_EQ(rig.read(kGroup, BlockId{5}), stored);
}

TEST(WorkerSleep, JobsOfStepsInBetweenEndAsUnavailable) {
  WorkerRig rig(resolved({.groups = {full(4)}}), layer_outermost(8, {32, 32}), host_backend());
  rig.register_layout();
  ASSERT_EQ(rig.worker->unregister_layout(kLong), Status());
  ASSERT_EQ(rig.bind({store_job(1, {step_block(0, 3, make_slot_id(0, 0))}),
                      load_job(2, {step_block(0, 4, make_slot_id(1, 0))}), device_copy_job(3, {copy_block(0, 5, 6)})}),
            Status());
  EXPECT_EQ(rig.worker->start_loads(), Status());
  EXPECT_EQ(rig.worker->start_stores(), Status());
  const std::vector<JobResult> results = rig.poll();
  ASSERT_EQ(results.size(), 3U);
  for (const JobResult& result : results) {
    EXPECT_EQ(result.status, StatusCode::kUnavailable);
  }
  EXPECT_EQ(rig.worker->metrics().jobs_in_flight, 0);
  rig.register_layout();
  EXPECT_EQ(rig.run({store_job(4, {step_block(0, 3, make_slot_id(0, 0))})}), StatusCode::kOk);
  ASSERT_EQ(rig.worker->unregister_layout(kLong), Status());
  EXPECT_EQ(rig.worker->shutdown(kLong), Status()) << "also while it sleeps";
}

TEST(WorkerSleep, CallsInTheWrongOrderAreRefusedAndChangeNothing) {
  auto made = std::make_unique<StepBackend>(1);
  StepBackend* backend = made.get();
  WorkerRig rig(resolved({.groups = {full(4)}}), layer_outermost(8, {32, 32}), std::move(made));
  const auto order = StatusCode::kFailedPrecondition;
  expect_refused(rig.worker->unregister_layout(kLong), order, "register_layout comes first");
  rig.register_layout();
  ASSERT_EQ(rig.bind({store_job(1, {step_block(0, 3, make_slot_id(0, 0))}),
                      store_job(2, {step_block(0, 4, make_slot_id(1, 0))})}),
            Status());
  expect_refused(rig.worker->unregister_layout(kLong), order, "a step is bound");
  EXPECT_TRUE(rig.poll().empty());
  EXPECT_EQ(rig.worker->unregister_layout(std::chrono::nanoseconds(1)).code(), StatusCode::kDeadlineExceeded);
  expect_refused(rig.worker->register_layout(rig.device.layout).error(), order, "already");
  backend->complete_all();
  ASSERT_EQ(rig.worker->unregister_layout(kLong), Status());
  expect_refused(rig.worker->unregister_layout(kLong), order, "register_layout comes first");
  std::vector<JobResult> results = rig.poll();
  std::ranges::sort(results, {}, &JobResult::job);
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].status, StatusCode::kOk);
  EXPECT_EQ(results[1].status, StatusCode::kUnavailable) << "it had found the queue full";
  EXPECT_EQ(rig.worker->shutdown(kLong), Status());
  expect_refused(rig.worker->unregister_layout(kLong), StatusCode::kUnavailable, "shut down");
}

TEST(WorkerSleep, BlocksOfAnotherSizeAreRefusedWithBothSizes) {
  WorkerRig rig(resolved({.groups = {full(4)}}), layer_outermost(8, {32, 32}), host_backend());
  rig.register_layout();
  ASSERT_EQ(rig.worker->unregister_layout(kLong), Status());
  const OwnedLayout other = layer_outermost(8, {32, 48});
  const Result<WorkerCapacity> made = rig.worker->register_layout(other.layout);
  ASSERT_FALSE(made.has_value());
  const Status& refused = made.error();
  expect_refused(refused, StatusCode::kInvalidArgument, "blocks of 80 bytes");
  expect_refused(refused, StatusCode::kInvalidArgument, "blocks of 64 bytes");
  rig.register_layout();
}

TEST(WorkerHostBlock, ShowsTheBytesOfOnePlaceAndNoOther) {
  WorkerRig rig(resolved({.groups = {full(4)}}), layer_outermost(8, {32, 32}), host_backend());
  expect_refused(rig.worker->host_block(kGroup, make_slot_id(0, 0)).error(), StatusCode::kFailedPrecondition,
                 "register_layout");
  const WorkerCapacity capacity = rig.register_layout();
  rig.fill_device(9);
  const SlotId slot = make_slot_id(1, 0);
  ASSERT_EQ(rig.run({store_job(1, {step_block(0, 3, slot)})}), StatusCode::kOk);
  const Result<std::span<std::byte>> bytes = rig.worker->host_block(kGroup, slot);
  ASSERT_TRUE(bytes.has_value());
  const std::vector<unsigned char> stored = rig.read(kGroup, BlockId{3});
  EXPECT_TRUE(std::ranges::equal(*bytes, std::as_bytes(std::span(stored))));
  std::ranges::fill(*bytes, std::byte{42});
  ASSERT_EQ(rig.run({load_job(2, {step_block(0, 5, slot)})}), StatusCode::kOk);
  EXPECT_EQ(rig.read(kGroup, BlockId{5}), std::vector<unsigned char>(64, 42));
  for (const SlotId bad : {make_slot_id(capacity.num_slabs, 0), make_slot_id(0, capacity.slots_per_slab[0])}) {
    expect_refused(rig.worker->host_block(kGroup, bad).error(), StatusCode::kInvalidArgument, "this rank has");
  }
  expect_refused(rig.worker->host_block(GroupIndex{1}, slot).error(), StatusCode::kInvalidArgument, "of group 1");
  ASSERT_EQ(rig.worker->shutdown(kLong), Status());
  expect_refused(rig.worker->host_block(kGroup, slot).error(), StatusCode::kUnavailable, "shut down");
}

}  // namespace
}  // namespace hostkv::testing
