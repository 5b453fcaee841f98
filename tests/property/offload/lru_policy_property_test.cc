// LruPolicy against a list.

#include <gtest/gtest.h>

#include <algorithm>
#include <list>

#include "offload/lru_policy.h"
#include "tests/support/geometry_builders.h"
#include "tests/support/random.h"

namespace hostkv::testing {
namespace {

struct Candidate {
  EntryId entry;
  std::uint32_t size_class = 0;
};

class LruModel {
 public:
  explicit LruModel(std::uint32_t num_classes) : num_classes_(num_classes), policy_(num_classes) {}

  void step(Random& random) {
    const EntryId entry{static_cast<std::uint32_t>(pick(random, 0, 60))};
    const auto known = std::ranges::find(oldest_first_, entry, &Candidate::entry);
    if (known != oldest_first_.end()) {
      policy_.remove_candidate(entry);
      oldest_first_.erase(known);
    }
    if (known == oldest_first_.end() || one_in(random, 2)) {
      const auto size_class = static_cast<std::uint32_t>(pick(random, 0, num_classes_ - 1));
      policy_.add_candidate(entry, size_class);
      oldest_first_.push_back({entry, size_class});
    }
    check();
  }

  // Some that stand side by side, in either direction, and some that do not; back in another order.
  void step_many(Random& random) {
    std::vector<Candidate> some;
    const bool backwards = one_in(random, 2);
    for (const Candidate& candidate : oldest_first_) {
      if (!one_in(random, 4)) {
        some.insert(backwards ? some.begin() : some.end(), candidate);
      }
    }
    if (one_in(random, 3) && some.size() > 1) {
      std::swap(some.front(), some[some.size() / 2]);
    }
    std::vector<EntryId> entries;
    for (const Candidate& candidate : some) {
      entries.push_back(candidate.entry);
      oldest_first_.erase(std::ranges::find(oldest_first_, candidate.entry, &Candidate::entry));
    }
    policy_.remove_candidates(entries);
    check();
    const auto size_class = static_cast<std::uint32_t>(pick(random, 0, num_classes_ - 1));
    policy_.add_candidates(entries, size_class);
    for (const EntryId entry : entries) {
      oldest_first_.push_back({entry, size_class});
    }
    check();
  }

 private:
  void check_order(std::uint32_t size_class) const {
    EntryId victim = policy_.victim(size_class);
    for (const Candidate& candidate : oldest_first_) {
      if (candidate.size_class == size_class) {
        ASSERT_EQ(victim, candidate.entry);
        victim = policy_.next_victim(victim);
      }
    }
    EXPECT_EQ(victim, kNoEntry);
  }

  void check() const {
    EXPECT_EQ(policy_.victim(), oldest_first_.empty() ? kNoEntry : oldest_first_.front().entry);
    for (std::uint32_t c = 0; c < num_classes_; ++c) {
      const auto victim = std::ranges::find(oldest_first_, c, &Candidate::size_class);
      EXPECT_EQ(policy_.victim(c), victim == oldest_first_.end() ? kNoEntry : victim->entry);
      check_order(c);
      const auto count = std::ranges::count(oldest_first_, c, &Candidate::size_class);
      EXPECT_EQ(policy_.num_candidates(c), static_cast<std::uint64_t>(count));
    }
  }

  std::uint32_t num_classes_;
  LruPolicy policy_;
  std::list<Candidate> oldest_first_;
};

TEST(LruPolicy, AgreesWithAListOverRandomOperations) {
  const std::uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  for (const std::uint32_t num_classes : {1U, 2U, 5U}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " classes " << num_classes);
    LruModel model(num_classes);
    for (std::uint64_t round = 0; round < test_rounds(10'000); ++round) {
      one_in(random, 20) ? model.step_many(random) : model.step(random);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace hostkv::testing
