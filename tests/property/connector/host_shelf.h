#ifndef HOSTKV_TESTS_PROPERTY_CONNECTOR_HOST_SHELF_H_
#define HOSTKV_TESTS_PROPERTY_CONNECTOR_HOST_SHELF_H_

#include <set>
#include <utility>
#include <vector>

#include "connector/prefix_search.h"
#include "tests/support/request_builders.h"

namespace hostkv::testing {

// A host cache that a test fills key by key, and lookups of one text in it.
class HostShelf {
 public:
  HostShelf(const Geometry& geometry, std::int64_t hashed_tokens)
      : geometry_(geometry),
        hashes_(hashes_of(geometry, 1, hashed_tokens)),
        cache_(lru_cache({64}, 4096)),
        search_(geometry, cache_, nullptr, kTestNamespace) {}

  // Stores the group's keys that end at these boundaries.
  void put(std::uint32_t group, const std::set<std::int64_t>& boundaries) {
    for (const std::int64_t boundary : boundaries) {
      EXPECT_TRUE(store_all(cache_, {StoreWant{.key = key_at(hashes_, GroupIndex{group}, boundary)}}));
    }
  }
  void put_blocks(std::uint32_t group, const std::vector<std::int64_t>& blocks) {
    put(group, block_keys(geometry_.span_tokens(GroupIndex{group}), blocks));
  }
  void remove(std::uint32_t group, std::int64_t boundary) {
    cache_.drop(find_in(cache_, key_at(hashes_, GroupIndex{group}, boundary)));
  }
  // On the way to the host: known, not ready.
  void put_unfinished(std::uint32_t group, std::int64_t boundary) {
    EXPECT_EQ(reserve_all(cache_, {StoreWant{.key = key_at(hashes_, GroupIndex{group}, boundary)}}).size(), 1U);
  }

  std::int64_t hit(std::int64_t num_tokens, std::int64_t num_local_tokens = 0) {
    return search_.longest_boundary(hashes_, num_tokens, num_local_tokens).boundary_tokens;
  }

  using Load = std::vector<std::pair<std::uint32_t, std::int64_t>>;  // group, block index
  // What a load to the boundary copies; every block of it is stored.
  Load load(std::int64_t num_local_tokens, std::int64_t boundary) {
    std::vector<PromisedBlock> blocks;
    EXPECT_TRUE(search_.append_needed(hashes_, num_local_tokens, boundary, blocks));
    Load load;
    for (const PromisedBlock& block : blocks) {
      EXPECT_NE(block.entry, kNoEntry) << "group " << block.group.value() << " block " << block.block_index;
      EXPECT_TRUE(block.entry == kNoEntry || cache_.ready(block.entry));
      load.emplace_back(block.group.value(), block.block_index);
    }
    return load;
  }

 private:
  const Geometry& geometry_;
  HashChain hashes_;
  OffloadCache cache_;
  PrefixSearch search_;
};

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_PROPERTY_CONNECTOR_HOST_SHELF_H_
