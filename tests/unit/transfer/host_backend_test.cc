#include "hostkv/host_backend.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/stream_gate.h"

namespace hostkv {
namespace {

using hostkv::testing::StreamGate;
constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();

TEST(HostBackendOptions, AreRefusedOutsideTheirRange) {
  for (const std::int64_t threads : {0, -1, 65}) {
    const auto made = create_host_backend({.copy_threads = threads});
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(made.error().message().find("copy_threads is " + std::to_string(threads)), std::string::npos);
    EXPECT_NE(made.error().message().find("1 to 64"), std::string::npos);
  }
  for (const std::int64_t jobs : {0, -1, 1'000'001}) {
    const auto made = create_host_backend({.max_jobs_in_flight = jobs});
    ASSERT_FALSE(made.has_value());
    EXPECT_NE(made.error().message().find("max_jobs_in_flight is " + std::to_string(jobs)), std::string::npos);
  }
  EXPECT_TRUE(create_host_backend({.copy_threads = 1, .max_jobs_in_flight = 1}).has_value());
  EXPECT_TRUE(create_host_backend({.copy_threads = 64, .max_jobs_in_flight = 1'000'000}).has_value());
}

class HostBackendTest : public ::testing::Test {
 protected:
  explicit HostBackendTest(std::size_t size = std::size_t{64} << 10) : device_(size, 1), host_(size) { start(); }

  void start() {
    backend_ = create_host_backend({.copy_threads = 2}).value();
    const auto size = static_cast<std::int64_t>(device_.size());
    device_region_ = backend_->register_region({device_.data(), size, Medium::kDevice}).value();
    host_region_ = backend_->register_region({host_.data(), size, Medium::kHost}).value();
  }

  [[nodiscard]] TransferJob store(std::uint64_t id, std::int64_t offset, std::int64_t size) const {
    return {.id = JobId{id},
            .direction = Direction::kStore,
            .runs = {{device_region_, offset, host_region_, offset, size}},
            .after = {},
            .deadline = {}};
  }

  std::vector<std::uint8_t> device_;
  std::vector<std::uint8_t> host_;
  std::unique_ptr<TransferBackend> backend_;
  RegionId device_region_;
  RegionId host_region_;
};

TEST_F(HostBackendTest, LetsLaterJobsOfTheSameDirectionPassOneThatWaits) {
  HostStream stream("compute");
  StreamGate gate(stream);
  TransferJob waiting = store(1, 0, 64);
  waiting.after = stream.handle();
  ASSERT_TRUE(backend_->submit(waiting).ok());
  ASSERT_TRUE(backend_->submit(store(2, 64, 64)).ok());
  EXPECT_TRUE(backend_->wait(JobId{2}, kForever).ok());
  EXPECT_EQ(host_[0], 0);
  EXPECT_EQ(host_[64], 1);
  gate.open();
  EXPECT_TRUE(backend_->drain(kForever).ok());
}

TEST_F(HostBackendTest, StreamMayGoOnceTheJobIsSubmitted) {
  {
    HostStream stream("short");
    TransferJob job = store(1, 0, 64);
    job.after = stream.handle();
    ASSERT_TRUE(backend_->submit(job).ok());
  }
  EXPECT_TRUE(backend_->wait(JobId{1}, kForever).ok());
  EXPECT_EQ(host_[0], 1);
}

TEST_F(HostBackendTest, MaySubmitFromTheStreamItself) {
  HostStream stream("compute");
  stream.enqueue([&] {
    TransferJob job = store(1, 0, 64);
    job.after = stream.handle();
    EXPECT_TRUE(backend_->submit(job).ok());
  });
  stream.synchronize();
  EXPECT_TRUE(backend_->wait(JobId{1}, kForever).ok());
}

TEST_F(HostBackendTest, RefusesARunOntoItself) {
  TransferJob job = store(1, 0, 64);
  job.runs[0].dst_region = device_region_;
  job.runs[0].dst_offset_bytes = 63;
  const Status status = backend_->submit(job);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("overlap"), std::string::npos);
  job.runs[0].dst_offset_bytes = 64;
  EXPECT_TRUE(backend_->submit(job).ok());
}

TEST_F(HostBackendTest, MessagesNameTheJobTheRunAndTheBounds) {
  TransferJob job = store(9, 0, 64);
  job.runs.push_back({device_region_, 65'530, host_region_, 0, 64});
  const std::string message = backend_->submit(job).message();
  for (const char* part : {"job 9", "run 1", "source", "65530", "64", "65536"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message << " lacks " << part;
  }
}

TEST_F(HostBackendTest, TakesManyBlocksInOneJob) {  // D15: a step's copies are one job, not one submit a block
  TransferJob job = store(1, 0, 8);
  for (std::int64_t i = 1; i < 5000; ++i) {
    job.runs.push_back({device_region_, i * 8, host_region_, i * 8, 8});
  }
  ASSERT_TRUE(backend_->submit(job).ok());
  ASSERT_TRUE(backend_->drain(kForever).ok());
  std::array<TransferResult, 2> results;
  ASSERT_EQ(backend_->poll(results), 1U);
  EXPECT_EQ(results[0].bytes_moved, 40'000);
}

class BigHostBackendTest : public HostBackendTest {
 protected:
  static constexpr std::int64_t kBytes = std::int64_t{8} << 20;
  BigHostBackendTest() : HostBackendTest(static_cast<std::size_t>(kBytes)) {}
};

// Whatever had started has ended when the backend is gone: all of its bytes or none, and none later (R13, P8).
TEST_F(BigHostBackendTest, GoesAwayOnlyAfterStartedCopies) {
  for (int round = 0; round < 8; ++round) {
    std::fill(host_.begin(), host_.end(), std::uint8_t{0});
    ASSERT_TRUE(backend_->submit(store(1, 0, kBytes)).ok());
    backend_.reset();
    EXPECT_EQ(host_.front(), host_.back());
    const std::vector<std::uint8_t> snapshot = host_;
    start();
    EXPECT_EQ(host_, snapshot);
  }
}

// A load does not wait for a long store: the directions have threads of their own. Both must be right afterwards.
TEST_F(BigHostBackendTest, RunsBothDirectionsSideBySide) {
  TransferJob load = store(2, 0, kBytes / 2);
  load.direction = Direction::kLoad;
  load.runs[0] = {host_region_, 0, device_region_, 0, kBytes / 2};
  ASSERT_TRUE(backend_->submit(store(1, kBytes / 2, kBytes / 2)).ok());
  ASSERT_TRUE(backend_->submit(load).ok());
  ASSERT_TRUE(backend_->drain(kForever).ok());
  EXPECT_EQ(device_.front(), 0);
  EXPECT_EQ(host_.back(), 1);
}

}  // namespace
}  // namespace hostkv
