#ifndef HOSTKV_TESTS_SUPPORT_CACHE_HELPERS_H_
#define HOSTKV_TESTS_SUPPORT_CACHE_HELPERS_H_

// Short ways to fill an OffloadCache: keys are numbers.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "offload/lru_policy.h"
#include "offload/offload_cache.h"

namespace hostkv::testing {

inline OffloadKey key_of(std::uint64_t number, std::uint32_t group = 0, std::uint64_t name_space = 1) {
  return make_offload_key(std::as_bytes(std::span(&number, 1)), GroupIndex{group}, name_space);
}
inline EntryId find_in(const OffloadCache& cache, const OffloadKey& key) {
  return cache.find(key, hash_of(key));
}
inline bool is_ready(const OffloadCache& cache, const OffloadKey& key) {
  const EntryId id = find_in(cache, key);
  return id != kNoEntry && cache.ready(id);
}
inline OffloadCache lru_cache(std::vector<std::uint32_t> slots_per_slab, std::uint64_t num_slabs) {
  auto policy = std::make_unique<LruPolicy>(static_cast<std::uint32_t>(slots_per_slab.size()));
  return OffloadCache(std::move(slots_per_slab), num_slabs, std::move(policy));
}

inline constexpr std::uint32_t kSomeChain = 1;

inline StoreWant want_of(std::uint64_t number, std::uint32_t size_class = 0, bool prefix_closed = false) {
  return StoreWant{.key = key_of(number), .size_class = size_class, .prefix_closed = prefix_closed};
}

// The entries in order; empty where the set found no room.
inline std::vector<EntryId> reserve_all(OffloadCache& cache, const std::vector<StoreWant>& wants,
                                        std::uint32_t chain = kSomeChain, bool urgent = false) {
  std::vector<EntryId> reserved;
  const bool done = cache.reserve(wants, chain, reserved, urgent);
  EXPECT_EQ(reserved.size(), done ? wants.size() : 0U);
  return reserved;
}
inline void publish_tail_first(OffloadCache& cache, const std::vector<EntryId>& entries) {
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    cache.publish(*entry);
  }
}
inline bool store_all(OffloadCache& cache, const std::vector<StoreWant>& wants, std::uint32_t chain = kSomeChain) {
  const std::vector<EntryId> entries = reserve_all(cache, wants, chain);
  publish_tail_first(cache, entries);
  return entries.size() == wants.size();
}
// A set of its own.
inline bool store_one(OffloadCache& cache, std::uint64_t number, std::uint32_t size_class = 0) {
  return store_all(cache, {want_of(number, size_class)});
}
inline void pin_key(OffloadCache& cache, std::uint64_t number) {
  cache.pin(find_in(cache, key_of(number)));
}

// Of the numbers below `end` those that a lookup finds.
inline std::vector<std::uint64_t> ready_numbers(const OffloadCache& cache, std::uint64_t end) {
  std::vector<std::uint64_t> found;
  for (std::uint64_t number = 0; number < end; ++number) {
    if (is_ready(cache, key_of(number))) {
      found.push_back(number);
    }
  }
  return found;
}

inline void expect_conserved(const OffloadCache& cache) {
  const Status status = cache.check_conservation();
  EXPECT_TRUE(status.ok()) << status.to_string();
}

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_CACHE_HELPERS_H_
