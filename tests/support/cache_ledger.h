#ifndef HOSTKV_TESTS_SUPPORT_CACHE_LEDGER_H_
#define HOSTKV_TESTS_SUPPORT_CACHE_LEDGER_H_

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hostkv/connector.h"

namespace hostkv::testing {

// Who reads a connector's events and nothing else: which keys are on the way to the host, which are there.
class CacheLedger {
 public:
  using Key = std::pair<std::uint32_t, std::string>;  // group, hash

  static Key key_of(GroupIndex group, std::span<const std::byte> hash) {
    return {group.value(), std::string(reinterpret_cast<const char*>(hash.data()), hash.size())};
  }

  // A gtest failure where an event does not follow from those before it.
  void replay(const std::vector<CacheEvent>& events) {
    for (const CacheEvent& event : events) {
      ++num_events[static_cast<std::size_t>(event.kind)];
      const Key key = key_of(event.group, event.hash_bytes());
      switch (event.kind) {
        case CacheEventKind::kPlanned:
          EXPECT_FALSE(stored.contains(key)) << "planned, although it is there";
          EXPECT_TRUE(planned.insert(key).second) << "planned twice";
          EXPECT_EQ(event.has_request, event.boundary_tokens > 0);
          break;
        case CacheEventKind::kDropped:
          EXPECT_EQ(planned.erase(key), 1U) << "dropped, but never planned";
          break;
        case CacheEventKind::kStored:
          EXPECT_EQ(planned.erase(key), 1U) << "stored, but never planned";
          EXPECT_TRUE(stored.insert(key).second);
          break;
        case CacheEventKind::kRemoved:
          EXPECT_EQ(stored.erase(key), 1U) << "removed, but it was not there";
          break;
        case CacheEventKind::kCleared:
          EXPECT_TRUE(planned.empty()) << "each planned store has an end of its own";
          stored.clear();
          break;
      }
    }
  }

  std::set<Key> planned;
  std::set<Key> stored;
  std::array<std::int64_t, 5> num_events{};
};

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_CACHE_LEDGER_H_
