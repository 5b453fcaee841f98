// Regions, and what submit() refuses.

#include <cstdint>
#include <limits>

#include "tests/contract/transfer_backend_contract.h"

namespace hostkv::testing {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

TEST_P(TransferBackendContract, RefusesRegionsThatAreNullOrEmpty) {
  int byte = 0;
  EXPECT_EQ(backend_->register_region({nullptr, 16, Medium::kHost}).error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(backend_->register_region({&byte, 0, Medium::kHost}).error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(backend_->register_region({&byte, -1, Medium::kHost}).error().code(), StatusCode::kInvalidArgument);
}

TEST_P(TransferBackendContract, AcceptsRegionsThatOverlap) {
  const auto again = backend_->register_region(device_->region());
  ASSERT_TRUE(again.has_value());
  EXPECT_NE(*again, device_region_);
  CopyRun run = store_run(0, 0, 128);
  run.src_region = *again;
  ASSERT_TRUE(backend_->submit(job(1, Direction::kStore, {run})).ok());
  EXPECT_EQ(only_result().status, StatusCode::kOk);
  EXPECT_EQ(host_->read(0, 128), device_->read(0, 128));
}

TEST_P(TransferBackendContract, UnregisterOfAnUnknownRegionIsNotFound) {
  EXPECT_EQ(backend_->unregister_region(RegionId{999}).code(), StatusCode::kNotFound);
  EXPECT_TRUE(backend_->unregister_region(host_region_).ok());
  EXPECT_EQ(backend_->unregister_region(host_region_).code(), StatusCode::kNotFound);
}

TEST_P(TransferBackendContract, KeepsRegionsOfJobsInFlight) {  // R13
  stream_->hold();
  ASSERT_TRUE(backend_->submit(store_after_stream(1)).ok());
  EXPECT_EQ(backend_->unregister_region(device_region_).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(backend_->unregister_region(host_region_).code(), StatusCode::kFailedPrecondition);
  stream_->open();
  ASSERT_TRUE(backend_->wait(JobId{1}, kForever).ok());
  EXPECT_TRUE(backend_->unregister_region(device_region_).ok());
  EXPECT_TRUE(backend_->unregister_region(host_region_).ok());
  EXPECT_EQ(only_result().status, StatusCode::kOk);
}

TEST_P(TransferBackendContract, LetsRegionsGoAfterCancel) {
  stream_->hold();
  ASSERT_TRUE(backend_->submit(store_after_stream(1)).ok());
  ASSERT_TRUE(backend_->cancel(JobId{1}).ok());
  ASSERT_TRUE(backend_->wait(JobId{1}, kForever).ok());
  EXPECT_TRUE(backend_->unregister_region(device_region_).ok());
}

TEST_P(TransferBackendContract, RefusesRunsOutsideTheirRegion) {  // R16
  struct Range {
    std::int64_t offset;
    std::int64_t size;
  };
  const Range outside[] = {
      {0, 0},
      {0, -1},
      {-1, 1},
      {kRegionBytes, 1},
      {kRegionBytes - 1, 2},
      {0, kRegionBytes + 1},
      {1, kRegionBytes},
      {kMax, 1},
      {1, kMax},
      {kMin, 1},
      {0, kMin},
      {kMax, kMax},
      {kMin, kMin},
      {-1, kMax},
  };
  std::uint64_t id = 1;
  for (const Range& range : outside) {
    SCOPED_TRACE("offset " + std::to_string(range.offset) + " size " + std::to_string(range.size));
    const CopyRun bad_source = store_run(range.offset, 0, range.size);
    const CopyRun bad_target = store_run(0, range.offset, range.size);
    EXPECT_EQ(backend_->submit(job(id++, Direction::kStore, {bad_source})).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(backend_->submit(job(id++, Direction::kStore, {bad_target})).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(drain_results().empty());
  expect_untouched(*host_, 0, kRegionBytes, 0);
}

TEST_P(TransferBackendContract, AcceptsRunsUpToTheEndOfTheirRegion) {
  ASSERT_TRUE(backend_->submit(job(1, Direction::kStore, {store_run(0, 0, kRegionBytes)})).ok());
  ASSERT_TRUE(backend_->wait(JobId{1}, kForever).ok());
  ASSERT_TRUE(backend_->submit(job(2, Direction::kStore, {store_run(kRegionBytes - 1, 0, 1)})).ok());
  EXPECT_EQ(drain_results().size(), 2U);
}

TEST_P(TransferBackendContract, RefusesUnknownRegions) {
  CopyRun run = store_run(0, 0, 16);
  run.dst_region = RegionId{999};
  EXPECT_EQ(backend_->submit(job(1, Direction::kStore, {run})).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(backend_->unregister_region(device_region_).ok());
  EXPECT_EQ(backend_->submit(job(1, Direction::kStore, {store_run(0, 0, 16)})).code(), StatusCode::kInvalidArgument);
}

TEST_P(TransferBackendContract, RefusesJobsWithoutRuns) {
  EXPECT_EQ(backend_->submit(job(1, Direction::kLoad, {})).code(), StatusCode::kInvalidArgument);
}

TEST_P(TransferBackendContract, RefusesAnIdThatIsInFlight) {
  stream_->hold();
  ASSERT_TRUE(backend_->submit(store_after_stream(7)).ok());
  EXPECT_EQ(backend_->submit(job(7, Direction::kLoad, {load_run(0, 0, 16)})).code(), StatusCode::kInvalidArgument);
  stream_->open();
  EXPECT_EQ(only_result().id, JobId{7});
  EXPECT_TRUE(backend_->submit(store_after_stream(7)).ok()) << "the id is free again once its result was polled";
  EXPECT_EQ(only_result().id, JobId{7});
}

TEST_P(TransferBackendContract, LeavesNothingBehindAfterARefusal) {
  const std::vector<CopyRun> good_and_bad = {store_run(0, 0, 64), store_run(64, 64, 64), store_run(0, kMax, 64)};
  ASSERT_EQ(backend_->submit(job(1, Direction::kStore, good_and_bad)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(backend_->wait(JobId{1}, kForever).code(), StatusCode::kNotFound);
  EXPECT_EQ(backend_->cancel(JobId{1}).code(), StatusCode::kNotFound);
  EXPECT_TRUE(drain_results().empty());
  expect_untouched(*host_, 0, kRegionBytes, 0);
  ASSERT_TRUE(backend_->submit(job(1, Direction::kStore, {store_run(0, 0, 64)})).ok());
  EXPECT_EQ(only_result().bytes_moved, 64);
  EXPECT_TRUE(backend_->unregister_region(device_region_).ok());
  EXPECT_TRUE(backend_->unregister_region(host_region_).ok());
}

TEST_P(TransferBackendContract, AnswersResourceExhaustedWhenTheQueueIsFull) {  // D15
  ASSERT_EQ(backend_->capabilities().max_jobs_in_flight, kMaxJobs);
  stream_->hold();
  for (std::int64_t i = 0; i < kMaxJobs; ++i) {
    ASSERT_TRUE(backend_->submit(store_after_stream(static_cast<std::uint64_t>(i + 1))).ok());
  }
  const auto one_more = static_cast<std::uint64_t>(kMaxJobs + 1);
  EXPECT_EQ(backend_->submit(store_after_stream(one_more)).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(backend_->wait(JobId{one_more}, kForever).code(), StatusCode::kNotFound);
  stream_->open();
  EXPECT_EQ(drain_results().size(), static_cast<std::size_t>(kMaxJobs));
  EXPECT_TRUE(backend_->unregister_region(device_region_).ok());
}

TEST_P(TransferBackendContract, HasRoomAgainAfterTheResultsWerePolled) {
  for (std::uint64_t id = 1; id <= 5 * static_cast<std::uint64_t>(kMaxJobs); ++id) {
    ASSERT_TRUE(backend_->submit(job(id, Direction::kStore, {store_run(0, 0, 16)})).ok());
    EXPECT_EQ(only_result().id, JobId{id});
  }
}

}  // namespace
}  // namespace hostkv::testing
