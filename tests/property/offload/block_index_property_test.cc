// BlockIndex against std::map.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "offload/block_index.h"
#include "tests/support/cache_helpers.h"
#include "tests/support/geometry_builders.h"
#include "tests/support/random.h"

namespace hostkv::testing {
namespace {

struct Known {
  EntryId id;
  SlotId slot;
};

class IndexModel {
 public:
  explicit IndexModel(std::uint64_t num_numbers) : num_numbers_(num_numbers) {}

  void step(Random& random) {
    const std::uint64_t number = draw(random);
    const auto known = keys_.find(number);
    if (known == keys_.end()) {
      const SlotId slot{++last_slot_};
      keys_[number] = {index_.insert(key(number), slot), slot};
    } else if (one_in(random, 3)) {
      index_.orphan(known->second.id);
      orphans_[known->second.id] = known->second.slot;
      keys_.erase(known);
    } else {
      index_.erase(known->second.id);
      keys_.erase(known);
    }
    if (orphans_.size() > 20) {
      index_.erase(orphans_.begin()->first);
      orphans_.erase(orphans_.begin());
    }
    check_one(draw(random));
    check_one(number);
  }

  void check_all() const {
    EXPECT_EQ(index_.num_keys(), keys_.size());
    for (std::uint64_t number = 0; number < num_numbers_; ++number) {
      check_one(number);
    }
    for (const auto& [id, slot] : orphans_) {
      EXPECT_EQ(index_.entry(id).state, EntryState::kOrphaned);
      EXPECT_EQ(index_.entry(id).slot, slot);
    }
    std::size_t live = 0;
    for (const IndexEntry& entry : index_.entries()) {
      live += entry.state != EntryState::kFree ? 1U : 0U;
    }
    EXPECT_EQ(live, keys_.size() + orphans_.size());
  }

 private:
  // Plain counters, near in value, of two groups.
  static OffloadKey key(std::uint64_t number) { return key_of(number / 2, static_cast<std::uint32_t>(number % 2)); }
  [[nodiscard]] std::uint64_t draw(Random& random) const {
    return static_cast<std::uint64_t>(pick(random, 0, static_cast<std::int64_t>(num_numbers_) - 1));
  }
  void check_one(std::uint64_t number) const {
    const EntryId id = index_.find(key(number));
    const auto known = keys_.find(number);
    ASSERT_EQ(id, known == keys_.end() ? kNoEntry : known->second.id) << "key " << number;
    if (id != kNoEntry) {
      ASSERT_EQ(index_.entry(id).slot, known->second.slot);
      ASSERT_TRUE(index_.entry(id).holds(key(number)));
    }
  }

  std::uint64_t num_numbers_;
  BlockIndex index_;
  std::map<std::uint64_t, Known> keys_;
  std::map<EntryId, SlotId> orphans_;
  std::uint64_t last_slot_ = 0;
};

TEST(BlockIndex, AgreesWithAMapOverRandomInsertsAndErasures) {
  const std::uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  // The number of different keys decides how full the table becomes: it grows past 1024 buckets in the last case.
  for (const std::uint64_t num_numbers : {4U, 100U, 900U, 1500U, 20'000U}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " keys " << num_numbers);
    IndexModel model(num_numbers);
    for (std::uint64_t round = 0; round < test_rounds(40'000); ++round) {
      model.step(random);
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
    model.check_all();
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
}

// Chains in a regular row (up, down, every third entry), scattered, cut by holes and by orphans: the batch must answer
// what one question after the other does, wherever it is cut.
class RunModel {
 public:
  explicit RunModel(Random& random) : random_(random) {
    for (std::uint64_t i = 0; i < kKeys; ++i) {
      numbers_.push_back((i + 1) << 32U);  // 8-byte hashes
    }
    std::vector<std::uint64_t> order(kKeys);
    std::iota(order.begin(), order.end(), 0U);
    arrange(order);
    for (const std::uint64_t i : order) {
      if (!one_in(random_, 12)) {
        const EntryId id = index_.insert(run()[i], SlotId{i});
        if (one_in(random_, 15)) {
          index_.orphan(id);
        }
      }
    }
  }

  void check() {
    RunCursor cursor;
    std::vector<EntryId> found(kKeys);
    for (std::size_t done = 0; done < kKeys;) {
      const auto count = std::min(static_cast<std::size_t>(pick(random_, 1, 40)), kKeys - done);
      index_.find_run(run().from(done), std::span(found).subspan(done, count), cursor);
      done += count;
    }
    for (std::size_t i = 0; i < kKeys; ++i) {
      ASSERT_EQ(found[i], index_.find(run()[i])) << "key " << i;
    }
  }

 private:
  static constexpr std::size_t kKeys = 150;

  [[nodiscard]] KeyRun run() const {
    const auto bytes = std::as_bytes(std::span(numbers_));
    return {.hashes = bytes.data(),
            .stride_bytes = 8,
            .hash_size_bytes = 8,
            .num_keys = kKeys,
            .tag = make_key_tag(GroupIndex{3}, 8, 77)};
  }
  void arrange(std::vector<std::uint64_t>& order) {
    switch (pick(random_, 0, 3)) {
      case 0:
        std::ranges::reverse(order);
        break;
      case 1:
        std::ranges::shuffle(order, random_);
        break;
      case 2:  // three chains that were stored by turns
        std::ranges::stable_sort(order, {}, [](std::uint64_t i) { return i % 50; });
        break;
      default:
        break;
    }
  }

  Random& random_;
  std::vector<std::uint64_t> numbers_;
  BlockIndex index_;
};

TEST(BlockIndex, FindsTheKeysOfARunAsOneByOne) {
  const std::uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  for (std::uint64_t round = 0; round < test_rounds(300); ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    RunModel model(random);
    model.check();
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
}

// An entry that lies where the next one of a chain would be, with another key: the key decides.
TEST(BlockIndex, ANeighbourWithAnotherKeyIsNotTakenForTheNextOfTheChain) {
  BlockIndex index;
  std::vector<std::uint64_t> numbers = {1, 2, 3, 4};
  const KeyRun run{.hashes = std::as_bytes(std::span(numbers)).data(),
                   .stride_bytes = 8,
                   .hash_size_bytes = 8,
                   .num_keys = 4,
                   .tag = make_key_tag(GroupIndex{0}, 8, 1)};
  const EntryId first = index.insert(run[0], SlotId{});
  const EntryId second = index.insert(run[1], SlotId{});
  index.insert(key_of(3, 1), SlotId{});  // the same hash in another group
  const EntryId fourth = index.insert(run[3], SlotId{});
  RunCursor cursor;
  std::vector<EntryId> found(4);
  index.find_run(run, found, cursor);
  EXPECT_EQ(found, (std::vector<EntryId>{first, second, kNoEntry, fourth}));
}

// Keys whose home is one and the same bucket, erased in every order of the run.
TEST(BlockIndex, KeepsEveryKeyOfARunReachableWhenOneIsErased) {
  std::vector<OffloadKey> run;
  for (std::uint64_t number = 0; run.size() < 12; ++number) {
    const std::uint64_t home = hash_of(key_of(number)) & 1023U;
    if (home >= 1020 || home <= 2) {  // the run wraps round the end of the table
      run.push_back(key_of(number));
    }
  }
  for (std::size_t erased = 0; erased < run.size(); ++erased) {
    BlockIndex index;
    std::vector<EntryId> ids;
    for (const OffloadKey& key : run) {
      ids.push_back(index.insert(key, SlotId{}));
    }
    index.erase(ids[erased]);
    for (std::size_t i = 0; i < run.size(); ++i) {
      EXPECT_EQ(index.find(run[i]), i == erased ? kNoEntry : ids[i]) << "erased " << erased << " looked for " << i;
    }
  }
}

}  // namespace
}  // namespace hostkv::testing
