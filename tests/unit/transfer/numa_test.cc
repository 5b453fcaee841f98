#include "base/numa.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <cstdint>

namespace hostkv {
namespace {

TEST(Numa, HasAtLeastOneNodeAndThisThreadRunsOnOneOfThem) {
  EXPECT_GE(num_numa_nodes(), 1);
  EXPECT_GE(numa_node_of_current_thread(), 0);
  EXPECT_LT(numa_node_of_current_thread(), num_numa_nodes());
}

TEST(Numa, IsNearestToItself) {
  for (int from = 0; from < num_numa_nodes(); ++from) {
    EXPECT_EQ(numa_distance_between(from, from), 10);
    for (int to = 0; to < num_numa_nodes(); ++to) {
      EXPECT_TRUE(from == to || numa_distance_between(from, to) == 0 || numa_distance_between(from, to) > 10);
    }
  }
}

TEST(Numa, KnowsNoDistanceToNodesThatDoNotExist) {
  EXPECT_EQ(numa_distance_between(0, num_numa_nodes()), 0);
  EXPECT_EQ(numa_distance_between(-1, 0), 0);
}

class NumaMemory : public ::testing::Test {
 protected:
  static constexpr std::int64_t kBytes = 64 * 4096;
  NumaMemory()
      : memory_(static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
  }
  ~NumaMemory() override { munmap(memory_, kBytes); }
  char* memory_;
};

TEST_F(NumaMemory, LiesWhereItWasBoundOrTheRefusalSaysSo) {  // field case J9
  for (int node = 0; node < num_numa_nodes(); ++node) {
    const Status bound = bind_memory_to_numa_node(memory_, kBytes, node);
    if (!bound.ok()) {
      EXPECT_EQ(bound.code(), StatusCode::kNotSupported) << bound.to_string();
      EXPECT_NE(bound.message().find("NUMA node " + std::to_string(node)), std::string::npos) << bound.to_string();
    }
  }
  memory_[0] = 1;
  EXPECT_EQ(memory_[0], 1);
  if (bind_memory_to_numa_node(memory_, kBytes, 0).ok() && numa_node_of_memory(memory_).has_value()) {
    EXPECT_LT(*numa_node_of_memory(memory_), num_numa_nodes());
  }
}

TEST_F(NumaMemory, RefusesNodesThatDoNotExistAndNamesThoseThatDo) {
  for (const int node : {-1, num_numa_nodes(), 4096}) {
    const Status bound = bind_memory_to_numa_node(memory_, kBytes, node);
    EXPECT_EQ(bound.code(), StatusCode::kNotFound);
    EXPECT_NE(bound.message().find(std::to_string(node)), std::string::npos);
    EXPECT_NE(bound.message().find("0 to " + std::to_string(num_numa_nodes() - 1)), std::string::npos);
  }
}

TEST_F(NumaMemory, LeavesTheAffinityOfTheThreadAlone) {  // field case J9
  cpu_set_t before;
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  static_cast<void>(bind_memory_to_numa_node(memory_, kBytes, 0));
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

}  // namespace
}  // namespace hostkv
