#include "offload/lru_policy.h"

#include <gtest/gtest.h>

namespace hostkv::testing {
namespace {

TEST(LruPolicy, NamesTheOldestOfTheClass) {
  LruPolicy policy(2);
  EXPECT_EQ(policy.victim(0), kNoEntry);
  policy.add_candidate(EntryId{5}, 0);
  policy.add_candidate(EntryId{2}, 1);
  policy.add_candidate(EntryId{9}, 0);
  EXPECT_EQ(policy.victim(0), EntryId{5});
  EXPECT_EQ(policy.victim(1), EntryId{2});
  policy.remove_candidate(EntryId{5});
  EXPECT_EQ(policy.victim(0), EntryId{9});
  EXPECT_EQ(policy.num_candidates(0), 1U);
}

TEST(LruPolicy, NamesTheOldestOverAllClasses) {
  LruPolicy policy(3);
  EXPECT_EQ(policy.victim(), kNoEntry);
  policy.add_candidate(EntryId{0}, 2);
  policy.add_candidate(EntryId{1}, 0);
  EXPECT_EQ(policy.victim(), EntryId{0});
  policy.remove_candidate(EntryId{0});
  EXPECT_EQ(policy.victim(), EntryId{1});
}

TEST(LruPolicy, AnEntryThatComesBackIsTheMostRecent) {
  LruPolicy policy(1);
  for (std::uint32_t i = 0; i < 3; ++i) {
    policy.add_candidate(EntryId{i}, 0);
  }
  policy.remove_candidate(EntryId{0});
  policy.add_candidate(EntryId{0}, 0);
  for (const std::uint32_t expected : {1U, 2U, 0U}) {
    EXPECT_EQ(policy.victim(0), EntryId{expected});
    policy.remove_candidate(EntryId{expected});
  }
  EXPECT_EQ(policy.victim(0), kNoEntry);
}

// J15: the state is bounded by the entries that exist, whatever number of keys has passed.
TEST(LruPolicy, KnowsNoMoreThanItsCandidates) {
  LruPolicy policy(1);
  for (std::uint32_t key = 0; key < 1000; ++key) {
    const EntryId entry{key % 4};
    if (key >= 4) {
      ASSERT_EQ(policy.victim(0), entry);
      policy.remove_candidate(entry);
    }
    policy.add_candidate(entry, 0);
    ASSERT_LE(policy.num_candidates(0), 4U);
  }
}

}  // namespace
}  // namespace hostkv::testing
