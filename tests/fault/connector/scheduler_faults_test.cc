#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/connector_harness.h"
#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

class SchedulerFaults : public ::testing::Test {
 protected:
  SchedulerRig rig_{resolved({.groups = {full(4)}}), 2};
  void SetUp() override { rig_.report_all(16); }

  // A request with `text` whose load of 16 tokens is in flight.
  StepMetadata load(std::uint64_t id, const std::string& text) {
    rig_.add(id, text, 17);
    EXPECT_EQ(rig_.match(id, 17), 16);
    EXPECT_EQ(rig_.allocate(id, 17, 16), Status());
    return rig_.step();
  }
  std::int64_t hit_of(std::uint64_t id, const std::string& text) {
    rig_.add(id, text, 17);
    const std::int64_t hit = rig_.match(id, 17);
    rig_.finish(id, 0);
    return hit;
  }
  void expect_outcome(std::uint64_t id, StatusCode status) {
    const std::vector<LoadOutcome> outcomes = rig_.connector->take_load_outcomes();
    ASSERT_EQ(outcomes.size(), 1U);
    EXPECT_EQ(outcomes[0].request, RequestId{id});
    EXPECT_EQ(outcomes[0].status, status);
    EXPECT_TRUE(rig_.connector->take_load_outcomes().empty()) << "exactly once (R10)";
  }
};

// Field case G15, R11, R12.
TEST_F(SchedulerFaults, AFailedLoadIsNeverCountedAsLoadedAndItsKeyIsNotOfferedUntilItIsStoredAnew) {
  rig_.store(1, "abcd", 16);
  const StepMetadata sent = load(2, "abcd");
  const StepJob& job = sent.jobs.at(0);
  rig_.answer(SchedulerRig::result(sent, job, 1));
  EXPECT_TRUE(rig_.connector->take_load_outcomes().empty()) << "rank 0 still copies";
  rig_.answer(
      SchedulerRig::result(sent, job, 0, StatusCode::kDataCorruption, {{job.blocks[2].group, job.blocks[2].block}}));
  expect_outcome(2, StatusCode::kDataCorruption);
  EXPECT_EQ(rig_.connector->metrics().failed_load_blocks, 1);
  EXPECT_EQ(rig_.connector->metrics().loaded_blocks, 3);
  EXPECT_EQ(rig_.match(2, 17), 8) << "the request looks up again: the blocks before the bad one";
  EXPECT_EQ(hit_of(3, "abcd"), 8);
  ASSERT_EQ(rig_.allocate(2, 17, 0), Status());
  rig_.answer_all(rig_.step(2, 0, 16));
  EXPECT_EQ(hit_of(4, "abcd"), 16);
  rig_.finish(2, 16);
  rig_.expect_idle();
}

TEST_F(SchedulerFaults, ARequestWhoseLoadFailedMustBeAllocatedAnewBeforeItRuns) {
  rig_.store(1, "abcd", 16);
  const StepMetadata sent = load(2, "abcd");
  rig_.answer_all(sent, StatusCode::kDeviceError);
  expect_outcome(2, StatusCode::kDeviceError);
  EXPECT_EQ(rig_.connector->metrics().loaded_blocks, 0);
  EXPECT_EQ(rig_.connector->metrics().failed_load_blocks, 4);
  const ScheduledRequest scheduled{RequestId{2}, 16, 1};
  const auto step =
      rig_.connector->build_step_metadata({.scheduled = {&scheduled, 1}, .hand_offs = {}, .preempted = {}});
  ASSERT_FALSE(step.has_value());
  EXPECT_EQ(step.error().code(), StatusCode::kFailedPrecondition);
  rig_.finish(2, 0);
  rig_.expect_idle();
}

// An engine of one group cuts in place: the good prefix stays, the rest is computed and stored again.
TEST_F(SchedulerFaults, ARequestMayGoOnBehindWhatItsFailedLoadHasBroughtWhole) {
  rig_.store(1, "abcd", 16);
  const StepMetadata sent = load(2, "abcd");
  const StepJob& job = sent.jobs.at(0);
  EXPECT_EQ(rig_.connector->resume_after_failed_load(RequestId{2}, 8).code(), StatusCode::kFailedPrecondition);
  rig_.answer(SchedulerRig::result(sent, job, 0));
  rig_.answer(
      SchedulerRig::result(sent, job, 1, StatusCode::kDataCorruption, {{job.blocks[2].group, job.blocks[2].block}}));
  expect_outcome(2, StatusCode::kDataCorruption);
  for (const std::int64_t tokens : {-1, 17}) {
    const Status status = rig_.connector->resume_after_failed_load(RequestId{2}, tokens);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(std::to_string(tokens)), std::string::npos) << status.message();
  }
  ASSERT_EQ(rig_.connector->resume_after_failed_load(RequestId{2}, 8), Status());
  EXPECT_EQ(rig_.connector->resume_after_failed_load(RequestId{2}, 8).code(), StatusCode::kFailedPrecondition);
  const StepMetadata step = rig_.step(2, 8, 16);
  ASSERT_EQ(step.jobs.size(), 1U);
  ASSERT_EQ(step.jobs[0].blocks.size(), 1U) << "the block that failed, and no other";
  EXPECT_EQ(step.jobs[0].blocks[0].block, job.blocks[2].block);
  rig_.answer_all(step);
  EXPECT_EQ(hit_of(3, "abcd"), 16);
  rig_.finish(2, 16);
  rig_.expect_idle();
}

TEST_F(SchedulerFaults, ARequestThatHasLostItsBlocksCannotGoOnInPlace) {
  enum class Loss { kReset, kPreempted, kAskedFor, kAllocatedAnew, kFinished };
  for (const Loss loss : {Loss::kReset, Loss::kPreempted, Loss::kAskedFor, Loss::kAllocatedAnew, Loss::kFinished}) {
    rig_.store(1, "abcd", 16);
    const StepMetadata sent = load(2, "abcd");
    if (loss == Loss::kReset) {
      EXPECT_FALSE(rig_.connector->reset());
    }
    rig_.answer_all(sent, StatusCode::kDeviceError);
    EXPECT_EQ(rig_.connector->take_load_outcomes().size(), 1U);
    const RequestId id{2};
    if (loss == Loss::kPreempted) {
      rig_.step({.scheduled = {}, .hand_offs = {}, .preempted = {&id, 1}});
    } else if (loss == Loss::kAskedFor) {
      EXPECT_EQ(rig_.match(2, 17), 0);
    } else if (loss == Loss::kAllocatedAnew) {
      EXPECT_EQ(rig_.allocate(2, 17, 0), Status());
    } else if (loss == Loss::kFinished) {
      rig_.finish(2, 0);
    }
    EXPECT_EQ(rig_.connector->resume_after_failed_load(id, 8).code(),
              loss == Loss::kFinished ? StatusCode::kNotFound : StatusCode::kFailedPrecondition);
    rig_.finish(2, 0);
    rig_.expect_idle();
  }
}

TEST_F(SchedulerFaults, ALoadThatNamesNoBlockOfItsJobFailsWhole) {
  rig_.store(1, "abcd", 16);
  const StepMetadata sent = load(2, "abcd");
  rig_.answer(SchedulerRig::result(sent, sent.jobs.at(0), 0));
  rig_.answer(
      SchedulerRig::result(sent, sent.jobs.at(0), 1, StatusCode::kDeviceError, {{GroupIndex{0}, BlockId{4711}}}));
  expect_outcome(2, StatusCode::kDeviceError);
  EXPECT_EQ(rig_.connector->metrics().failed_load_blocks, 4);
  EXPECT_EQ(hit_of(3, "abcd"), 0);
}

TEST_F(SchedulerFaults, BlocksNamedBesideOkAreAFailure) {
  rig_.store(1, "abcd", 16);
  const StepMetadata sent = load(2, "abcd");
  const StepJob& job = sent.jobs.at(0);
  rig_.answer(SchedulerRig::result(sent, job, 0));
  rig_.answer(SchedulerRig::result(sent, job, 1, StatusCode::kOk, {{job.blocks[0].group, job.blocks[0].block}}));
  expect_outcome(2, StatusCode::kInternal);
  EXPECT_EQ(hit_of(3, "abcd"), 0);
}

// Field case G13.
TEST_F(SchedulerFaults, AFailureThatComesAfterAnAbortFreesTheBlocksOnce) {
  rig_.store(1, "abcd", 16);
  const StepMetadata sent = load(2, "abcd");
  rig_.finish(2, 0);
  EXPECT_EQ(rig_.engine.num_pins(), 4) << "R13: a copy may still write there";
  rig_.answer_all(sent, StatusCode::kDeviceError);
  expect_outcome(2, StatusCode::kDeviceError);
  rig_.answer_all(sent, StatusCode::kDeviceError);
  EXPECT_EQ(rig_.connector->metrics().ignored_results, 2);
  rig_.expect_idle();
}

TEST_F(SchedulerFaults, AnOutcomeThatComesAfterAPreemptionDoesNotAdmitTheRequest) {
  for (const StatusCode status : {StatusCode::kOk, StatusCode::kDeviceError}) {
    rig_.store(1, "abcd", 16);
    const StepMetadata sent = load(2, "abcd");
    const RequestId id{2};
    rig_.step({.scheduled = {}, .hand_offs = {}, .preempted = {&id, 1}});
    rig_.engine.forget(id);
    EXPECT_EQ(rig_.engine.num_pins(), 4);
    rig_.answer_all(sent, status);
    expect_outcome(2, status);
    const ScheduledRequest scheduled{id, 16, 1};
    EXPECT_FALSE(rig_.connector->build_step_metadata({.scheduled = {&scheduled, 1}, .hand_offs = {}, .preempted = {}})
                     .has_value())
        << "its table is void";
    EXPECT_EQ(rig_.match(2, 17), status == StatusCode::kOk ? 16 : 0);
    rig_.finish(2, 0);
    rig_.expect_idle();
  }
}

TEST_F(SchedulerFaults, AFailedStoreOfAFinishedOrPreemptedRequestFreesTheBlocksOnce) {
  const StepMetadata finished = rig_.run(1, "abcd", 16);
  rig_.add(2, "wxyz", 17);
  ASSERT_EQ(rig_.allocate(2, 17), Status());
  const StepMetadata preempted = rig_.step(2, 0, 16);
  const RequestId id{2};
  rig_.step({.scheduled = {}, .hand_offs = {}, .preempted = {&id, 1}});
  EXPECT_EQ(rig_.engine.num_pins(), 8);
  rig_.answer_all(finished, StatusCode::kDeadlineExceeded);
  rig_.answer_all(preempted, StatusCode::kDeadlineExceeded);
  EXPECT_EQ(rig_.connector->metrics().dropped_failed_blocks, 8);
  EXPECT_EQ(hit_of(3, "abcd"), 0);
  EXPECT_EQ(rig_.match(2, 17), 0);
  rig_.finish(2, 0);
  rig_.expect_idle();
}

// Field case F7.
TEST_F(SchedulerFaults, ResultsThatFitNothingAreIgnoredAndCounted) {
  rig_.store(1, "abcd", 16);
  const StepMetadata sent = load(2, "abcd");
  const StepJob& job = sent.jobs.at(0);
  const SchedulerMetrics before = rig_.connector->metrics();
  JobResult wrong = SchedulerRig::result(sent, job, 0);
  wrong.job = JobId{4711};
  rig_.answer(wrong);
  wrong = SchedulerRig::result(sent, job, 2);
  rig_.answer(wrong);
  wrong = SchedulerRig::result(sent, job, 0);
  ++wrong.epoch;
  rig_.answer(wrong);
  rig_.add(3, "uvwx", 16);
  ASSERT_EQ(rig_.allocate(3, 16), Status());
  rig_.finish(3, 16);  // its store is planned, not sent: nobody can have done it
  wrong = SchedulerRig::result(sent, job, 0);
  wrong.job = JobId{job.id.value() + 1};
  rig_.answer(wrong);
  EXPECT_EQ(rig_.connector->metrics().ignored_results, before.ignored_results + 4);
  EXPECT_EQ(rig_.connector->metrics().jobs_in_flight, 2);
  rig_.answer_all(sent);
  rig_.answer_all(rig_.step());
  expect_outcome(2, StatusCode::kOk);
  rig_.finish(2, 16);
  rig_.expect_idle();
}

// Field case H5.
TEST_F(SchedulerFaults, AResetWithCopiesInFlightForgetsAtOnceAndIsDoneWhenTheyEnded) {
  rig_.store(1, "abcd", 16);
  rig_.store(2, "efgh", 16);
  const std::vector<StepMetadata> before = {load(3, "abcd"), load(4, "efgh"), rig_.run(5, "ijk", 12),
                                            rig_.run(6, "lmn", 12)};
  const std::uint64_t epoch = rig_.connector->epoch();
  EXPECT_FALSE(rig_.connector->reset());
  EXPECT_GT(rig_.connector->epoch(), epoch);
  EXPECT_EQ(rig_.connector->metrics().stored_keys, 0);
  EXPECT_EQ(hit_of(7, "abcd"), 0);
  EXPECT_EQ(rig_.engine.num_pins(), 14) << "R13";
  // The places of the old copies are not given to anybody.
  const StepMetadata competing = rig_.run(8, "abcd", 16);
  EXPECT_EQ(competing.epoch, rig_.connector->epoch());
  EXPECT_LE(competing.jobs.at(0).blocks.size(), 2U);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_FALSE(rig_.connector->reset() && i < before.size());
    rig_.answer_all(before[i]);
  }
  rig_.answer_all(competing);
  EXPECT_TRUE(rig_.connector->reset());
  const std::vector<LoadOutcome> outcomes = rig_.connector->take_load_outcomes();
  ASSERT_EQ(outcomes.size(), 2U);
  EXPECT_EQ(outcomes[0].status, StatusCode::kCanceled);
  EXPECT_EQ(outcomes[1].status, StatusCode::kCanceled);
  EXPECT_EQ(rig_.connector->metrics().stored_keys, 0) << "no stale entry reappears";
  EXPECT_EQ(rig_.connector->metrics().used_bytes, 0);
  for (const char* text : {"abcd", "efgh", "ijkk", "lmnn"}) {
    EXPECT_EQ(hit_of(9, text), 0);
  }
  rig_.finish(3, 0);
  rig_.finish(4, 0);
  rig_.expect_idle();
  EXPECT_EQ(rig_.connector->metrics().dropped_reset_blocks,
            6 + static_cast<std::int64_t>(competing.jobs[0].blocks.size()));
}

TEST_F(SchedulerFaults, AResetDropsPromisesAndQueuedLoads) {
  rig_.store(1, "abcd", 16);
  rig_.add(2, "abcd", 17);
  ASSERT_EQ(rig_.match(2, 17), 16);
  rig_.add(3, "abcd", 17);
  ASSERT_EQ(rig_.match(3, 17), 16);
  ASSERT_EQ(rig_.allocate(3, 17, 16), Status());
  EXPECT_TRUE(rig_.connector->reset());
  EXPECT_EQ(rig_.connector->metrics().pinned_slots, 0);
  EXPECT_EQ(rig_.engine.num_pins(), 0);
  expect_outcome(3, StatusCode::kCanceled);
  EXPECT_TRUE(rig_.step().jobs.empty());
  EXPECT_EQ(rig_.allocate(2, 17, 16).code(), StatusCode::kInvalidArgument) << "nothing is promised any more";
  EXPECT_EQ(rig_.allocate(2, 17, 0), Status());
  rig_.finish(2, 0);
  rig_.finish(3, 0);
  rig_.expect_idle();
}

}  // namespace
}  // namespace hostkv::testing
