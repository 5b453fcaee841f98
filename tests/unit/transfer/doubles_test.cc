// The doubles that other tests rely on do what they say.

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "hostkv/host_backend.h"
#include "tests/support/fault_backend.h"
#include "tests/support/step_backend.h"
#include "tests/support/stream_gate.h"

namespace hostkv::testing {
namespace {

constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();
constexpr std::int64_t kRunBytes = 16;

struct Memory {
  explicit Memory(TransferBackend& backend) {
    src = backend.register_region({source.data(), 64, Medium::kDevice}).value();
    dst = backend.register_region({target.data(), 64, Medium::kHost}).value();
  }
  [[nodiscard]] TransferJob job(std::uint64_t id, std::int64_t num_runs = 1) const {
    TransferJob made{.id = JobId{id}, .direction = Direction::kStore, .runs = {}, .after = {}, .deadline = {}};
    for (std::int64_t i = 0; i < num_runs; ++i) {
      made.runs.push_back({src, i * kRunBytes, dst, i * kRunBytes, kRunBytes});
    }
    return made;
  }
  std::vector<std::uint8_t> source = std::vector<std::uint8_t>(64, 7);
  std::vector<std::uint8_t> target = std::vector<std::uint8_t>(64, 0);
  RegionId src;
  RegionId dst;
};

std::vector<TransferResult> poll_all(TransferBackend& backend) {
  std::vector<TransferResult> results(16);
  results.resize(backend.poll(results));
  return results;
}

std::vector<JobId> ids(const std::vector<TransferResult>& results) {
  std::vector<JobId> made;
  for (const TransferResult& result : results) {
    made.push_back(result.id);
  }
  return made;
}

class FaultBackendTest : public ::testing::Test {
 protected:
  FaultBackend backend_{create_host_backend({}).value()};
  Memory memory_{backend_};
};

TEST_F(FaultBackendTest, FailsTheChosenRunOfTheChosenJob) {  // G15, G16
  backend_.fail_run(JobId{2}, 1);
  ASSERT_TRUE(backend_.submit(memory_.job(1, 3)).ok());
  ASSERT_TRUE(backend_.wait(JobId{1}, kForever).ok());
  ASSERT_TRUE(backend_.submit(memory_.job(2, 3)).ok());
  ASSERT_TRUE(backend_.wait(JobId{2}, kForever).ok());
  const std::vector<TransferResult> results = poll_all(backend_);
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].status, StatusCode::kOk);
  EXPECT_EQ(results[1].status, StatusCode::kDeviceError);
  EXPECT_EQ(results[1].failed_runs, std::vector<std::uint32_t>{1});
  EXPECT_EQ(results[1].bytes_moved, 2 * kRunBytes);
  EXPECT_EQ(memory_.target[15], 7);
  EXPECT_EQ(memory_.target[16], 0xEE);
  EXPECT_EQ(memory_.target[32], 7);
}

TEST_F(FaultBackendTest, RefusesOneSubmit) {
  backend_.fail_next_submit(StatusCode::kUnavailable);
  EXPECT_EQ(backend_.submit(memory_.job(1)).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(backend_.submit(memory_.job(1)).ok());
  ASSERT_TRUE(backend_.drain(kForever).ok());
  EXPECT_EQ(poll_all(backend_).size(), 1U);
}

TEST_F(FaultBackendTest, FlipsOneByteOfASuccessfulJob) {
  backend_.flip_byte(JobId{1}, 1, 3);
  ASSERT_TRUE(backend_.submit(memory_.job(1, 2)).ok());
  ASSERT_TRUE(backend_.drain(kForever).ok());
  ASSERT_EQ(poll_all(backend_).at(0).status, StatusCode::kOk);
  std::vector<std::uint8_t> expected(64, 0);
  std::fill_n(expected.begin(), 2 * kRunBytes, std::uint8_t{7});
  expected[kRunBytes + 3] = static_cast<std::uint8_t>(~7);
  EXPECT_EQ(memory_.target, expected);
}

TEST_F(FaultBackendTest, HoldsResultsUntilReleased) {
  backend_.hold_results();
  ASSERT_TRUE(backend_.submit(memory_.job(1)).ok());
  ASSERT_TRUE(backend_.drain(kForever).ok());
  EXPECT_TRUE(poll_all(backend_).empty());
  EXPECT_TRUE(backend_.wait(JobId{1}, kForever).ok());
  EXPECT_TRUE(backend_.cancel(JobId{1}).ok());
  EXPECT_EQ(backend_.submit(memory_.job(1)).code(), StatusCode::kInvalidArgument);
  backend_.release_results();
  EXPECT_EQ(poll_all(backend_).size(), 1U);
  EXPECT_EQ(backend_.wait(JobId{1}, kForever).code(), StatusCode::kNotFound);
}

TEST_F(FaultBackendTest, DeliversResultsInTheNamedOrder) {
  backend_.deliver_in_order({JobId{3}, JobId{1}});
  for (const std::uint64_t id : {1U, 2U}) {
    ASSERT_TRUE(backend_.submit(memory_.job(id)).ok());
    ASSERT_TRUE(backend_.wait(JobId{id}, kForever).ok());
  }
  EXPECT_EQ(ids(poll_all(backend_)), std::vector<JobId>{JobId{2}}) << "job 1 waits for job 3";
  ASSERT_TRUE(backend_.submit(memory_.job(3)).ok());
  ASSERT_TRUE(backend_.wait(JobId{3}, kForever).ok());
  EXPECT_EQ(ids(poll_all(backend_)), (std::vector<JobId>{JobId{3}, JobId{1}}));
}

class StepBackendTest : public ::testing::Test {
 protected:
  StepBackend backend_{2};
  Memory memory_{backend_};
};

TEST_F(StepBackendTest, EndsJobsInTheOrderOfTheTest) {
  ASSERT_TRUE(backend_.submit(memory_.job(1)).ok());
  ASSERT_TRUE(backend_.submit(memory_.job(2)).ok());
  EXPECT_EQ(backend_.in_flight(), (std::vector<JobId>{JobId{1}, JobId{2}}));
  EXPECT_TRUE(poll_all(backend_).empty());
  EXPECT_EQ(memory_.target[0], 0);
  EXPECT_EQ(backend_.drain(std::chrono::nanoseconds{0}).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(backend_.wait(JobId{1}, std::chrono::nanoseconds{0}).code(), StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(backend_.complete(JobId{2}).ok());
  EXPECT_EQ(memory_.target[0], 7);
  ASSERT_TRUE(backend_.complete(JobId{1}).ok());
  EXPECT_EQ(ids(poll_all(backend_)), (std::vector<JobId>{JobId{2}, JobId{1}}));
  EXPECT_EQ(backend_.complete(JobId{1}).code(), StatusCode::kNotFound);
}

TEST_F(StepBackendTest, FailsRunsCancelsAndExpires) {
  ASSERT_TRUE(backend_.submit(memory_.job(1, 2)).ok());
  ASSERT_TRUE(backend_.fail(JobId{1}, StatusCode::kDataCorruption, {0}).ok());
  EXPECT_EQ(memory_.target[0], 0);
  EXPECT_EQ(memory_.target[kRunBytes], 7);
  EXPECT_EQ(poll_all(backend_).at(0).bytes_moved, kRunBytes);
  ASSERT_TRUE(backend_.submit(memory_.job(2)).ok());
  ASSERT_TRUE(backend_.cancel(JobId{2}).ok());
  EXPECT_TRUE(backend_.cancel(JobId{2}).ok());
  ASSERT_TRUE(backend_.submit(memory_.job(3)).ok());
  ASSERT_TRUE(backend_.expire(JobId{3}).ok());
  const std::vector<TransferResult> results = poll_all(backend_);
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].status, StatusCode::kCanceled);
  EXPECT_EQ(results[1].status, StatusCode::kDeadlineExceeded);
  EXPECT_EQ(backend_.cancel(JobId{3}).code(), StatusCode::kNotFound);
}

TEST_F(StepBackendTest, RefusesAsTheContractSays) {
  EXPECT_EQ(backend_.submit(memory_.job(1, 0)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(backend_.submit(memory_.job(1, 5)).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(backend_.submit(memory_.job(1)).ok());
  EXPECT_EQ(backend_.submit(memory_.job(1)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(backend_.unregister_region(memory_.src).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(backend_.submit(memory_.job(2)).ok());
  EXPECT_EQ(backend_.submit(memory_.job(3)).code(), StatusCode::kResourceExhausted);
  backend_.complete_all();
  EXPECT_TRUE(backend_.unregister_region(memory_.src).ok());
}

TEST_F(StepBackendTest, CopiesAfterTheEventOfTheJob) {
  HostStream stream("compute");
  StreamGate gate(stream);
  stream.enqueue([this] { memory_.source[0] = 99; });
  TransferJob job = memory_.job(1);
  job.after = stream.handle();
  ASSERT_TRUE(backend_.submit(job).ok());
  gate.open();
  ASSERT_TRUE(backend_.complete(JobId{1}).ok());
  EXPECT_EQ(memory_.target[0], 99);
}

TEST(StreamGate, TellsWhenItIsReachedAndOpensWhenItGoes) {
  HostStream stream("gated");
  int ran = 0;
  {
    stream.enqueue([&ran] { ran = 1; });
    StreamGate gate(stream);
    stream.enqueue([&ran] { ran = 2; });
    gate.wait_until_reached();
    EXPECT_EQ(ran, 1);
  }
  stream.synchronize();
  EXPECT_EQ(ran, 2);
}

}  // namespace
}  // namespace hostkv::testing
