#include "bench/replay/workload.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "bench/replay/random.h"
#include "bench/replay/theory.h"
#include "bench/replay/tokens.h"

namespace hostkv::bench {
namespace {

// One number for a trace: every id of every request, in order.
std::uint64_t digest(const Trace& trace) {
  std::uint64_t sum = 0;
  for (const TraceRequest& request : trace.requests) {
    for (const std::int64_t id : request.block_ids) sum = mix64(sum ^ static_cast<std::uint64_t>(id));
    sum = mix64(sum + static_cast<std::uint64_t>(request.output_tokens));
  }
  return sum;
}

TEST(Workload, IsAFunctionOfTheSeed) {
  for (const std::string_view name : workload_names()) {
    EXPECT_EQ(digest(*make_workload(name, 7, 300)), digest(*make_workload(name, 7, 300))) << name;
    EXPECT_NE(digest(*make_workload(name, 7, 300)), digest(*make_workload(name, 8, 300))) << name;
  }
}

TEST(Workload, LongerTracesBeginLikeShorterOnes) {
  for (const std::string_view name : workload_names()) {
    Trace longer = *make_workload(name, 3, 400);
    longer.requests.resize(250);
    EXPECT_EQ(digest(longer), digest(*make_workload(name, 3, 250))) << name;
  }
}

TEST(Workload, GivesEveryIdOneParent) {
  for (const std::string_view name : workload_names()) {
    std::map<std::int64_t, std::int64_t> parents;
    const Trace trace = *make_workload(name, 1, 1000);
    for (const TraceRequest& request : trace.requests) {
      std::int64_t parent = -1;
      for (const std::int64_t id : request.block_ids) {
        EXPECT_EQ(parents.try_emplace(id, parent).first->second, parent) << name;
        parent = id;
      }
      EXPECT_EQ(request.input_tokens, static_cast<std::int64_t>(request.block_ids.size()) * 512);
    }
  }
}

TEST(Workload, LeavesSomethingToHitAndSomethingToMiss) {
  for (const std::string_view name : workload_names()) {
    const double rate = infinite_hit_rate(*make_workload(name, 1, kDefaultWorkloadRequests));
    EXPECT_GT(rate, 0.05) << name;
    EXPECT_LT(rate, 0.97) << name;
  }
}

TEST(Workload, RefusesUnknownNamesAndSizes) {
  const Result<Trace> misspelt = make_workload("caht", 1, 10);
  ASSERT_FALSE(misspelt);
  EXPECT_EQ(misspelt.error().message(),
            "unknown workload \"caht\"; did you mean chat? allowed: chat, prefix-tree, one-shot");
  ASSERT_FALSE(make_workload("chat", 1, 0));
  ASSERT_FALSE(make_workload("chat", 1, 10'000'001));
}

TEST(PromptTokens, ShareExactlyThePrefixThatTheIdsShare) {
  const std::vector<std::int64_t> left = {5, 6, 7};
  const std::vector<std::int64_t> right = {5, 6, 8};
  const auto a = prompt_tokens(left, 16);
  const auto b = prompt_tokens(right, 16);
  ASSERT_EQ(a.size(), 49U);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 32, b.begin()));
  EXPECT_NE(a[32], b[32]);
}

TEST(PromptTokens, DifferForEveryPairOfIds) {
  std::set<std::vector<std::int32_t>> blocks;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const std::vector<std::int64_t> ids = {i % 2 == 0 ? i : (std::int64_t{1} << 31) * i};
    const auto tokens = prompt_tokens(ids, 2);
    EXPECT_GE(*std::min_element(tokens.begin(), tokens.end()), 0);
    blocks.insert(tokens);
  }
  EXPECT_EQ(blocks.size(), 2000U);
}

}  // namespace
}  // namespace hostkv::bench
