// OffloadCache against a model of keys, pins and age.

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <set>

#include "tests/support/cache_helpers.h"
#include "tests/support/geometry_builders.h"
#include "tests/support/random.h"

namespace hostkv::testing {
namespace {

constexpr std::int64_t kNumNumbers = 60;

struct Block {
  EntryId id = kNoEntry;
  std::uint32_t size_class = 0;
  std::uint32_t chain = 0;
  bool prefix_closed = false;
  bool ready = false;
  int pins = 1;
};

// Blocks by number; `oldest_first` are those that may be evicted, `orphans` are without a key until their last unpin.
class CacheModel {
 public:
  CacheModel(std::vector<std::uint32_t> slots_per_slab, std::uint64_t num_slabs, std::uint64_t reserved_slabs)
      : slots_per_slab_(slots_per_slab),
        num_slabs_(num_slabs),
        reserved_slabs_(reserved_slabs),
        cache_(lru_cache(std::move(slots_per_slab), num_slabs)) {
    cache_.set_reserved_slabs(reserved_slabs);
    cache_.record_events(events_);
  }

  void step(Random& random) {
    switch (pick(random, 0, 10)) {
      case 0:
      case 1:
      case 2:
        return reserve(random);
      case 3:
      case 4:
        return end_store(random, one_in(random, 4));
      case 5:
        return pin_some(random);
      case 6:
        return unpin_some(random);
      case 7:
        return touch_some(random);
      case 8:
        return drop_some(random);
      case 9:
        return pin_many(random);
      default:
        return one_in(random, 40) ? clear() : end_orphan(random);
    }
  }

  void check() {
    expect_conserved(cache_);
    std::set<SlotId> slots;
    std::map<std::uint64_t, std::uint32_t> class_of_slab;
    std::uint64_t ready = 0;
    std::uint64_t pinned = orphans_.size();
    for (std::uint64_t number = 0; number < kNumNumbers; ++number) {
      const auto known = blocks_.find(number);
      ASSERT_EQ(find_in(cache_, key_of(number)), known == blocks_.end() ? kNoEntry : known->second.id) << number;
      if (known != blocks_.end()) {
        ASSERT_EQ(cache_.ready(known->second.id), known->second.ready) << number;
        ready += known->second.ready ? 1U : 0U;
        pinned += known->second.pins > 0 ? 1U : 0U;
        check_slot(known->second, slots, class_of_slab);
      }
    }
    for (const Block& orphan : orphans_) {
      check_slot(orphan, slots, class_of_slab);
    }
    check_events();
    EXPECT_LE(class_of_slab.size(), num_slabs_);
    EXPECT_EQ(cache_.num_ready(), ready);
    EXPECT_EQ(cache_.num_pinned(), pinned);
    EXPECT_EQ(cache_.num_used_slots(), slots.size());
    EXPECT_EQ(cache_.num_used_slabs(), class_of_slab.size());
  }

  [[nodiscard]] std::uint64_t num_evictions() const { return cache_.num_evictions(); }
  [[nodiscard]] std::uint64_t num_failures() const { return num_failures_; }
  [[nodiscard]] std::uint64_t num_stolen_slabs() const { return num_stolen_slabs_; }
  [[nodiscard]] std::uint64_t num_from_reserve() const { return num_from_reserve_; }

 private:
  using Numbers = std::vector<std::uint64_t>;

  // Replayed, the events give exactly the keys that are ready.
  void check_events() {
    for (const KeyEvent& event : events_) {
      const auto key = std::pair(event.hash, event.tag);
      switch (event.kind) {
        case KeyEventKind::kStored:
          EXPECT_TRUE(replayed_.insert(key).second);
          break;
        case KeyEventKind::kRemoved:
          EXPECT_EQ(replayed_.erase(key), 1U);
          break;
        case KeyEventKind::kCleared:
          replayed_.clear();
          break;
        case KeyEventKind::kPlanned:
        case KeyEventKind::kDropped:
          break;
      }
    }
    events_.clear();
    std::set<std::pair<std::array<std::uint64_t, 4>, std::uint64_t>> ready;
    for (const auto& [number, block] : blocks_) {
      if (block.ready) {
        ready.emplace(key_of(number).hash, key_of(number).tag);
      }
    }
    EXPECT_EQ(replayed_, ready);
  }

  void check_slot(const Block& block, std::set<SlotId>& slots,
                  std::map<std::uint64_t, std::uint32_t>& class_of_slab) const {
    const SlotId slot = cache_.slot(block.id);
    EXPECT_TRUE(slots.insert(slot).second) << "two blocks in one slot";
    EXPECT_LT(slab_of(slot), num_slabs_);
    EXPECT_LT(index_in_slab(slot), slots_per_slab_[block.size_class]);
    const auto [at, is_new] = class_of_slab.emplace(slab_of(slot), block.size_class);
    EXPECT_EQ(at->second, block.size_class) << "two sizes in one slab";
  }

  void reserve(Random& random) {
    const auto chain = static_cast<std::uint32_t>(pick(random, 0, 3));
    const bool urgent = one_in(random, 3);
    std::vector<StoreWant> wants;
    std::map<std::uint64_t, Block> wanted;
    for (std::int64_t i = pick(random, 1, 4); i > 0; --i) {
      const auto number = static_cast<std::uint64_t>(pick(random, 0, kNumNumbers - 1));
      const auto size_class =
          static_cast<std::uint32_t>(pick(random, 0, static_cast<std::int64_t>(slots_per_slab_.size()) - 1));
      if (!blocks_.contains(number) && !wanted.contains(number)) {
        wants.push_back(want_of(number, size_class, one_in(random, 2)));
        wanted[number] = Block{.size_class = size_class, .chain = chain, .prefix_closed = wants.back().prefix_closed};
      }
    }
    std::vector<EntryId> reserved;
    const std::uint64_t free_before = num_free_slabs();
    const bool done = cache_.reserve(wants, chain, reserved, urgent);
    check_reserve(free_before, urgent);
    forget_evicted(Call{chain, wants.size(), urgent, done, free_before}, wants);
    ASSERT_EQ(reserved.size(), done ? wants.size() : 0U);
    for (std::size_t i = 0; done && i < wants.size(); ++i) {
      for (auto& [number, block] : wanted) {
        if (key_of(number) == wants[i].key) {
          block.id = reserved[i];
          blocks_[number] = block;
        }
      }
    }
    num_failures_ += done ? 0U : 1U;
  }

  struct Call {
    std::uint32_t chain = 0;
    std::size_t num_wants = 0;
    bool urgent = false;
    bool done = false;
    std::uint64_t free_slabs_before = 0;
  };

  [[nodiscard]] std::uint64_t num_free_slabs() const { return num_slabs_ - cache_.num_used_slabs(); }
  static bool is_own(const Block& block, std::uint32_t chain) {
    return block.prefix_closed && block.chain == chain && chain != OffloadCache::kNoChain;
  }

  // The last free slabs are only for urgent sets.
  void check_reserve(std::uint64_t free_before, bool urgent) {
    if (!urgent) {
      EXPECT_GE(num_free_slabs(), std::min(reserved_slabs_, free_before));
    }
    num_from_reserve_ += num_free_slabs() < std::min(reserved_slabs_, free_before) ? 1U : 0U;
  }

  // What a reserve took away: never what is pinned (R4) nor the chain's own attention blocks; of one size the oldest.
  void forget_evicted(const Call& call, const std::vector<StoreWant>& wants) {
    Numbers evicted;
    for (const std::uint64_t number : oldest_first_) {
      if (!is_ready(cache_, key_of(number))) {
        evicted.push_back(number);
        const Block& block = blocks_.at(number);
        ASSERT_EQ(block.pins, 0);
        ASSERT_FALSE(is_own(block, call.chain)) << "a chain evicted its own head";
      }
    }
    if (slots_per_slab_.size() == 1 && (reserved_slabs_ == 0 || slots_per_slab_[0] == 1)) {
      check_single_class(call, evicted);
    } else if (!call.done) {
      check_refusal(call);
    }
    for (const std::uint64_t number : evicted) {
      const std::uint32_t size_class = blocks_.at(number).size_class;
      num_stolen_slabs_ +=
          std::ranges::none_of(wants, [&](const StoreWant& want) { return want.size_class == size_class; }) ? 1U : 0U;
      oldest_first_.remove(number);
      blocks_.erase(number);
    }
  }

  // With one size the model knows exactly who goes: the oldest that is not the chain's own, until the set fits or none
  // is left. A reserve that is short is refilled first by the oldest of all, where that may go; an urgent set takes
  // that slab itself, and from the reserve where nobody may go any more.
  void check_single_class(const Call& call, const Numbers& evicted) const {
    std::uint64_t free_slots = num_slabs_ * slots_per_slab_[0] - blocks_.size() - orphans_.size();
    std::list<std::uint64_t> candidates = oldest_first_;
    Numbers expected;
    const auto evict = [&](std::list<std::uint64_t>::iterator at) {
      expected.push_back(*at);
      candidates.erase(at);
    };
    std::size_t num_placed = 0;
    for (; num_placed < call.num_wants; ++num_placed) {
      if (free_slots > reserved_slabs_) {
        --free_slots;
        continue;
      }
      if (free_slots < reserved_slabs_ && !candidates.empty() && !is_own(blocks_.at(candidates.front()), call.chain)) {
        evict(candidates.begin());
        if (call.urgent) {
          continue;
        }
        ++free_slots;
      }
      const auto victim = std::ranges::find_if(
          candidates, [&](std::uint64_t number) { return !is_own(blocks_.at(number), call.chain); });
      if (victim != candidates.end()) {
        evict(victim);
      } else if (call.urgent && free_slots > 0) {
        --free_slots;
      } else {
        break;
      }
    }
    EXPECT_EQ(call.done, num_placed == call.num_wants);
    std::ranges::sort(expected, {}, [&](std::uint64_t number) { return age_of(number); });
    EXPECT_EQ(evicted, expected);
  }
  [[nodiscard]] std::ptrdiff_t age_of(std::uint64_t number) const {
    return std::ranges::distance(oldest_first_.begin(), std::ranges::find(oldest_first_, number));
  }

  // With several sizes a set is refused only where something cannot go: a pin, an orphan or the chain's own block. In a
  // pool of fewer slabs than blocks of the set, the set's own blocks may hold all of them; the reserve is not for
  // everyone.
  void check_refusal(const Call& call) const {
    const bool held = std::ranges::any_of(
        blocks_, [&](const auto& known) { return known.second.pins > 0 || is_own(known.second, call.chain); });
    const std::uint64_t num_slabs = num_slabs_ - (call.urgent ? 0 : reserved_slabs_);
    EXPECT_TRUE(held || !orphans_.empty() || num_slabs < call.num_wants);
  }

  void make_candidate(std::uint64_t number) { oldest_first_.push_back(number); }

  void end_store(Random& random, bool is_abort) {
    const auto number = some(random, [](const Block& block) { return !block.ready; });
    if (!number) {
      return;
    }
    Block& block = blocks_.at(*number);
    if (is_abort) {
      cache_.abort(block.id);
      blocks_.erase(*number);
      return;
    }
    cache_.publish(block.id);
    block.ready = true;
    if (--block.pins == 0) {
      make_candidate(*number);
    }
  }

  void pin_some(Random& random) {
    if (const auto number = some(random, [](const Block& block) { return block.ready; })) {
      cache_.pin(blocks_.at(*number).id);
      ++blocks_.at(*number).pins;
      oldest_first_.remove(*number);
    }
  }

  void unpin_some(Random& random) {
    if (const auto number = some(random, [](const Block& block) { return block.ready && block.pins > 0; })) {
      cache_.unpin(blocks_.at(*number).id);
      if (--blocks_.at(*number).pins == 0) {
        make_candidate(*number);
      }
    }
  }

  // In one call as one after the other, a block several times too.
  void pin_many(Random& random) {
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, block] : blocks_) {
      for (int times = block.ready && one_in(random, 2) ? 2 : 1; block.ready && times > 0; --times) {
        numbers.push_back(number);
      }
    }
    std::ranges::shuffle(numbers, random);
    std::vector<EntryId> ids;
    for (const std::uint64_t number : numbers) {
      ids.push_back(blocks_.at(number).id);
      ++blocks_.at(number).pins;
      oldest_first_.remove(number);
    }
    cache_.pin_all(ids);
    check();
    cache_.unpin_all(ids);
    for (const std::uint64_t number : numbers) {
      if (--blocks_.at(number).pins == 0) {
        make_candidate(number);
      }
    }
  }

  // Some of one chain and of others, some of them twice.
  void touch_some(Random& random) {
    std::vector<std::uint64_t> numbers;
    std::vector<EntryId> ids;
    for (std::int64_t n = pick(random, 1, 6); n > 0; --n) {
      if (const auto number = some(random, [](const Block&) { return true; })) {
        numbers.push_back(*number);
        ids.push_back(blocks_.at(*number).id);
      }
    }
    if (numbers.empty()) {
      return;
    }
    const std::uint32_t chain = blocks_.at(numbers.front()).chain;
    cache_.touch_chain(ids, chain);
    for (const std::uint64_t number : numbers) {
      const Block& block = blocks_.at(number);
      if (block.ready && block.pins == 0 && block.chain == chain) {
        oldest_first_.remove(number);
        make_candidate(number);
      }
    }
  }

  void drop_some(Random& random) {
    if (const auto number = some(random, [](const Block&) { return true; })) {
      drop(*number);
    }
  }
  void drop(std::uint64_t number) {
    cache_.drop(blocks_.at(number).id);
    orphan(number);
  }
  void orphan(std::uint64_t number) {
    if (blocks_.at(number).pins > 0) {
      orphans_.push_back(blocks_.at(number));
    }
    blocks_.erase(number);
    oldest_first_.remove(number);
  }

  void clear() {
    cache_.clear();
    while (!blocks_.empty()) {
      orphan(blocks_.begin()->first);
    }
  }

  // Its copy ends: published, aborted or read to the end, the slot goes back all the same.
  void end_orphan(Random& random) {
    if (orphans_.empty()) {
      return;
    }
    const auto at = static_cast<std::size_t>(pick(random, 0, static_cast<std::int64_t>(orphans_.size()) - 1));
    Block& orphan = orphans_[at];
    if (!orphan.ready && one_in(random, 2)) {
      cache_.publish(orphan.id);
    } else if (!orphan.ready) {
      cache_.abort(orphan.id);
    } else {
      cache_.unpin(orphan.id);
    }
    if (--orphan.pins == 0) {
      orphans_.erase(orphans_.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  template <class Wanted>
  std::optional<std::uint64_t> some(Random& random, Wanted wanted) {
    Numbers numbers;
    for (const auto& [number, block] : blocks_) {
      if (wanted(block)) {
        numbers.push_back(number);
      }
    }
    if (numbers.empty()) {
      return std::nullopt;
    }
    return numbers[static_cast<std::size_t>(pick(random, 0, static_cast<std::int64_t>(numbers.size()) - 1))];
  }

  std::vector<std::uint32_t> slots_per_slab_;
  std::uint64_t num_slabs_;
  std::uint64_t reserved_slabs_;
  KeyEvents events_;
  std::set<std::pair<std::array<std::uint64_t, 4>, std::uint64_t>> replayed_;
  OffloadCache cache_;
  std::map<std::uint64_t, Block> blocks_;
  std::list<std::uint64_t> oldest_first_;
  std::vector<Block> orphans_;
  std::uint64_t num_failures_ = 0;
  std::uint64_t num_stolen_slabs_ = 0;
  std::uint64_t num_from_reserve_ = 0;
};

TEST(OffloadCache, AgreesWithAModelAndConservesSlotsOverRandomOperations) {
  const std::uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  std::uint64_t evictions = 0;
  std::uint64_t failures = 0;
  std::uint64_t stolen = 0;
  std::uint64_t from_reserve = 0;
  for (std::uint64_t round = 0; round < test_rounds(60); ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    std::vector<std::uint32_t> slots_per_slab;
    for (std::int64_t i = one_in(random, 2) ? 1 : pick(random, 2, 3); i > 0; --i) {
      slots_per_slab.push_back(static_cast<std::uint32_t>(pick(random, 1, 5)));
    }
    const std::int64_t num_slabs = pick(random, 1, 8);
    const std::int64_t reserved_slabs = one_in(random, 2) ? 0 : pick(random, 0, num_slabs - 1);
    CacheModel model(slots_per_slab, static_cast<std::uint64_t>(num_slabs), static_cast<std::uint64_t>(reserved_slabs));
    for (int op = 0; op < 400; ++op) {
      model.step(random);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "operation " << op;
      model.check();
      ASSERT_FALSE(::testing::Test::HasFailure()) << "operation " << op;
    }
    evictions += model.num_evictions();
    failures += model.num_failures();
    stolen += model.num_stolen_slabs();
    from_reserve += model.num_from_reserve();
  }
  EXPECT_GT(evictions, 0U);
  EXPECT_GT(failures, 0U);
  EXPECT_GT(stolen, 0U);
  EXPECT_GT(from_reserve, 0U);
}

}  // namespace
}  // namespace hostkv::testing
