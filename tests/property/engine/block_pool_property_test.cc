// The pool against a naive model: plain lists, searched from the front.

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>

#include "bench/engine/block_pool.h"
#include "tests/support/engine_support.h"

namespace hostkv::bench::testing {
namespace {

struct ModelPool {
  explicit ModelPool(std::uint32_t num_blocks) {
    for (std::uint32_t b = 1; b <= num_blocks; ++b) free_list.push_back(b);
  }
  std::uint32_t allocate() {
    const std::uint32_t block = free_list.front();
    free_list.pop_front();
    keys.erase(block);
    ++owners[block];
    return block;
  }
  void take(std::uint32_t block, std::map<std::uint32_t, std::int32_t>& references) {
    free_list.remove(block);
    ++references[block];
  }
  void give(const std::vector<std::uint32_t>& blocks, std::map<std::uint32_t, std::int32_t>& references) {
    std::list<std::uint32_t> in_front;
    for (const std::uint32_t block : blocks) {
      --references[block];
      if (owners[block] + pins[block] > 0) continue;
      (keys.contains(block) ? free_list : in_front).push_back(block);
    }
    free_list.splice(free_list.begin(), in_front);
  }
  std::list<std::uint32_t> free_list;
  std::map<std::uint32_t, std::uint64_t> keys;
  std::map<std::uint32_t, std::int32_t> owners;
  std::map<std::uint32_t, std::int32_t> pins;
};

constexpr std::uint32_t kNumBlocks = 12;

class PoolWalk {
 public:
  explicit PoolWalk(std::uint64_t seed) : random_(seed), pool_(kNumBlocks), model_(kNumBlocks) {}

  void step() {
    const std::uint32_t block = pick(1, kNumBlocks);
    const std::vector<BlockId> one{BlockId{block}};
    switch (pick(0, 5)) {
      case 0:
        if (pool_.num_free() > 0) {
          std::vector<BlockId> out;
          pool_.allocate(1, out);
          EXPECT_EQ(out[0].value(), model_.allocate());
        }
        break;
      case 1:
        free_some();
        break;
      case 2:
        pool_.touch(one);
        model_.take(block, model_.owners);
        break;
      case 3:
        pool_.pin(one);
        model_.take(block, model_.pins);
        break;
      case 4:
        if (model_.pins[block] > 0) {
          pool_.unpin(one);
          model_.give({block}, model_.pins);
        }
        break;
      default:
        if (!pool_.is_free(BlockId{block})) insert_key(block);
    }
    compare();
  }

 private:
  std::uint32_t pick(std::uint32_t low, std::uint32_t high) {
    return static_cast<std::uint32_t>(hostkv::testing::pick(random_, low, high));
  }
  void free_some() {
    std::vector<BlockId> blocks;
    std::vector<std::uint32_t> values;
    for (std::uint32_t b = kNumBlocks; b >= 1; --b) {
      if (model_.owners[b] == 0 || pick(0, 1) == 0) continue;
      blocks.push_back(BlockId{b});
      values.push_back(b);
    }
    pool_.free(blocks);
    model_.give(values, model_.owners);
  }
  void insert_key(std::uint32_t block) {
    const std::uint64_t value = pick(1, 4);
    pool_.insert(CacheKey{PrefixHash{value, 0}, GroupIndex{0}}, BlockId{block});
    model_.keys.try_emplace(block, value);
  }
  void compare() {
    EXPECT_EQ(pool_.num_free(), static_cast<std::int64_t>(model_.free_list.size()));
    EXPECT_EQ(pool_.num_cached(), static_cast<std::int64_t>(model_.keys.size()));
    for (std::uint64_t value = 1; value <= 4; ++value) {
      const auto found = pool_.find(CacheKey{PrefixHash{value, 0}, GroupIndex{0}});
      const bool is_there = std::any_of(model_.keys.begin(), model_.keys.end(),
                                        [value](const auto& entry) { return entry.second == value; });
      EXPECT_EQ(found.has_value(), is_there);
      if (found) {
        EXPECT_EQ(model_.keys[found->value()], value);
      }
    }
    std::vector<std::int32_t> owners(kNumBlocks + 1, 0);
    std::int64_t pinned = 0;
    std::int64_t pinned_only = 0;
    for (std::uint32_t b = 1; b <= kNumBlocks; ++b) {
      owners[b] = model_.owners[b];
      pinned += model_.pins[b] > 0 ? 1 : 0;
      pinned_only += model_.pins[b] > 0 && model_.owners[b] == 0 ? 1 : 0;
    }
    EXPECT_EQ(pool_.num_pinned(), pinned);
    EXPECT_EQ(pool_.num_pinned_only(), pinned_only);
    EXPECT_TRUE(pool_.check_conservation(owners).ok()) << pool_.check_conservation(owners).to_string();
  }

  Random random_;
  BlockPool pool_;
  ModelPool model_;
};

TEST(BlockPoolProperty, BehavesAsPlainListsDo) {
  const std::uint64_t first_seed = first_test_seed();
  const std::uint64_t rounds = test_rounds(20);
  for (std::uint64_t seed = first_seed; seed < first_seed + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed));
    PoolWalk walk(seed);
    for (int i = 0; i < 300 && !HasFailure(); ++i) walk.step();
  }
}

}  // namespace
}  // namespace hostkv::bench::testing
