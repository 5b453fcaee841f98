// The safe boundary against brute force over all candidates, token by token; and the ranks' answer against the one of a
// scheduler that knows all failures.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "tests/property/recovery/random_tables.h"
#include "tests/property/recovery/token_oracle.h"
#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

using Blocks = std::set<std::pair<GroupIndex, BlockId>>;

Blocks failed_blocks(const std::vector<FailedLoad>& failed) {
  Blocks blocks;
  for (const FailedLoad& load : failed) {
    blocks.emplace(load.group, load.block);
  }
  return blocks;
}
CanRead all_but(const Blocks& failed) {
  return [&failed](GroupIndex g, BlockId block, std::int64_t) { return !failed.contains({g, block}); };
}

std::vector<FailedLoad> of_rank(const std::vector<FailedLoad>& failed, std::int64_t rank) {
  std::vector<FailedLoad> own;
  std::ranges::copy_if(failed, std::back_inserter(own),
                       [&](const FailedLoad& load) { return std::int64_t{load.rank.value()} == rank; });
  return own;
}

// Rules that look right and are not. Each must be seen to differ from the answer, or this test could not tell.
struct Wrong {
  int least_of_ranks = 0;
  int draft_dropped_again = 0;
  int floor_of_first_failure = 0;
  int one_namespace = 0;
};

class Case {
 public:
  Case(Random& random, Geometry made) : geometry_(std::move(made)), num_ranks_(pick(random, 1, 8)) {
    BlockNumbers numbers(random, one_in(random, 10));
    const std::int64_t step = geometry_.hit_alignment_tokens();
    const std::int64_t settled =
        one_in(random, 20) ? pick(random, 0, 4 * step)
                           : pick(random, 4 * step, std::max(4 * step, std::min<std::int64_t>(240, 14 * step)));
    held_.push_back(random_tables(random, geometry_, 1, settled, settled + pick(random, 0, 20), numbers));
    // Most cases get failures until one of them matters.
    for (int tries = one_in(random, 8) ? 1 : 6; tries > 0 && answer() == top(); --tries) {
      const std::vector<FailedLoad> more = random_failures(random, geometry_, held_[0], num_ranks_);
      failed_.insert(failed_.end(), more.begin(), more.end());
    }
  }

  void check(RecoveryPlanner& planner, bool with_threads, Wrong& wrong) const {
    const HeldViews views(held_);
    const Blocks bad = failed_blocks(failed_);
    std::vector<std::uint8_t> safe(planner.num_candidates(views.front()));
    ASSERT_EQ(planner.mark_safe(views.front(), failed_, safe), Status());
    for (std::size_t i = 0; i < safe.size(); ++i) {
      const std::int64_t boundary = static_cast<std::int64_t>(i) * geometry_.hit_alignment_tokens();
      ASSERT_EQ(safe[i] == 1, is_safe(geometry_, held_[0], boundary, all_but(bad))) << "at " << boundary;
    }
    ASSERT_EQ(planner.safe_boundary(views.front(), failed_).value_or(-1), answer());
    std::vector<std::uint8_t> least(safe.size(), 1);
    std::int64_t least_answer = top();
    for (std::int64_t rank = 0; rank < num_ranks_; ++rank) {
      const std::vector<FailedLoad> own = of_rank(failed_, rank);
      ASSERT_EQ(planner.mark_safe(views.front(), own, safe), Status());
      std::ranges::transform(least, safe, least.begin(), [](auto a, auto b) { return std::min(a, b); });
      least_answer = std::min(least_answer, planner.safe_boundary(views.front(), own).value_or(-1));
    }
    const auto last = least.rend() - std::ranges::find(least.rbegin(), least.rend(), 1) - 1;
    ASSERT_EQ(last * geometry_.hit_alignment_tokens(), answer()) << "the ranks together";
    if (with_threads) {
      check_with_threads(views);
    }
    count(least_answer, wrong);
  }

  [[nodiscard]] std::int64_t answer() const {
    const Blocks bad = failed_blocks(failed_);
    return largest_safe(geometry_, held_[0], all_but(bad));
  }
  [[nodiscard]] std::int64_t top() const {
    return held_[0].settled_tokens / geometry_.hit_alignment_tokens() * geometry_.hit_alignment_tokens();
  }

 private:
  // Every rank a thread; what each ends with is what the scheduler's plan says.
  void check_with_threads(const HeldViews& views) const {
    auto ranks = create_in_process_collective(num_ranks_, std::chrono::minutes(5)).value();
    RecoveryPlanner central(geometry_);
    const auto expected = central.plan(views.all(), failed_);
    const std::int64_t resume = expected->requests.empty() ? -1 : expected->requests[0].resume_tokens;
    std::vector<std::int64_t> resumed(ranks.size(), -2);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      threads.emplace_back([&, rank] {
        RecoveryPlanner planner(geometry_);
        const auto own = of_rank(failed_, static_cast<std::int64_t>(rank));
        const auto plan = plan_together(planner, *ranks[rank], views.all(), own);
        resumed[rank] = !plan ? -3 : plan->requests.empty() ? -1 : plan->requests[0].resume_tokens;
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(resumed, std::vector<std::int64_t>(ranks.size(), resume));
    EXPECT_TRUE(resume == -1 || resume == answer());
  }

  void count(std::int64_t least_of_ranks, Wrong& wrong) const {
    const std::int64_t right = answer();
    wrong.least_of_ranks += least_of_ranks != right ? 1 : 0;
    std::int64_t first_failure = top();
    Blocks anywhere;
    bool drops = false;
    for (std::uint32_t i = 0; i < geometry_.num_groups(); ++i) {
      const GroupIndex g{i};
      drops = drops || (has_part(geometry_.group(g)) && geometry_.drops_unit(g));
      for (const FailedLoad& load : failed_) {
        anywhere.emplace(g, load.block);
        const auto& table = held_[0].tables[i];
        const auto at = std::ranges::find(table, load.block);
        if (load.group == g && load.block != kNullBlock && at != table.end() && has_part(geometry_.group(g))) {
          const std::int64_t token = (at - table.begin()) * geometry_.span_tokens(g);
          first_failure = std::min(first_failure, token - token % geometry_.hit_alignment_tokens());
        }
      }
    }
    wrong.floor_of_first_failure += first_failure != right ? 1 : 0;
    wrong.one_namespace += largest_safe(geometry_, held_[0], all_but(anywhere)) != right ? 1 : 0;
    wrong.draft_dropped_again += drops && right > 0 ? 1 : 0;
  }

  Geometry geometry_;
  std::int64_t num_ranks_;
  std::vector<HeldTables> held_;  // one
  std::vector<FailedLoad> failed_;
};

TEST(SafeBoundary, AgreesWithBruteForceOverAllCandidatesAndOverRanks) {
  const std::uint64_t seed = test_seed();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  int between = 0;
  int nothing = 0;
  int fine = 0;
  Wrong wrong;
  const auto rounds = static_cast<int>(test_rounds(100'000, 4'000));
  for (int round = 0; round < rounds;) {
    std::optional<Geometry> geometry = random_small_geometry(random);
    if (!geometry) {
      continue;
    }
    RecoveryPlanner planner(*geometry);  // one for several requests: nothing of a call is left for the next
    for (int again = 0; again < 4 && round < rounds; ++again, ++round) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
      const Case one(random, *geometry);
      one.check(planner, round % 500 == 0, wrong);
      ASSERT_FALSE(::testing::Test::HasFailure());
      between += one.answer() > 0 && one.answer() < one.top() ? 1 : 0;
      nothing += one.answer() == 0 && one.top() > 0 ? 1 : 0;
      fine += geometry->fine_hits() ? 1 : 0;
    }
  }
  ::testing::Test::RecordProperty("between", between);
  std::printf(
      "seed %llu: %d cases, %d strictly between nothing and the top, %d nothing, %d with fine hits; other rules "
      "differ: "
      "least of the ranks %d, dropping again %d, floor of the first failure %d, one namespace %d\n",
      static_cast<unsigned long long>(seed), rounds, between, nothing, fine, wrong.least_of_ranks,
      wrong.draft_dropped_again, wrong.floor_of_first_failure, wrong.one_namespace);
  EXPECT_GT(between, rounds / 2);
  EXPECT_GT(fine, rounds / 100);
  EXPECT_GT(wrong.least_of_ranks, rounds / 500);
  EXPECT_GT(wrong.draft_dropped_again, rounds / 50);
  EXPECT_GT(wrong.floor_of_first_failure, rounds / 50);
  EXPECT_GT(wrong.one_namespace, rounds / 50);
}

}  // namespace
}  // namespace hostkv::testing
