#include "bench/replay/boundary_history.h"

#include <gtest/gtest.h>

namespace hostkv::bench {
namespace {

// One group of states every 1,024 tokens, or of attention.
Geometry geometry_of(GroupKind kind) {
  GeometrySpec spec;
  KvCacheGroup group;
  group.kind = kind;
  group.block_tokens = 1024;
  spec.groups.push_back(group);
  return *Geometry::resolve(spec);
}

const std::vector<std::int64_t> kIds = {0, 1, 2, 3, 4, 5, 6, 7};  // 4,096 tokens in blocks of 512

TEST(BoundaryHistory, FindsEveryBoundaryOfAttention) {
  const Geometry geometry = geometry_of(GroupKind::kFullAttention);
  BoundaryHistory history(geometry, 8192);
  EXPECT_EQ(history.visit(kIds, 512, 3072, 0, 4097), 3072);
}

TEST(BoundaryHistory, FindsOnlyStatesThatARequestLeft) {
  const Geometry geometry = geometry_of(GroupKind::kMamba);
  BoundaryHistory history(geometry, 8192);
  EXPECT_EQ(history.visit(kIds, 512, 0, 0, 4097), 0);
  EXPECT_EQ(history.visit(kIds, 512, 4096, 4096, 4097), 4096);
  EXPECT_EQ(history.visit(kIds, 512, 3072, 0, 4097), 0);
}

TEST(BoundaryHistory, CountsTheEndsOfSteps) {
  const Geometry geometry = geometry_of(GroupKind::kMamba);
  BoundaryHistory history(geometry, 2048 + 100);
  EXPECT_EQ(history.visit(kIds, 512, 0, 0, 4097), 0);
  EXPECT_EQ(history.visit(kIds, 512, 3072, 2048, 4097), 2048);
}

}  // namespace
}  // namespace hostkv::bench
