#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "hostkv/host_backend.h"
#include "tests/support/fault_backend.h"
#include "tests/support/geometry_builders.h"
#include "tests/support/step_backend.h"
#include "tests/unit/connector/worker_rig.h"

namespace hostkv::testing {
namespace {

using Named = std::set<std::pair<std::uint32_t, std::uint32_t>>;

Named named(const JobResult& result) {
  Named blocks;
  for (const FailedBlock& failed : result.failed) {
    blocks.insert({failed.group.value(), failed.block.value()});
  }
  return blocks;
}

// Layers apart: every block of group 0 is two runs, of group 1 one.
struct StepRig {
  explicit StepRig(std::int64_t max_jobs = 64) : StepRig(std::make_unique<StepBackend>(max_jobs)) {}
  explicit StepRig(std::unique_ptr<StepBackend> made)
      : backend(made.get()), rig(resolved({.groups = {full(4), full(4)}}), layout(), std::move(made), 64 * 128) {
    rig.register_layout();
  }
  static OwnedLayout layout() {
    OwnedLayout owned = layer_outermost(12, {32, 32});
    owned.layout.groups.push_back({{0, 0, 32, 32}});
    return owned;
  }
  JobResult failed(const std::vector<StepBlock>& blocks, std::vector<std::uint32_t> runs) {
    EXPECT_EQ(rig.bind({load_job(1, blocks)}), Status());
    rig.poll();
    EXPECT_EQ(backend->fail(JobId{1}, StatusCode::kDeviceError, std::move(runs)), Status());
    const std::vector<JobResult> results = rig.poll();
    EXPECT_EQ(results.size(), 1U);
    EXPECT_EQ(results.at(0).status, StatusCode::kDeviceError);
    return results.at(0);
  }
  StepBackend* backend;
  WorkerRig rig;
};

// R12.
TEST(WorkerFaults, AFailedRunNamesExactlyTheBlocksThatItMoves) {
  const std::vector<StepBlock> blocks = {step_block(0, 3, make_slot_id(0, 0)), step_block(0, 5, make_slot_id(2, 0)),
                                         step_block(1, 7, make_slot_id(4, 0)), step_block(0, 9, make_slot_id(6, 0))};
  const std::vector<Named> by_run = {{{0, 3}}, {{0, 3}}, {{0, 5}}, {{0, 5}}, {{1, 7}}, {{0, 9}}, {{0, 9}}};
  for (std::uint32_t run = 0; run < by_run.size(); ++run) {
    StepRig step;
    EXPECT_EQ(named(step.failed(blocks, {run})), by_run[run]) << "run " << run;
    EXPECT_EQ(step.rig.worker->metrics().failed_jobs, 1);
  }
  StepRig step;
  EXPECT_EQ(named(step.failed(blocks, {1, 4, 6})), (Named{{0, 3}, {1, 7}, {0, 9}}));
}

TEST(WorkerFaults, AFailedRunOfSeveralBlocksNamesAllOfThem) {
  auto made = std::make_unique<StepBackend>();
  StepBackend* backend = made.get();
  WorkerRig rig(resolved({.groups = {full(4)}}), block_outermost(12, {64, 64}), std::move(made), 64 * 128);
  rig.register_layout();
  // 3, 4 and 5 are one run, 8 another.
  ASSERT_EQ(rig.bind({store_job(1, {step_block(0, 3, make_slot_id(3, 0)), step_block(0, 4, make_slot_id(4, 0)),
                                    step_block(0, 5, make_slot_id(5, 0)), step_block(0, 8, make_slot_id(9, 0))})}),
            Status());
  rig.poll();
  ASSERT_EQ(backend->fail(JobId{1}, StatusCode::kDeviceError, {0}), Status());
  const std::vector<JobResult> results = rig.poll();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(named(results[0]), (Named{{0, 3}, {0, 4}, {0, 5}}));
}

// R12.
TEST(WorkerFaults, AFailedDeviceCopyNamesTheTargetsOfItsRuns) {
  auto made = std::make_unique<StepBackend>();
  StepBackend* backend = made.get();
  WorkerRig rig(resolved({.groups = {full(4)}}), block_outermost(12, {64, 64}), std::move(made), 64 * 128);
  rig.register_layout();
  // 1 and 2 onto 5 and 6 are one run, 4 onto 8 another.
  ASSERT_EQ(rig.bind({device_copy_job(1, {copy_block(0, 1, 5), copy_block(0, 2, 6), copy_block(0, 4, 8)})}), Status());
  rig.poll();
  ASSERT_EQ(backend->fail(JobId{1}, StatusCode::kDeviceError, {0}), Status());
  const std::vector<JobResult> results = rig.poll();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(named(results[0]), (Named{{0, 5}, {0, 6}}));
  EXPECT_EQ(rig.worker->metrics().device_copied_bytes, 128);
}

TEST(WorkerFaults, AJobThatExpiredFailsWhole) {
  StepRig step;
  ASSERT_EQ(step.rig.bind({store_job(1, {step_block(0, 3, make_slot_id(0, 0))})}), Status());
  step.rig.poll();
  ASSERT_EQ(step.backend->expire(JobId{1}), Status());
  const std::vector<JobResult> results = step.rig.poll();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].status, StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(results[0].failed.empty() || named(results[0]) == (Named{{0, 3}}));
  EXPECT_EQ(step.rig.worker->metrics().stored_bytes, 0);
}

// R10: what the backend refuses has a result as well.
TEST(WorkerFaults, AJobThatTheBackendRefusesFailsWhole) {
  auto inner = create_host_backend({});
  ASSERT_TRUE(inner.has_value());
  auto made = std::make_unique<FaultBackend>(std::move(*inner));
  FaultBackend* backend = made.get();
  WorkerRig rig(resolved({.groups = {full(4)}}), layer_outermost(12, {32, 32}), std::move(made));
  rig.register_layout();
  backend->fail_next_submit(StatusCode::kUnavailable);
  EXPECT_EQ(rig.run({store_job(1, {step_block(0, 3, make_slot_id(0, 0))})}), StatusCode::kUnavailable);
  EXPECT_EQ(rig.worker->metrics().failed_jobs, 1);
  EXPECT_EQ(rig.worker->metrics().jobs_in_flight, 0);
  backend->fail_next_submit(StatusCode::kResourceExhausted);
  ASSERT_EQ(rig.bind({store_job(1, {step_block(0, 3, make_slot_id(0, 0))})}), Status());
  ASSERT_EQ(rig.worker->start_stores(), Status());
  EXPECT_EQ(rig.worker->metrics().jobs_in_flight, 1) << "deferred";
  std::size_t num_results = rig.poll().size();
  ASSERT_EQ(rig.worker->wait_idle(kLong), Status());
  num_results += rig.poll().size();
  EXPECT_EQ(num_results, 1U);
  EXPECT_EQ(rig.worker->metrics().stored_bytes, 64);
}

TEST(WorkerFaults, SilenceOfTheBackendIsNotAResult) {
  auto inner = create_host_backend({});
  ASSERT_TRUE(inner.has_value());
  auto made = std::make_unique<FaultBackend>(std::move(*inner));
  FaultBackend* backend = made.get();
  WorkerRig rig(resolved({.groups = {full(4)}}), layer_outermost(12, {32, 32}), std::move(made));
  rig.register_layout();
  backend->hold_results();
  ASSERT_EQ(rig.bind({store_job(1, {step_block(0, 3, make_slot_id(0, 0))})}), Status());
  EXPECT_TRUE(rig.poll().empty());
  ASSERT_EQ(rig.worker->wait_idle(kLong), Status());
  EXPECT_TRUE(rig.poll().empty());
  EXPECT_EQ(rig.worker->metrics().jobs_in_flight, 1);
  backend->release_results();
  EXPECT_EQ(rig.poll().size(), 1U);
}

}  // namespace
}  // namespace hostkv::testing
