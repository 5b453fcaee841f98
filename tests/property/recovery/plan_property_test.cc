// Plans for several requests that share blocks against the model, and every rank's plan against the scheduler's.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>

#include "tests/property/recovery/plan_model.h"
#include "tests/property/recovery/random_tables.h"
#include "tests/property/recovery/token_oracle.h"
#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

constexpr std::uint64_t kUnknownRequest = 99;

std::optional<Geometry> random_model(Random& random) {
  if (!one_in(random, 3)) {
    return random_small_geometry(random);
  }
  const std::int64_t block = pick(random, 1, 16);
  return *Geometry::resolve(
      {.groups = {one_in(random, 2) ? full(block) : mla(block)}, .parallel = dcp_of(pick(random, 1, 4))});
}

// Is entry i of this group behind the boundary?
bool lies_within(const Geometry& geometry, const HeldTables& from, std::size_t g, std::size_t i,
                 std::int64_t boundary) {
  const KvCacheGroup& group = geometry.group(GroupIndex{static_cast<std::uint32_t>(g)});
  if (group.kind == GroupKind::kMamba) {
    return from.state_tokens[g][i] > 0 && from.state_tokens[g][i] <= boundary;
  }
  return (static_cast<std::int64_t>(i) + 1) * span_of(geometry, group) <= boundary;
}

// The request has found the other's blocks up to a boundary in the prefix cache.
void share(const Geometry& geometry, const HeldTables& from, std::int64_t boundary, HeldTables& to) {
  for (std::size_t g = 0; g < geometry.num_groups(); ++g) {
    for (std::size_t i = 0; i < std::min(from.tables[g].size(), to.tables[g].size()); ++i) {
      if (!lies_within(geometry, from, g, i, boundary)) {
        continue;
      }
      to.tables[g][i] = from.tables[g][i];
      if (!from.state_tokens[g].empty()) {
        to.state_tokens[g][i] = from.state_tokens[g][i];
      }
    }
  }
}

struct World {
  std::vector<HeldTables> requests;
  std::vector<FailedLoad> failed;
  std::int64_t num_ranks = 1;
};

World random_world(Random& random, const Geometry& geometry) {
  World world;
  world.num_ranks = pick(random, 1, 4);
  BlockNumbers numbers(random, one_in(random, 12));
  const std::int64_t step = geometry.hit_alignment_tokens();
  const std::int64_t longest = std::min<std::int64_t>(100, 8 * step);
  std::vector<std::int64_t> computed;
  const auto num_requests = static_cast<std::uint64_t>(pick(random, 1, 4));
  for (std::uint64_t id = 1; id <= num_requests; ++id) {
    const bool runs = one_in(random, 2);
    std::int64_t settled = pick(random, 0, longest);
    std::int64_t shared = 0;
    std::size_t donor = 0;
    if (id > 1 && !one_in(random, 3)) {
      donor = static_cast<std::size_t>(pick(random, 0, std::ssize(computed) - 1));
      shared = pick(random, 0, computed[donor] / step) * step;
      settled = shared + (one_in(random, 2) ? 0 : pick(random, 0, longest / 2));
    }
    computed.push_back(settled + (runs ? pick(random, 0, 2 * step) : 0));
    HeldTables held = random_tables(random, geometry, id, settled, computed.back(), numbers);
    held.mode = runs ? LoadMode::kSynchronous : LoadMode::kAsynchronous;
    if (shared > 0) {
      share(geometry, world.requests[donor], shared, held);
    }
    world.requests.push_back(std::move(held));
  }
  for (const HeldTables& held : world.requests) {
    for (FailedLoad load :
         one_in(random, 2) ? random_failures(random, geometry, held, world.num_ranks) : std::vector<FailedLoad>()) {
      load.request = one_in(random, 8) ? RequestId{kUnknownRequest} : load.request;
      load.request = one_in(random, 16) ? world.requests.front().id : load.request;
      load.group = one_in(random, 60) ? GroupIndex{geometry.num_groups()} : load.group;
      world.failed.push_back(load);
    }
  }
  return world;
}

void expect_equal(const RecoveryPlan& got, const RecoveryPlan& expected, const std::string& what) {
  ASSERT_EQ(got.requests.size(), expected.requests.size()) << what;
  for (std::size_t i = 0; i < got.requests.size(); ++i) {
    const RequestRecovery& a = got.requests[i];
    const RequestRecovery& b = expected.requests[i];
    ASSERT_EQ(a.id.value(), b.id.value()) << what;
    EXPECT_EQ(static_cast<int>(a.action), static_cast<int>(b.action)) << what << ", request " << a.id.value();
    EXPECT_EQ(a.resume_tokens, b.resume_tokens) << what << ", request " << a.id.value();
    ASSERT_EQ(a.kept.size(), b.kept.size());
    for (std::size_t g = 0; g < a.kept.size(); ++g) {
      EXPECT_EQ(a.kept[g].first_block, b.kept[g].first_block) << what << ", request " << a.id.value() << " group " << g;
      EXPECT_EQ(a.kept[g].end_block, b.kept[g].end_block) << what << ", request " << a.id.value() << " group " << g;
    }
  }
  EXPECT_EQ(got.evicted, expected.evicted) << what;
}

void check_ranks(const Geometry& geometry, LoadFailurePolicy policy, const World& world, const RecoveryPlan& expected) {
  const HeldViews views(world.requests);
  auto ranks = create_in_process_collective(world.num_ranks, std::chrono::minutes(5)).value();
  std::vector<std::optional<RecoveryPlan>> plans(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<FailedLoad> own;
      std::ranges::copy_if(world.failed, std::back_inserter(own),
                           [&](const FailedLoad& load) { return load.rank.value() == rank; });
      RecoveryPlanner planner(geometry, policy);
      if (auto plan = plan_together(planner, *ranks[rank], views.all(), own)) {
        plans[rank] = *std::move(plan);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    ASSERT_TRUE(plans[rank].has_value());
    expect_equal(*plans[rank], expected, "rank " + std::to_string(rank));
  }
}

TEST(RecoveryPlan, AgreesWithAModelOverRequestsThatShareBlocksAndOverRanks) {
  const std::uint64_t seed = test_seed();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  std::array<int, 4> actions{};
  int evicted = 0;
  const auto rounds = static_cast<int>(test_rounds(40'000, 2'000));
  for (int round = 0; round < rounds;) {
    const std::optional<Geometry> geometry = random_model(random);
    if (!geometry) {
      continue;
    }
    const LoadFailurePolicy policy = one_in(random, 4) ? LoadFailurePolicy::kFail : LoadFailurePolicy::kRecompute;
    RecoveryPlanner planner(*geometry, policy);
    for (int again = 0; again < 4; ++again, ++round) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
      const World world = random_world(random, *geometry);
      const HeldViews views(world.requests);
      const RecoveryPlan expected = model_plan(*geometry, policy, world.requests, world.failed);
      const Result<RecoveryPlan> plan = planner.plan(views.all(), world.failed);
      ASSERT_TRUE(plan.has_value()) << plan.error().message();
      expect_equal(*plan, expected, "the scheduler");
      if (round % 10 == 0) {
        check_ranks(*geometry, policy, world, expected);
      }
      ASSERT_FALSE(::testing::Test::HasFailure());
      for (const RequestRecovery& recovery : plan->requests) {
        ++actions[static_cast<std::size_t>(recovery.action)];
      }
      evicted += plan->evicted.empty() ? 0 : 1;
    }
  }
  std::printf("seed %llu: %d cases: %d rewound, %d preempted, %d kept, %d ended; %d evict blocks\n",
              static_cast<unsigned long long>(seed), rounds, actions[0], actions[1], actions[2], actions[3], evicted);
  for (const int count : actions) {
    EXPECT_GT(count, rounds / 500);
  }
  EXPECT_GT(evicted, rounds / 10);
}

}  // namespace
}  // namespace hostkv::testing
