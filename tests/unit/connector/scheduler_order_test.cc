#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/connector_harness.h"
#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

class SchedulerOrder : public ::testing::Test {
 protected:
  SchedulerRig rig_{resolved({.groups = {full(4)}}), 1};
  void SetUp() override { rig_.report_all(8); }

  // The call is refused with one clear error and nothing changed.
  void expect_refused(StatusCode code, const std::string& part, const std::function<Status()>& call) {
    const SchedulerMetrics before = rig_.connector->metrics();
    const auto pins = rig_.engine.pins();
    const bool pending = rig_.connector->has_pending_work();
    const Status status = call();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << "want \"" << part << "\" in " << status.message();
    EXPECT_TRUE(equal(before, rig_.connector->metrics())) << status.message();
    EXPECT_EQ(pins, rig_.engine.pins());
    EXPECT_EQ(pending, rig_.connector->has_pending_work());
    rig_.expect_consistent();
  }
  Status match(std::uint64_t id, std::int64_t tokens, std::int64_t local) {
    const auto result = rig_.connector->match_prefix(RequestId{id}, tokens, local);
    return result ? Status() : result.error();
  }
  Status build(const ScheduledRequest& scheduled, std::vector<RequestId> preempted = {}) {
    const auto result = rig_.connector->build_step_metadata(
        StepInput{.scheduled = {&scheduled, 1}, .hand_offs = {}, .preempted = preempted});
    return result ? Status() : result.error();
  }
  Status append(std::uint64_t id, std::size_t num_bytes, std::size_t hash_bytes) {
    return rig_.connector->append_block_hashes(RequestId{id}, std::vector<std::byte>(num_bytes), hash_bytes);
  }
};

TEST_F(SchedulerOrder, CallsForAnUnknownRequestAnswerNotFound) {
  rig_.engine.give(RequestId{9}, 1, 4);
  expect_refused(StatusCode::kNotFound, "request 9", [&] { return append(9, 32, 32); });
  expect_refused(StatusCode::kNotFound, "request 9", [&] { return match(9, 8, 0); });
  expect_refused(StatusCode::kNotFound, "request 9", [&] {
    return rig_.connector->on_blocks_allocated(RequestId{9}, rig_.engine.tables(RequestId{9}), 0);
  });
  expect_refused(StatusCode::kNotFound, "request 9", [&] { return rig_.connector->cancel_match(RequestId{9}); });
  expect_refused(StatusCode::kNotFound, "request 9", [&] { return build({RequestId{9}, 0, 4}); });
  EXPECT_TRUE(rig_.connector->request_finished(RequestId{9}, 4).ok()) << "idempotent";
}

TEST_F(SchedulerOrder, ArgumentsOutsideTheirRangeAreRefused) {
  rig_.store(1, "abcd", 16);
  rig_.add(2, "abcd", 17);
  const auto invalid = StatusCode::kInvalidArgument;
  expect_refused(invalid, "num_prompt_tokens is 0",
                 [&] { return rig_.connector->add_request({.id = RequestId{3}, .num_prompt_tokens = 0}); });
  expect_refused(invalid, "33 bytes", [&] { return append(2, 33, 32); });
  expect_refused(invalid, "1 .. 64", [&] { return append(2, 32, 0); });
  expect_refused(invalid, "1 .. 64", [&] { return append(2, 65, 65); });
  expect_refused(invalid, "behind hashes of 32", [&] { return append(2, 16, 16); });
  expect_refused(invalid, "multiple of 4", [&] { return match(2, 17, 3); });
  expect_refused(invalid, "multiple of 4", [&] { return match(2, 17, 20); });
  expect_refused(invalid, "multiple of 4", [&] { return match(2, 17, -4); });
  expect_refused(invalid, "num_tokens is 0; 1 .. 2^40", [&] { return match(2, 0, 0); });
  expect_refused(invalid, "0 .. 0 are allowed", [&] { return rig_.allocate(2, 17, 16); });
  ASSERT_EQ(rig_.match(2, 17), 16);
  expect_refused(invalid, "0 .. 16 are allowed", [&] { return rig_.allocate(2, 17, 17); });
  expect_refused(invalid, "0 .. 16 are allowed", [&] { return rig_.allocate(2, 17, -16); });
  expect_refused(invalid, "tables of 0 groups",
                 [&] { return rig_.connector->on_blocks_allocated(RequestId{2}, {}, 16); });
  expect_refused(invalid, "no block at index 3", [&] { return rig_.allocate(2, 12, 16); });
  rig_.engine.give(RequestId{2}, 1, 5)[0][2] = kNullBlock;
  expect_refused(invalid, "no block at index 2", [&] {
    return rig_.connector->on_blocks_allocated(RequestId{2}, rig_.engine.tables(RequestId{2}), 16);
  });
  EXPECT_EQ(rig_.allocate(2, 17, 16), Status()) << "the promise is still good";
}

TEST_F(SchedulerOrder, StepsThatCannotBeAreRefusedWhole) {
  rig_.add(1, "abcd", 17);
  expect_refused(StatusCode::kFailedPrecondition, "owns no blocks", [&] { return build({RequestId{1}, 0, 4}); });
  ASSERT_EQ(rig_.allocate(1, 17), Status());
  rig_.step();
  const auto invalid = StatusCode::kInvalidArgument;
  expect_refused(invalid, "schedules -1 tokens", [&] { return build({RequestId{1}, 0, -1}); });
  expect_refused(invalid, "behind -1", [&] { return build({RequestId{1}, -1, 4}); });
  expect_refused(invalid, "2^40", [&] { return build({RequestId{1}, std::numeric_limits<std::int64_t>::max(), 4}); });
  expect_refused(invalid, "2^40", [&] { return build({RequestId{1}, 4, std::numeric_limits<std::int64_t>::max()}); });
  expect_refused(invalid, "schedules and preempts", [&] { return build({RequestId{1}, 0, 4}, {RequestId{1}}); });
  expect_refused(invalid, "-1", [&] { return rig_.connector->request_finished(RequestId{1}, -1); });
  EXPECT_EQ(rig_.step(1, 0, 16).jobs.size(), 1U);
}

TEST_F(SchedulerOrder, AnIdThatIsAliveOrStillLoadingIsNotTakenTwice) {
  rig_.store(1, "abcd", 16);
  const auto again = [&] { return rig_.connector->add_request({.id = RequestId{2}, .num_prompt_tokens = 17}); };
  rig_.add(2, "abcd", 17);
  expect_refused(StatusCode::kFailedPrecondition, "alive already", again);
  ASSERT_EQ(rig_.match(2, 17), 16);
  ASSERT_EQ(rig_.allocate(2, 17, 16), Status());
  const StepMetadata load = rig_.step();
  rig_.finish(2, 0);
  expect_refused(StatusCode::kFailedPrecondition, "its load has not", again);
  rig_.answer_all(load);
  expect_refused(StatusCode::kFailedPrecondition, "outcome", again);
  const std::vector<LoadOutcome> outcomes = rig_.connector->take_load_outcomes();
  ASSERT_EQ(outcomes.size(), 1U);
  EXPECT_EQ(outcomes[0].request, RequestId{2});
  EXPECT_EQ(again(), Status());
  rig_.finish(2, 0);
  rig_.expect_idle();
}

TEST_F(SchedulerOrder, ARequestThatIsBeingLoadedIsLeftAlone) {
  rig_.store(1, "abcd", 16);
  rig_.add(2, "abcd", 17);
  ASSERT_EQ(rig_.match(2, 17), 16);
  ASSERT_EQ(rig_.allocate(2, 17, 16), Status());
  const auto expect_left_alone = [&] {
    const auto order = StatusCode::kFailedPrecondition;
    expect_refused(order, "is being loaded", [&] { return match(2, 17, 0); });
    expect_refused(order, "is being loaded", [&] { return rig_.allocate(2, 17, 0); });
    expect_refused(order, "is being loaded", [&] { return rig_.allocate(2, 17, 16); });
    expect_refused(order, "is being loaded", [&] { return build({RequestId{2}, 16, 1}); });
  };
  expect_left_alone();
  const StepMetadata load = rig_.step();
  expect_left_alone();
  rig_.answer_all(load);
  ASSERT_EQ(rig_.connector->take_load_outcomes().size(), 1U);
  rig_.finish(2, 16);
  rig_.expect_idle();
}

// Field case H4.
TEST_F(SchedulerOrder, FinishingTwiceChangesNothing) {
  rig_.add(1, "abcd", 17);
  ASSERT_EQ(rig_.allocate(1, 17), Status());
  rig_.finish(1, 16);
  EXPECT_EQ(rig_.engine.num_pins(), 4) << "the last stores are queued";
  EXPECT_TRUE(rig_.connector->has_pending_work());
  const SchedulerMetrics before = rig_.connector->metrics();
  rig_.finish(1, 16);
  EXPECT_TRUE(equal(before, rig_.connector->metrics()));
  rig_.answer_all(rig_.step());
  rig_.expect_idle();
}

TEST_F(SchedulerOrder, AfterShutdownEveryCallIsUnavailableAndNothingIsPinned) {
  rig_.store(1, "abcd", 16);
  rig_.add(2, "abcd", 17);
  ASSERT_EQ(rig_.match(2, 17), 16);
  ASSERT_EQ(rig_.allocate(2, 17, 16), Status());
  const StepMetadata load = rig_.step();
  rig_.run(3, "uvwx", 16);
  rig_.add(4, "abcd", 9);
  rig_.match(4, 9);
  rig_.connector->shutdown();
  rig_.expect_idle();
  rig_.connector->shutdown();
  const auto gone = StatusCode::kUnavailable;
  rig_.engine.give(RequestId{4}, 1, 3);
  expect_refused(gone, "shut down", [&] { return rig_.connector->on_worker_capacity(rig_.capacity(0, 8)); });
  expect_refused(gone, "shut down", [&] { return rig_.connector->add_request({RequestId{5}, 4, false}); });
  expect_refused(gone, "shut down", [&] { return append(4, 32, 32); });
  expect_refused(gone, "shut down", [&] { return match(4, 9, 0); });
  expect_refused(gone, "shut down", [&] {
    return rig_.connector->on_blocks_allocated(RequestId{4}, rig_.engine.tables(RequestId{4}), 0);
  });
  expect_refused(gone, "shut down", [&] { return rig_.connector->cancel_match(RequestId{4}); });
  expect_refused(gone, "shut down", [&] { return build({RequestId{4}, 0, 4}); });
  expect_refused(gone, "shut down", [&] { return rig_.connector->request_finished(RequestId{4}, 4); });
  rig_.answer_all(load);
  EXPECT_EQ(rig_.connector->metrics().ignored_results, 1);
  EXPECT_TRUE(rig_.connector->reset());
  EXPECT_TRUE(rig_.connector->take_load_outcomes().empty());
  rig_.expect_idle();
}

}  // namespace
}  // namespace hostkv::testing
