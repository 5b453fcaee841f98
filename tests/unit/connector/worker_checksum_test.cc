// Bytes that change in host memory between store and load (R11).

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "hostkv/host_backend.h"
#include "recovery/block_checksums.h"
#include "tests/support/fault_backend.h"
#include "tests/support/geometry_builders.h"
#include "tests/unit/connector/worker_rig.h"

namespace hostkv::testing {
namespace {

constexpr std::uint32_t kBlocks = 8;

// Two groups of different sizes; blocks of group 0 lie in two regions.
struct ChecksumRig {
  explicit ChecksumRig(ChecksumMode mode = ChecksumMode::kAll) : ChecksumRig(mode, make_backend()) {}
  ChecksumRig(ChecksumMode mode, std::unique_ptr<FaultBackend> made)
      : backend(made.get()),
        rig(resolved({.groups = {full(4), full(4)}}), layout(), std::move(made), 64 * 128, {}, mode) {
    capacity = rig.register_layout();
    rig.fill_device(5);
  }
  static std::unique_ptr<FaultBackend> make_backend() {
    return std::make_unique<FaultBackend>(std::move(*create_host_backend({})));
  }
  static OwnedLayout layout() {
    OwnedLayout owned = layer_outermost(20, {32, 32});
    owned.layout.groups.push_back({{0, 0, 32, 32}});
    return owned;
  }

  // Blocks 1 .. of group 0 and 1 in turn, each in a slab of its own.
  static std::vector<StepBlock> blocks(std::uint32_t first_block = 1) {
    std::vector<StepBlock> made;
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      made.push_back(step_block(i % 2, first_block + i, make_slot_id(i, 0)));
    }
    return made;
  }
  StatusCode store(std::uint64_t job = 1) { return rig.run({store_job(job, blocks())}); }
  void flip(std::uint32_t block, std::size_t byte, unsigned bit = 0) {
    const StepBlock at = blocks()[block];
    rig.worker->host_block(at.group, at.slot).value()[byte] ^= std::byte{1} << bit;
  }
  JobResult load(std::uint64_t job = 2) {
    EXPECT_EQ(rig.bind({load_job(job, blocks(11))}), Status());
    std::vector<JobResult> results = rig.poll();
    EXPECT_EQ(rig.worker->wait_idle(kLong), Status());
    for (JobResult& late : rig.poll()) {
      results.push_back(std::move(late));
    }
    EXPECT_EQ(results.size(), 1U);
    return results.at(0);
  }

  FaultBackend* backend;
  WorkerRig rig;
  WorkerCapacity capacity;
};

TEST(WorkerChecksums, AFlippedBitFailsItsBlockAndNoOther) {
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    const std::size_t size = block % 2 == 0 ? 64 : 32;
    for (const std::size_t byte : {std::size_t{0}, size / 2, size - 1}) {
      ChecksumRig sums;
      ASSERT_EQ(sums.store(), StatusCode::kOk);
      sums.flip(block, byte, block % 8);
      const JobResult result = sums.load();
      EXPECT_EQ(result.status, StatusCode::kDataCorruption);
      const StepBlock target = ChecksumRig::blocks(11)[block];
      EXPECT_EQ(result.failed, (std::vector<FailedBlock>{{target.group, target.block}}));
      EXPECT_EQ(sums.rig.worker->metrics().checked_blocks, kBlocks);
      EXPECT_EQ(sums.rig.worker->metrics().changed_blocks, 1);
      EXPECT_EQ(sums.rig.worker->metrics().failed_jobs, 1);
    }
  }
}

TEST(WorkerChecksums, WhatIsUntouchedPassesAndWhatIsStoredAnewPassesAgain) {
  ChecksumRig sums;
  ASSERT_EQ(sums.store(), StatusCode::kOk);
  EXPECT_EQ(sums.load().status, StatusCode::kOk);
  sums.flip(3, 1);
  EXPECT_EQ(sums.load(3).status, StatusCode::kDataCorruption);
  sums.rig.fill_device(6);
  ASSERT_EQ(sums.store(4), StatusCode::kOk);
  EXPECT_EQ(sums.load(5).status, StatusCode::kOk);
  EXPECT_EQ(sums.rig.worker->metrics().changed_blocks, 1);
}

TEST(WorkerChecksums, AllBlocksChangedIsAFailureOfTheWholeJob) {
  ChecksumRig sums;
  ASSERT_EQ(sums.store(), StatusCode::kOk);
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    sums.flip(block, 7);
  }
  const JobResult result = sums.load();
  EXPECT_EQ(result.status, StatusCode::kDataCorruption);
  EXPECT_TRUE(result.failed.empty());
}

TEST(WorkerChecksums, ABlockFailsByCopyOrByCheck) {
  ChecksumRig sums;
  ASSERT_EQ(sums.store(), StatusCode::kOk);
  sums.flip(5, 3);
  sums.backend->fail_run(JobId{2}, 0);  // a run of block 0
  const JobResult result = sums.load();
  EXPECT_EQ(result.status, StatusCode::kDeviceError);
  const std::vector<StepBlock> targets = ChecksumRig::blocks(11);
  EXPECT_EQ(result.failed,
            (std::vector<FailedBlock>{{targets[0].group, targets[0].block}, {targets[5].group, targets[5].block}}));
}

TEST(WorkerChecksums, ACopyThatFailedWhollyStaysWhollyFailed) {
  ChecksumRig sums;
  ASSERT_EQ(sums.store(), StatusCode::kOk);
  sums.flip(5, 3);
  sums.backend->fail_next_submit(StatusCode::kDeviceError);
  const JobResult result = sums.load();
  EXPECT_EQ(result.status, StatusCode::kDeviceError);
  EXPECT_TRUE(result.failed.empty());
}

// The other sets of the job are published: their blocks are checked like all others.
TEST(WorkerChecksums, BlocksOfAStoreThatFailedInPartAreCheckedToo) {
  ChecksumRig sums;
  sums.backend->fail_run(JobId{1}, 0);
  ASSERT_EQ(sums.store(), StatusCode::kDeviceError);
  sums.flip(6, 0);
  const JobResult result = sums.load();
  EXPECT_EQ(result.status, StatusCode::kDataCorruption);
  const StepBlock target = ChecksumRig::blocks(11)[6];
  EXPECT_EQ(result.failed, (std::vector<FailedBlock>{{target.group, target.block}}));
}

TEST(WorkerChecksums, OffChecksNothing) {
  ChecksumRig sums(ChecksumMode::kOff);
  ASSERT_EQ(sums.store(), StatusCode::kOk);
  sums.flip(0, 0);
  EXPECT_EQ(sums.load().status, StatusCode::kOk);
  EXPECT_EQ(sums.rig.worker->metrics().checked_blocks, 0);
}

TEST(WorkerChecksums, AJobEndsOnceHoweverOftenItIsPolled) {
  ChecksumRig sums;
  EXPECT_EQ(sums.rig.bind({store_job(1, ChecksumRig::blocks())}), Status());
  std::size_t results = 0;
  while (results == 0) {
    results += sums.rig.poll().size();
  }
  EXPECT_EQ(sums.rig.poll().size(), 0U);
  EXPECT_EQ(sums.rig.worker->metrics().jobs_in_flight, 0);
}

TEST(WorkerChecksums, ShutdownWhileChecksAreTakenLeavesNothingBehind) {
  for (int i = 0; i < 50; ++i) {
    ChecksumRig sums;
    EXPECT_EQ(sums.rig.bind({store_job(1, ChecksumRig::blocks())}), Status());
    sums.rig.poll();
    EXPECT_EQ(sums.rig.worker->shutdown(kLong), Status());
  }
}

// Every slab has its share, also where a slab is one slot.
TEST(BlockChecksumsTest, SampledCoversOnePlaceInSixteenOfEveryKind) {
  constexpr std::size_t kPlaces = 1 << 16;
  BlockChecksums sums(ChecksumMode::kSampled, kPlaces, 1);
  for (const std::size_t step : {1U, 2U, 16U, 63U, 64U, 256U}) {
    std::size_t covered = 0;
    for (std::size_t place = 0; place < kPlaces; place += step) {
      covered += sums.covers(place) ? std::size_t{1} : std::size_t{0};
    }
    const double share = static_cast<double>(covered) * static_cast<double>(step) / kPlaces;
    EXPECT_NEAR(share, 1.0 / BlockChecksums::kSampledOneIn, 0.02) << "every " << step;
  }
  EXPECT_FALSE(sums.covers(kPlaces));
}

}  // namespace
}  // namespace hostkv::testing
