// What a job copies, how it ends, and who learns of it.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "tests/contract/transfer_backend_contract.h"
#include "tests/support/test_seed.h"

namespace hostkv::testing {
namespace {

using std::chrono::steady_clock;

TEST_P(TransferBackendContract, CopiesEveryRunAndNothingBeside) {
  const std::uint64_t seed = test_seed(20261130);
  SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr std::int64_t kBlock = 256;
  for (const Direction direction : {Direction::kStore, Direction::kLoad}) {
    const bool store = direction == Direction::kStore;
    ContractMemory& target = store ? *host_ : *device_;
    std::vector<std::uint8_t> expected = target.read(0, kRegionBytes);
    const std::vector<std::uint8_t> source = (store ? *device_ : *host_).read(0, kRegionBytes);
    std::vector<CopyRun> runs;
    std::int64_t moved = 0;
    for (std::int64_t block = 0; block < kRegionBytes / kBlock; block += 2) {
      const auto size = static_cast<std::int64_t>(random() % kBlock + 1);
      const auto src = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(kRegionBytes - size));
      const std::int64_t dst = block * kBlock;
      runs.push_back(store ? store_run(src, dst, size) : load_run(src, dst, size));
      std::copy_n(source.begin() + src, size, expected.begin() + dst);
      moved += size;
    }
    ASSERT_TRUE(backend_->submit(job(1, direction, runs)).ok());
    const TransferResult result = only_result();
    EXPECT_EQ(result.status, StatusCode::kOk);
    EXPECT_EQ(result.bytes_moved, moved);
    EXPECT_TRUE(result.failed_runs.empty());
    EXPECT_GE(result.duration.count(), 0);
    EXPECT_EQ(target.read(0, kRegionBytes), expected);
  }
}

// Sources in the lower half of the region, targets in the upper half, in no order.
TEST_P(TransferBackendContract, CopiesInsideADeviceRegionAndNothingBeside) {
  const std::uint64_t seed = test_seed(20261201);
  SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr std::int64_t kHalf = kRegionBytes / 2;
  constexpr std::int64_t kBlock = 256;
  std::vector<std::uint8_t> expected = device_->read(0, kRegionBytes);
  std::vector<CopyRun> runs;
  std::int64_t moved = 0;
  for (std::int64_t block = kHalf / kBlock - 1; block >= 0; block -= 2) {
    const auto size = static_cast<std::int64_t>(random() % kBlock + 1);
    const auto src = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(kHalf - size));
    const std::int64_t dst = kHalf + block * kBlock;
    runs.push_back(device_run(src, dst, size));
    std::copy_n(expected.begin() + src, size, expected.begin() + dst);
    moved += size;
  }
  ASSERT_TRUE(backend_->submit(job(1, Direction::kDeviceCopy, runs)).ok());
  const TransferResult result = only_result();
  EXPECT_EQ(result.status, StatusCode::kOk);
  EXPECT_EQ(result.bytes_moved, moved);
  EXPECT_TRUE(result.failed_runs.empty());
  EXPECT_EQ(device_->read(0, kRegionBytes), expected);
  expect_untouched(*host_, 0, kRegionBytes, 0);
}

TEST_P(TransferBackendContract, CopiesFromOneDeviceRegionToAnother) {
  const auto other = subject_->make_memory(4096, Medium::kDevice);
  other->write(0, constant(4096, 0x66));
  const RegionId target = backend_->register_region(other->region()).value();
  const CopyRun run{device_region_, 100, target, 1000, 2000};
  ASSERT_TRUE(backend_->submit(job(1, Direction::kDeviceCopy, {run})).ok());
  EXPECT_EQ(only_result().status, StatusCode::kOk);
  EXPECT_EQ(other->read(1000, 2000), device_->read(100, 2000));
  expect_untouched(*other, 0, 1000, 0x66);
  expect_untouched(*other, 3000, 1096, 0x66);
}

TEST_P(TransferBackendContract, CancelsAndTimesOutDeviceCopiesAsAllOthers) {  // R10
  stream_->hold();
  for (const std::uint64_t id : {1U, 2U}) {
    TransferJob copy = job(id, Direction::kDeviceCopy, {device_run(0, 8192, 64), device_run(64, 9000, 64)});
    copy.after = stream_->handle();
    if (id == 2) {
      copy.deadline = steady_clock::now() + std::chrono::milliseconds{1};
    }
    ASSERT_TRUE(backend_->submit(copy).ok());
  }
  EXPECT_TRUE(backend_->cancel(JobId{1}).ok());
  expect_all_failed(only_result_of(JobId{1}), StatusCode::kCanceled, 2);
  EXPECT_TRUE(backend_->wait(JobId{2}, kForever).ok());
  expect_all_failed(only_result_of(JobId{2}), StatusCode::kDeadlineExceeded, 2);
  stream_->open();
  stream_->synchronize();
  EXPECT_EQ(device_->read(0, kRegionBytes), pattern(kRegionBytes, 1));
}

TEST_P(TransferBackendContract, CopiesBigJobsExactly) {  // big enough to be shared over threads, at uneven places
  constexpr std::int64_t kBig = 3 * 1024 * 1024 + 17;
  const auto source = subject_->make_memory(kBig, Medium::kDevice);
  const auto target = subject_->make_memory(kBig, Medium::kHost);
  source->write(0, pattern(kBig, 3));
  const RegionId src = backend_->register_region(source->region()).value();
  const RegionId dst = backend_->register_region(target->region()).value();
  std::vector<CopyRun> runs = {{src, 0, dst, 0, kBig / 2 + 1}};
  for (std::int64_t at = kBig / 2 + 1; at < kBig; at += 4097) {
    runs.push_back({src, at, dst, at, std::min<std::int64_t>(4097, kBig - at)});
  }
  ASSERT_TRUE(backend_->submit(job(1, Direction::kStore, runs)).ok());
  EXPECT_EQ(only_result().bytes_moved, kBig);
  EXPECT_EQ(target->read(0, kBig), pattern(kBig, 3));
}

TEST_P(TransferBackendContract, PollsResultsOldestFirstAndOnlyAsManyAsFit) {
  for (const std::uint64_t id : {30U, 10U, 20U}) {
    ASSERT_TRUE(backend_->submit(job(id, Direction::kStore, {store_run(0, 0, 16)})).ok());
    ASSERT_TRUE(backend_->wait(JobId{id}, kForever).ok());
  }
  std::array<TransferResult, 2> two;
  ASSERT_EQ(backend_->poll({}), 0U);
  ASSERT_EQ(backend_->poll(two), 2U);
  EXPECT_EQ(two[0].id, JobId{30});
  EXPECT_EQ(two[1].id, JobId{10});
  ASSERT_EQ(backend_->poll(two), 1U);
  EXPECT_EQ(two[0].id, JobId{20});
  EXPECT_EQ(backend_->poll(two), 0U);
}

TEST_P(TransferBackendContract, PollDoesNotBlockWhileAJobWaits) {
  stream_->hold();
  ASSERT_TRUE(backend_->submit(store_after_stream(1)).ok());
  std::array<TransferResult, 1> one;
  EXPECT_EQ(backend_->poll(one), 0U);
  stream_->open();
  EXPECT_EQ(only_result().id, JobId{1});
}

TEST_P(TransferBackendContract, WaitKnowsJobsUntilTheyWerePolled) {
  EXPECT_EQ(backend_->wait(JobId{1}, kForever).code(), StatusCode::kNotFound);
  stream_->hold();
  ASSERT_TRUE(backend_->submit(store_after_stream(1)).ok());
  EXPECT_EQ(backend_->wait(JobId{1}, std::chrono::nanoseconds{0}).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(backend_->wait(JobId{1}, std::chrono::microseconds{50}).code(), StatusCode::kDeadlineExceeded);
  stream_->open();
  EXPECT_TRUE(backend_->wait(JobId{1}, kForever).ok());
  EXPECT_TRUE(backend_->wait(JobId{1}, std::chrono::nanoseconds{0}).ok()) << "the result is there, not polled";
  EXPECT_EQ(only_result().id, JobId{1});
  EXPECT_EQ(backend_->wait(JobId{1}, kForever).code(), StatusCode::kNotFound);
}

TEST_P(TransferBackendContract, CancelEndsAWaitingJobAtOnce) {  // R10
  stream_->hold();
  TransferJob store = job(1, Direction::kStore, {store_run(0, 0, 64), store_run(64, 64, 64)});
  store.after = stream_->handle();
  ASSERT_TRUE(backend_->submit(store).ok());
  std::thread waiter([this] { EXPECT_TRUE(backend_->wait(JobId{1}, kForever).ok()); });
  EXPECT_TRUE(backend_->cancel(JobId{1}).ok());
  waiter.join();
  expect_all_failed(only_result(), StatusCode::kCanceled, 2);
  stream_->open();
  stream_->synchronize();
  EXPECT_TRUE(drain_results().empty());
  expect_untouched(*host_, 0, kRegionBytes, 0);
}

TEST_P(TransferBackendContract, CancelledJobHoldsNobodyUp) {
  stream_->hold();
  ASSERT_TRUE(backend_->submit(store_after_stream(1)).ok());
  ASSERT_TRUE(backend_->cancel(JobId{1}).ok());
  ASSERT_TRUE(backend_->submit(job(2, Direction::kStore, {store_run(0, 0, 16)})).ok());
  EXPECT_TRUE(backend_->wait(JobId{2}, kForever).ok());
  EXPECT_EQ(drain_results().size(), 2U);
}

TEST_P(TransferBackendContract, CancelChangesNothingOnceAJobHasEnded) {
  EXPECT_EQ(backend_->cancel(JobId{1}).code(), StatusCode::kNotFound);
  ASSERT_TRUE(backend_->submit(job(1, Direction::kStore, {store_run(0, 0, 16)})).ok());
  ASSERT_TRUE(backend_->wait(JobId{1}, kForever).ok());
  EXPECT_TRUE(backend_->cancel(JobId{1}).ok());
  EXPECT_EQ(only_result().status, StatusCode::kOk);
  EXPECT_EQ(backend_->cancel(JobId{1}).code(), StatusCode::kNotFound);
}

TEST_P(TransferBackendContract, CancelTwiceGivesOneResult) {
  stream_->hold();
  ASSERT_TRUE(backend_->submit(store_after_stream(1)).ok());
  EXPECT_TRUE(backend_->cancel(JobId{1}).ok());
  EXPECT_TRUE(backend_->cancel(JobId{1}).ok());
  expect_all_failed(only_result(), StatusCode::kCanceled, 1);
}

TEST_P(TransferBackendContract, EndsLateJobsThoughTheirEventNeverComes) {
  stream_->hold();
  TransferJob store = store_after_stream(1);
  store.deadline = steady_clock::now() + std::chrono::milliseconds{5};
  ASSERT_TRUE(backend_->submit(store).ok());
  EXPECT_TRUE(backend_->wait(JobId{1}, kForever).ok());
  EXPECT_GE(steady_clock::now(), *store.deadline);
  expect_all_failed(only_result(), StatusCode::kDeadlineExceeded, 1);
  ASSERT_TRUE(backend_->submit(job(2, Direction::kStore, {store_run(0, 64, 16)})).ok());
  EXPECT_TRUE(backend_->wait(JobId{2}, kForever).ok()) << "the queue goes on behind a late job";
  stream_->open();
  stream_->synchronize();
  EXPECT_EQ(only_result().id, JobId{2});
  expect_untouched(*host_, 0, 64, 0);
}

TEST_P(TransferBackendContract, DoesNotStartJobsThatAreLateAtSubmit) {
  TransferJob store = job(1, Direction::kStore, {store_run(0, 0, 64)});
  store.deadline = steady_clock::now() - std::chrono::seconds{1};
  ASSERT_TRUE(backend_->submit(store).ok());
  expect_all_failed(only_result(), StatusCode::kDeadlineExceeded, 1);
  expect_untouched(*host_, 0, kRegionBytes, 0);
}

TEST_P(TransferBackendContract, RunsJobsWhoseDeadlineIsFar) {
  TransferJob store = store_after_stream(1);
  store.deadline = steady_clock::now() + std::chrono::hours{1};
  ASSERT_TRUE(backend_->submit(store).ok());
  EXPECT_EQ(only_result().status, StatusCode::kOk);
}

TEST_P(TransferBackendContract, DrainWaitsForJobsAndKeepsTheirResults) {
  EXPECT_TRUE(backend_->drain(std::chrono::nanoseconds{0}).ok()) << "nothing in flight";
  stream_->hold();
  ASSERT_TRUE(backend_->submit(store_after_stream(1)).ok());
  EXPECT_EQ(backend_->drain(std::chrono::nanoseconds{0}).code(), StatusCode::kDeadlineExceeded);
  stream_->open();
  EXPECT_TRUE(backend_->drain(kForever).ok());
  EXPECT_TRUE(backend_->drain(std::chrono::nanoseconds{0}).ok());
  std::array<TransferResult, 4> results;
  EXPECT_EQ(backend_->poll(results), 1U);
}

TEST_P(TransferBackendContract, GoesAwayWhileJobsWaitAndTouchesNothingLater) {  // R13, P8
  stream_->hold();
  ASSERT_TRUE(backend_->submit(store_after_stream(1)).ok());
  TransferJob load = job(2, Direction::kLoad, {load_run(0, 0, 4096)});
  load.after = stream_->handle();
  ASSERT_TRUE(backend_->submit(load).ok());
  stop_backend();
  stream_->open();
  stream_->synchronize();
  expect_untouched(*host_, 0, kRegionBytes, 0);
  EXPECT_EQ(device_->read(0, kRegionBytes), pattern(kRegionBytes, 1));
}

}  // namespace
}  // namespace hostkv::testing
