#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/geometry_builders.h"
#include "tests/support/step_backend.h"
#include "tests/unit/connector/worker_rig.h"

namespace hostkv::testing {
namespace {

constexpr auto kInvalid = StatusCode::kInvalidArgument;

void expect_refused(const Status& status, StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << "want \"" << part << "\" in " << status.message();
}

// Two groups of 64 and of 32 bytes a block over 8 blocks.
OwnedLayout two_groups() {
  OwnedLayout owned = layer_outermost(8, {32, 32});
  owned.layout.groups.push_back({{0, 0, 32, 32}});
  return owned;
}

class WorkerOrder : public ::testing::Test {
 protected:
  WorkerOrder() : WorkerOrder(std::make_unique<StepBackend>()) {}
  explicit WorkerOrder(std::unique_ptr<StepBackend> made)
      : backend_(made.get()),
        rig_(resolved({.groups = {full(4), window(4, 8)}}), two_groups(), std::move(made), 64 * 128) {}

  Status message_refused(const std::vector<StepJob>& jobs) {
    const Status status = rig_.bind(jobs);
    EXPECT_TRUE(backend_->in_flight().empty());
    EXPECT_EQ(rig_.worker->metrics().jobs_in_flight, 0);
    return status;
  }

  StepBackend* backend_;
  WorkerRig rig_;
};

TEST(WorkerCreate, RefusesWhatCannotWork) {
  const Geometry geometry = with_workers(resolved({.groups = {full(4)}}), 2);
  const auto refusal = [&](WorkerSpec spec, bool backend, const ConnectorOptions& options = {}) {
    const auto made =
        WorkerConnector::create(geometry, options, spec, backend ? std::make_unique<StepBackend>() : nullptr);
    return made ? Status() : made.error();
  };
  EXPECT_EQ(refusal({RankIndex{1}, 2}, true), Status());
  EXPECT_EQ(refusal({RankIndex{1}, 2}, false), Status()) << "it makes itself a host backend";
  expect_refused(refusal({RankIndex{2}, 2}, true), kInvalid, "rank is 2; 0 .. 1 are allowed");
  expect_refused(refusal({RankIndex{0}, 3}, true), kInvalid, "num_ranks is 3; the geometry has 2 workers");
  ConnectorOptions options;
  options.copy_threads = 65;
  expect_refused(refusal({RankIndex{0}, 2}, true, options), kInvalid, "copy_threads");
}

TEST_F(WorkerOrder, CallsBeforeTheLayoutAreRefused) {
  const auto order = StatusCode::kFailedPrecondition;
  expect_refused(rig_.bind({}), order, "register_layout");
  expect_refused(rig_.worker->start_loads(), order, "register_layout");
  expect_refused(rig_.worker->start_stores(), order, "register_layout");
  expect_refused(rig_.worker->poll().error(), order, "register_layout");
  expect_refused(rig_.worker->wait_idle(kLong), order, "register_layout");
  EXPECT_EQ(rig_.worker->metrics().pool_bytes, 0);
  EXPECT_EQ(rig_.worker->shutdown(kLong), Status());
  expect_refused(rig_.worker->register_layout(rig_.device.layout).error(), StatusCode::kUnavailable, "shut down");
}

TEST_F(WorkerOrder, ALayoutIsRegisteredOnce) {
  const WorkerCapacity capacity = rig_.register_layout();
  EXPECT_EQ(capacity.slots_per_slab.size(), 2U);
  EXPECT_EQ(rig_.worker->metrics().pool_bytes, 64 * 128) << "R17";
  expect_refused(rig_.worker->register_layout(rig_.device.layout).error(), StatusCode::kFailedPrecondition, "already");
}

TEST(WorkerLayout, ThatDoesNotAddUpIsRefusedAndTheRightOneTakenAfterwards) {
  KvCacheGroup group = full(4);
  group.page_bytes = 64;
  WorkerRig rig(resolved({.groups = {group}}), layer_outermost(8, {32, 32}), std::make_unique<StepBackend>());
  KvLayout broken = rig.device.layout;
  broken.groups[0].pop_back();
  expect_refused(rig.worker->register_layout(broken).error(), kInvalid, "page_bytes is 64");
  EXPECT_EQ(rig.worker->metrics().pool_bytes, 0);
  rig.register_layout();
}

TEST(WorkerLayout, ABudgetBelowOneBoundarySetIsRefusedWithWhatIsNeeded) {
  WorkerRig rig(resolved({.groups = {full(4), window(4, 8)}}), two_groups(), std::make_unique<StepBackend>(), 128);
  expect_refused(rig.worker->register_layout(rig.device.layout).error(), kInvalid, "256 bytes per rank are needed");
}

TEST_F(WorkerOrder, AStepIsBoundOnceAndEndsWithItsPoll) {
  rig_.register_layout();
  const auto order = StatusCode::kFailedPrecondition;
  expect_refused(rig_.worker->start_loads(), order, "bind_step");
  expect_refused(rig_.worker->start_stores(), order, "bind_step");
  EXPECT_EQ(rig_.bind({}), Status());
  expect_refused(rig_.bind({}), order, "bound already");
  EXPECT_EQ(rig_.worker->start_loads(), Status());
  EXPECT_EQ(rig_.worker->start_stores(), Status());
  EXPECT_TRUE(rig_.poll().empty());
  expect_refused(rig_.worker->start_stores(), order, "bind_step");
  EXPECT_EQ(rig_.bind({}), Status());
  EXPECT_TRUE(rig_.poll().empty());
  EXPECT_TRUE(rig_.poll().empty()) << "an engine may ask again";
}

TEST_F(WorkerOrder, MessagesOutOfRangeAreRefusedWhole) {
  const WorkerCapacity capacity = rig_.register_layout();
  const SlotId good = make_slot_id(0, 0);
  const StepJob fine = store_job(1, {step_block(0, 1, good)});
  const auto with = [&](const StepBlock& block) {
    return std::vector<StepJob>{fine, store_job(2, {step_block(0, 2, good), block})};
  };
  expect_refused(message_refused(with(step_block(2, 1, good))), kInvalid, "job 2 names group 2");
  expect_refused(message_refused(with(step_block(0xFFFFFFFF, 1, good))), kInvalid, "group 4294967295");
  expect_refused(message_refused(with(step_block(0, 0, good))), kInvalid, "block 0; 1 .. 7");
  expect_refused(message_refused(with(step_block(0, 8, good))), kInvalid, "block 8; 1 .. 7");
  expect_refused(message_refused(with(step_block(0, 1, make_slot_id(capacity.num_slabs, 0)))), kInvalid, "slab 64");
  expect_refused(message_refused(with(step_block(0, 1, make_slot_id(0, capacity.slots_per_slab[0])))), kInvalid,
                 "place 1 of slab 0");
  expect_refused(message_refused(with(step_block(0, 1, SlotId{~std::uint64_t{0}}))), kInvalid, "place 65535");
  expect_refused(message_refused({fine, store_job(2, {})}), kInvalid, "job 2 has no block");
  expect_refused(message_refused({fine, load_job(1, {step_block(0, 2, good)})}), kInvalid, "job 1 is in flight");
  const std::vector<std::byte> garbage(40);
  expect_refused(rig_.worker->bind_step(garbage, {}), kInvalid, "HKVS");
  EXPECT_EQ(rig_.bind({fine}), Status()) << "nothing of the refused messages is left";
  rig_.poll();
  EXPECT_EQ(backend_->in_flight(), std::vector<JobId>{JobId{1}});
}

TEST_F(WorkerOrder, DeviceCopiesOutOfRangeOrOntoEachOtherAreRefusedWhole) {
  rig_.register_layout();
  const StepJob fine = store_job(1, {step_block(0, 1, make_slot_id(0, 0))});
  const auto with = [&](const StepBlock& block) {
    return std::vector<StepJob>{fine, device_copy_job(2, {copy_block(0, 2, 3), block})};
  };
  expect_refused(message_refused(with(copy_block(2, 1, 4))), kInvalid, "job 2 names group 2");
  expect_refused(message_refused(with(copy_block(0, 0, 4))), kInvalid, "block 0; 1 .. 7");
  expect_refused(message_refused(with(copy_block(0, 1, 0))), kInvalid, "block 0; 1 .. 7");
  expect_refused(message_refused(with(copy_block(0, 8, 4))), kInvalid, "block 8; 1 .. 7");
  expect_refused(message_refused(with(copy_block(0, 1, 8))), kInvalid, "block 8; 1 .. 7");
  expect_refused(message_refused(with(step_block(0, 1, SlotId{0x100000001}))), kInvalid, "block 4294967297; 1 .. 7");
  expect_refused(message_refused(with(copy_block(0, 4, 4))), kInvalid, "block 4 as a source and as a target");
  expect_refused(message_refused(with(copy_block(0, 3, 4))), kInvalid, "block 3 as a source and as a target");
  expect_refused(message_refused(with(copy_block(1, 4, 2))), kInvalid, "block 2 as a source and as a target");
  expect_refused(message_refused(with(copy_block(1, 4, 3))), kInvalid, "block 3 twice as a target");
  expect_refused(message_refused({fine, device_copy_job(2, {})}), kInvalid, "job 2 has no block");
  EXPECT_EQ(rig_.bind(with(copy_block(0, 2, 4))), Status()) << "a source may be copied twice";
}

// Sources may be written by this very step's forward.
TEST_F(WorkerOrder, DeviceCopiesGoWithTheStoresNotWithTheLoads) {
  rig_.register_layout();
  const auto bind = [&](std::uint64_t first) {
    return rig_.bind({store_job(first, {step_block(0, 1, make_slot_id(0, 0))}),
                      device_copy_job(first + 1, {copy_block(0, 2, 3)}),
                      load_job(first + 2, {step_block(0, 4, make_slot_id(1, 0))})});
  };
  ASSERT_EQ(bind(1), Status());
  ASSERT_EQ(rig_.worker->start_loads(), Status());
  EXPECT_EQ(backend_->in_flight(), std::vector<JobId>{JobId{3}});
  ASSERT_EQ(rig_.worker->start_stores(), Status());
  EXPECT_EQ(backend_->in_flight(), (std::vector<JobId>{JobId{3}, JobId{2}, JobId{1}}));
  backend_->complete_all();
  EXPECT_EQ(rig_.poll().size(), 3U);
  ASSERT_EQ(bind(4), Status());
  EXPECT_TRUE(rig_.poll().empty());
  EXPECT_EQ(backend_->in_flight(), (std::vector<JobId>{JobId{6}, JobId{5}, JobId{4}})) << "poll does what was not done";
  backend_->complete_all();
  EXPECT_EQ(rig_.poll().size(), 3U);
  const WorkerMetrics metrics = rig_.worker->metrics();
  EXPECT_EQ(metrics.device_copied_bytes, 2 * 64);
  EXPECT_EQ(metrics.stored_bytes, 2 * 64);
  EXPECT_EQ(metrics.loaded_bytes, 2 * 64);
}

TEST_F(WorkerOrder, AJobInFlightIsNotTakenAgain) {
  rig_.register_layout();
  const std::vector<StepJob> jobs = {store_job(1, {step_block(0, 1, make_slot_id(0, 0))})};
  EXPECT_EQ(rig_.bind(jobs), Status());
  rig_.poll();
  expect_refused(rig_.bind(jobs), kInvalid, "job 1 is in flight");
  backend_->complete_all();
  expect_refused(rig_.bind(jobs), kInvalid, "job 1 is in flight");
  EXPECT_EQ(rig_.poll().size(), 1U);
  EXPECT_EQ(rig_.bind(jobs), Status());
}

TEST_F(WorkerOrder, AnOldOrRepeatedStepIsRefused) {
  rig_.register_layout();
  const auto bind = [&](std::uint64_t epoch, std::uint64_t sequence) {
    const Status status = rig_.worker->bind_step(encode_step_metadata({epoch, sequence, {}}), {});
    if (status.ok()) {
      rig_.poll();
    }
    return status;
  };
  expect_refused(bind(1, 0), kInvalid, "behind step 0");
  EXPECT_EQ(bind(2, 5), Status());
  expect_refused(bind(2, 5), kInvalid, "step 5 of epoch 2 behind step 5 of epoch 2");
  expect_refused(bind(2, 4), kInvalid, "behind step 5");
  expect_refused(bind(1, 6), kInvalid, "epoch 1 behind");
  EXPECT_EQ(bind(3, 6), Status());
}

// Field case D15.
TEST(WorkerQueue, WhatTheBackendHasNoRoomForIsDeferredNotDropped) {
  auto made = std::make_unique<StepBackend>(1);
  StepBackend* backend = made.get();
  WorkerRig rig(resolved({.groups = {full(4)}}), layer_outermost(8, {32, 32}), std::move(made));
  rig.register_layout();
  std::vector<StepJob> jobs;
  for (std::uint32_t i = 1; i <= 5; ++i) {
    jobs.push_back(store_job(i, {step_block(0, i, make_slot_id(i, 0))}));
  }
  ASSERT_EQ(rig.bind(jobs), Status());
  std::vector<JobId> ended;
  for (int i = 0; i < 12; ++i) {
    for (const JobResult& result : rig.poll()) {
      EXPECT_EQ(result.status, StatusCode::kOk);
      EXPECT_EQ(result.epoch, 1U);
      ended.push_back(result.job);
    }
    EXPECT_LE(backend->in_flight().size(), 1U);
    EXPECT_EQ(rig.worker->metrics().jobs_in_flight, static_cast<std::int64_t>(5 - ended.size()));
    backend->complete_all();
    for (const JobResult& between : rig.poll()) {
      ended.push_back(between.job);
    }
    EXPECT_TRUE(backend->in_flight().empty()) << "no step is bound: there is no stream to order a copy after";
    ASSERT_EQ(rig.bind({}), Status());
  }
  EXPECT_EQ(ended, (std::vector<JobId>{JobId{1}, JobId{2}, JobId{3}, JobId{4}, JobId{5}}));
  EXPECT_EQ(rig.worker->metrics().stored_bytes, 5 * 64);
}

// Field case P8.
TEST_F(WorkerOrder, ShutdownKeepsThePoolUntilTheCopiesHaveEnded) {
  rig_.register_layout();
  ASSERT_EQ(rig_.bind({load_job(1, {step_block(0, 1, make_slot_id(0, 0))}),
                       store_job(2, {step_block(0, 2, make_slot_id(1, 0))})}),
            Status());
  rig_.poll();
  ASSERT_EQ(backend_->in_flight().size(), 2U);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(rig_.worker->shutdown(std::chrono::nanoseconds(0)).code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(rig_.worker->metrics().pool_bytes, 64 * 128);
    ASSERT_EQ(backend_->complete(backend_->in_flight().front()), Status()) << "its memory is still there";
  }
  EXPECT_EQ(rig_.worker->shutdown(kLong), Status());
  EXPECT_EQ(rig_.worker->metrics().pool_bytes, 0);
  EXPECT_EQ(rig_.worker->shutdown(kLong), Status());
  expect_refused(rig_.bind({}), StatusCode::kUnavailable, "shut down");
  expect_refused(rig_.worker->start_loads(), StatusCode::kUnavailable, "shut down");
  expect_refused(rig_.worker->start_stores(), StatusCode::kUnavailable, "shut down");
  expect_refused(rig_.worker->poll().error(), StatusCode::kUnavailable, "shut down");
  expect_refused(rig_.worker->wait_idle(kLong), StatusCode::kUnavailable, "shut down");
  expect_refused(rig_.worker->register_layout(rig_.device.layout).error(), StatusCode::kUnavailable, "shut down");
}

}  // namespace
}  // namespace hostkv::testing
