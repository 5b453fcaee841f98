#include "tests/property/connector/random_calls.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

void expect_sound(const Geometry& geometry, std::uint64_t stream) {
  SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(test_seed()) + ", stream " + std::to_string(stream));
  RandomCalls calls(geometry, test_seed() + stream);
  calls.run(test_rounds(6000));
  EXPECT_GT(calls.hits(), 0) << "zero hits prove nothing";
  EXPECT_GT(calls.refusals(), 0);
  EXPECT_GT(calls.failed_loads(), 0);
  EXPECT_GT(calls.retries(), 0);
  for (const std::int64_t count : calls.ledger().num_events) {
    EXPECT_GT(count, 0) << "every kind of event was seen";
  }
}

// R4, R10, R13, R14, R15.
TEST(SchedulerRandomCalls, NeverCrashNorLeakWithFullAttention) {
  expect_sound(resolved({.groups = {full(4)}}), 11);
}

TEST(SchedulerRandomCalls, NeverCrashNorLeakWithAWindow) {
  expect_sound(resolved({.groups = {full(4), window(4, 8)}}), 12);
}

}  // namespace
}  // namespace hostkv::testing
