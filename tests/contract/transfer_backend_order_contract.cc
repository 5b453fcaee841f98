// What a job waits for (R5, R6), and what it does not wait for.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/contract/transfer_backend_contract.h"

namespace hostkv::testing {
namespace {

constexpr std::int64_t kBytes = 4096;

TEST_P(TransferBackendContract, StoresWhatTheStreamWritesBeforeTheJob) {  // R5, field case D1
  stream_->hold();
  stream_->enqueue_fill(device_->region().base, kBytes, 0xAB);
  ASSERT_TRUE(backend_->submit(store_after_stream(1, kBytes)).ok());
  EXPECT_EQ(backend_->wait(JobId{1}, std::chrono::nanoseconds{0}).code(), StatusCode::kDeadlineExceeded);
  expect_untouched(*host_, 0, kBytes, 0);
  stream_->open();
  EXPECT_EQ(only_result().status, StatusCode::kOk);
  expect_untouched(*host_, 0, kBytes, 0xAB);
}

TEST_P(TransferBackendContract, WouldStoreOldBytesWithoutTheStream) {  // the self-check of the test above
  stream_->hold();
  stream_->enqueue_fill(device_->region().base, kBytes, 0xAB);
  TransferJob store = store_after_stream(1, kBytes);
  store.after = {};
  ASSERT_TRUE(backend_->submit(store).ok());
  EXPECT_EQ(only_result().status, StatusCode::kOk) << "a job that is ordered after nothing starts at once";
  EXPECT_EQ(host_->read(0, kBytes), pattern(kBytes, 1));
  stream_->open();
  stream_->synchronize();
}

TEST_P(TransferBackendContract, LoadsAfterTheStreamInitialisedTheTarget) {  // R6, field case F3
  host_->write(0, pattern(kBytes, 5));
  stream_->hold();
  stream_->enqueue_fill(device_->region().base, kBytes, 0);
  TransferJob load = job(1, Direction::kLoad, {load_run(0, 0, kBytes)});
  load.after = stream_->handle();
  ASSERT_TRUE(backend_->submit(load).ok());
  EXPECT_EQ(backend_->wait(JobId{1}, std::chrono::nanoseconds{0}).code(), StatusCode::kDeadlineExceeded);
  stream_->open();
  EXPECT_EQ(only_result().status, StatusCode::kOk);
  stream_->synchronize();
  EXPECT_EQ(device_->read(0, kBytes), pattern(kBytes, 5));
}

TEST_P(TransferBackendContract, DoesNotWaitForWhatIsIssuedAfterSubmit) {
  ASSERT_TRUE(backend_->submit(store_after_stream(1, kBytes)).ok());
  stream_->hold();
  stream_->enqueue_fill(host_->region().base, kBytes, 0x77);
  EXPECT_EQ(only_result().status, StatusCode::kOk);
  EXPECT_EQ(host_->read(0, kBytes), pattern(kBytes, 1));
  stream_->open();
  stream_->synchronize();
}

TEST_P(TransferBackendContract, KeepsLoadsGoingWhileAStoreWaits) {
  host_->write(kBytes, pattern(kBytes, 9));
  stream_->hold();
  ASSERT_TRUE(backend_->submit(store_after_stream(1, kBytes)).ok());
  ASSERT_TRUE(backend_->submit(job(2, Direction::kLoad, {load_run(kBytes, kBytes, kBytes)})).ok());
  EXPECT_TRUE(backend_->wait(JobId{2}, kForever).ok());
  EXPECT_EQ(device_->read(kBytes, kBytes), pattern(kBytes, 9));
  stream_->open();
  EXPECT_EQ(drain_results().size(), 2U);
}

TEST_P(TransferBackendContract, KeepsStoresGoingWhileALoadWaits) {
  stream_->hold();
  TransferJob load = job(1, Direction::kLoad, {load_run(0, 0, kBytes)});
  load.after = stream_->handle();
  ASSERT_TRUE(backend_->submit(load).ok());
  ASSERT_TRUE(backend_->submit(job(2, Direction::kStore, {store_run(kBytes, kBytes, kBytes)})).ok());
  EXPECT_TRUE(backend_->wait(JobId{2}, kForever).ok());
  stream_->open();
  EXPECT_EQ(drain_results().size(), 2U);
}

// R5 and R6 at once: the source is written, and the target zeroed, by what was issued before.
TEST_P(TransferBackendContract, CopiesOnTheDeviceAfterTheStreamWroteSourceAndTarget) {
  auto* base = static_cast<std::byte*>(device_->region().base);
  stream_->hold();
  stream_->enqueue_fill(base, kBytes, 0xAB);
  stream_->enqueue_fill(base + 2 * kBytes, kBytes, 0);
  TransferJob copy = job(1, Direction::kDeviceCopy, {device_run(0, 2 * kBytes, kBytes)});
  copy.after = stream_->handle();
  ASSERT_TRUE(backend_->submit(copy).ok());
  EXPECT_EQ(backend_->wait(JobId{1}, std::chrono::nanoseconds{0}).code(), StatusCode::kDeadlineExceeded);
  stream_->open();
  EXPECT_EQ(only_result().status, StatusCode::kOk);
  stream_->synchronize();
  expect_untouched(*device_, 2 * kBytes, kBytes, 0xAB);
}

TEST_P(TransferBackendContract, KeepsEachDirectionGoingWhileTheOthersWait) {
  // Each direction has places of its own: nothing orders them.
  const auto run_of = [&](Direction direction, std::int64_t offset) {
    const std::int64_t place = static_cast<std::int64_t>(direction) * 2 * kBytes + offset;
    switch (direction) {
      case Direction::kStore:
        return store_run(place, place, kBytes);
      case Direction::kLoad:
        return load_run(place, place, kBytes);
      case Direction::kDeviceCopy:
        break;
    }
    return device_run(place, place + 2 * kBytes, kBytes);
  };
  constexpr std::array kAll = {Direction::kStore, Direction::kLoad, Direction::kDeviceCopy};
  std::uint64_t id = 0;
  for (const Direction free : kAll) {
    stream_->hold();
    for (const Direction held : kAll) {
      if (held != free) {
        TransferJob waiting = job(++id, held, {run_of(held, 0)});
        waiting.after = stream_->handle();
        ASSERT_TRUE(backend_->submit(waiting).ok());
      }
    }
    ASSERT_TRUE(backend_->submit(job(++id, free, {run_of(free, kBytes)})).ok());
    EXPECT_TRUE(backend_->wait(JobId{id}, kForever).ok());
    stream_->open();
    EXPECT_EQ(drain_results().size(), 3U);
  }
}

TEST_P(TransferBackendContract, OrdersEachJobAfterItsOwnStream) {
  const auto other = subject_->make_stream();
  stream_->hold();
  other->hold();
  other->enqueue_fill(device_->region().base, kBytes, 0x11);
  TransferJob store = store_after_stream(1, kBytes);
  store.after = other->handle();
  ASSERT_TRUE(backend_->submit(store).ok());
  other->open();
  EXPECT_EQ(only_result().status, StatusCode::kOk) << "the other stream, still held, does not matter";
  expect_untouched(*host_, 0, kBytes, 0x11);
}

}  // namespace
}  // namespace hostkv::testing
