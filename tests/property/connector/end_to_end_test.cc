#include <gtest/gtest.h>

#include <string>

#include "tests/property/connector/small_cluster.h"
#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

void expect_right_bytes(const Geometry& geometry, std::int64_t num_ranks, std::uint64_t stream) {
  const std::uint64_t seed = test_seed() + stream;
  SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(test_seed()) + ", stream " + std::to_string(stream));
  const SmallCluster::Limits limits{.num_ranks = num_ranks};
  SmallCluster cluster(geometry, limits, seed);
  for (std::uint64_t step = 0; step < test_rounds(1500); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    cluster.step();
    if (::testing::Test::HasFailure()) {
      return;
    }
  }
  cluster.finish();
  ::testing::Test::RecordProperty("good_loads", static_cast<int>(cluster.good_loads()));
  EXPECT_GT(cluster.good_loads(), 0) << "zero hits prove nothing";
  EXPECT_GT(cluster.failed_loads(), 0);
  EXPECT_GT(cluster.metrics().evicted_blocks, 0);
  EXPECT_GT(cluster.metrics().dropped_failed_blocks, 0);
}

// R2, R4, R5, R9, R11, R13, R14, R15, R21 at once.
TEST(EndToEnd, LoadsDeliverTheBytesOfTheirKeysWithFullAttention) {
  expect_right_bytes(resolved({.groups = {full(4)}}), 1, 1);
}

TEST(EndToEnd, LoadsDeliverTheBytesOfTheirKeysOnAllRanksWithAWindow) {
  expect_right_bytes(resolved({.groups = {full(8), window(4, 8)}}), 3, 2);
}

TEST(EndToEnd, LoadsDeliverTheBytesOfTheirKeysOnAllRanksWithStates) {
  expect_right_bytes(resolved({.groups = {full(4), mamba(4)}}), 2, 3);
}

TEST(EndToEnd, LoadsDeliverTheBytesOfTheirKeysOnFourRanksWithThreeKinds) {
  expect_right_bytes(resolved({.groups = {full(4), window(4, 6), mamba(8)}}), 4, 4);
}

TEST(EndToEnd, LoadsDeliverTheBytesOfTheirKeysOnShardedRanks) {
  expect_right_bytes(resolved({.groups = {full(4), window(8, 8)}, .parallel = dcp_of(2)}), 2, 5);
}

}  // namespace
}  // namespace hostkv::testing
