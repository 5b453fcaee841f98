// Kind hit: the library's own search over a cache that holds what the case says, in every place that it can be.

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <span>
#include <utility>

#include "bench/conformance/vector_case.h"
#include "connector/prefix_search.h"
#include "offload/lru_policy.h"
#include "offload/offload_cache.h"

namespace hostkv::bench {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kNamespace = 1;
constexpr std::uint32_t kNumDeals = 6;

// What stands in for a prefix hash: distinct bytes for each boundary.
using HashValue = std::uint64_t;

struct Key {
  GroupIndex group;
  std::int64_t block_index = 0;
  std::int64_t boundary_tokens = 0;
};

enum class Side : std::uint8_t { kDevice, kHost, kBoth };

struct Arrangement {
  std::string name;
  std::vector<Side> sides;  // one a key
};

HashChain chain_of(std::int64_t hash_block_tokens, std::int64_t num_tokens) {
  HashChain chain;
  chain.hash_size_bytes = sizeof(HashValue);
  chain.hash_block_tokens = hash_block_tokens;
  for (std::int64_t boundary = hash_block_tokens; boundary <= num_tokens; boundary += hash_block_tokens) {
    const auto value = static_cast<HashValue>(boundary);
    const auto bytes = std::as_bytes(std::span(&value, 1));
    chain.bytes.insert(chain.bytes.end(), bytes.begin(), bytes.end());
  }
  return chain;
}

// An engine that only shows what it has cached.
class ShownCache : public EngineBlocks {
 public:
  BlockId add(const Key& key) {
    const BlockId block{static_cast<std::uint32_t>(blocks_.size() + 1)};
    blocks_.emplace(std::pair(key.group, static_cast<HashValue>(key.boundary_tokens)), block);
    return block;
  }

  void pin(std::span<const BlockId> /*blocks*/) override {}
  void unpin(std::span<const BlockId> /*blocks*/) override {}
  GroupTable block_table(RequestId /*request*/, GroupIndex /*group*/, std::int64_t /*first_block*/) override {
    return {};
  }
  [[nodiscard]] bool shows_cache() const override { return true; }
  void find_cached(GroupIndex group, std::span<const std::byte> hashes, std::size_t hash_size_bytes,
                   std::span<BlockId> blocks) override {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      HashValue value = 0;
      std::memcpy(&value, hashes.data() + i * hash_size_bytes, sizeof(value));
      const auto found = blocks_.find(std::pair(group, value));
      blocks[i] = found == blocks_.end() ? kNullBlock : found->second;
    }
  }

 private:
  std::map<std::pair<GroupIndex, HashValue>, BlockId> blocks_;
};

OffloadKey offload_key(const Key& key) {
  const auto value = static_cast<HashValue>(key.boundary_tokens);
  return make_offload_key(std::as_bytes(std::span(&value, 1)), key.group, kNamespace);
}

// Every key that the prompt can ask for, once.
Result<std::vector<Key>> keys_of(const Geometry& geometry, const VectorCase& question, std::int64_t hashed_tokens) {
  std::vector<Key> keys;
  std::set<std::pair<GroupIndex, std::int64_t>> known;
  const auto add = [&](const Key& key) {
    if (key.boundary_tokens <= hashed_tokens && known.emplace(key.group, key.boundary_tokens).second) {
      keys.push_back(key);
    }
  };
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    const std::int64_t span = geometry.span_tokens(GroupIndex{g});
    for (const std::int64_t block : question.cached[g].whole_blocks) {
      add({GroupIndex{g}, block, (block + 1) * span});
    }
    for (const CachedKeys::Inner& inner : question.cached[g].inner) {
      const bool ends_inside =
          inner.boundary_tokens > inner.block_index * span && inner.boundary_tokens < (inner.block_index + 1) * span;
      if (!ends_inside || inner.boundary_tokens % geometry.hash_block_tokens() != 0) {
        return error(
            StatusCode::kInvalidArgument,
            fmt::format("input.cached[{}].partial: boundary_tokens {} of block_index {}; allowed: multiples of "
                        "hash_block_tokens {} inside the block of {} tokens",
                        g, inner.boundary_tokens, inner.block_index, geometry.hash_block_tokens(), span));
      }
      add({GroupIndex{g}, inner.block_index, inner.boundary_tokens});
    }
  }
  return keys;
}

std::vector<Arrangement> arrangements_of(std::size_t num_keys) {
  std::vector<Arrangement> all = {{"device alone", std::vector<Side>(num_keys, Side::kDevice)},
                                  {"host alone", std::vector<Side>(num_keys, Side::kHost)},
                                  {"device and host each hold all", std::vector<Side>(num_keys, Side::kBoth)}};
  for (std::uint32_t seed = 1; seed <= kNumDeals; ++seed) {
    std::mt19937 random(seed);
    Arrangement deal{fmt::format("dealt between device and host, seed {}", seed), {}};
    for (std::size_t i = 0; i < num_keys; ++i) {
      const auto draw = random() % 5;
      deal.sides.push_back(draw < 2 ? Side::kDevice : draw < 4 ? Side::kHost : Side::kBoth);
    }
    all.push_back(std::move(deal));
  }
  return all;
}

// The keys of a case in the places that one arrangement gives them, and the search over both.
class PlacedKeys {
 public:
  PlacedKeys(const Geometry& geometry, std::span<const Key> keys, std::span<const Side> sides)
      : geometry_(geometry),
        cache_(OffloadCache({1}, keys.size() + 1, std::make_unique<LruPolicy>(1))),
        search_(geometry, cache_, &device_, kNamespace) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (sides[i] != Side::kHost) {
        block_index_of_device_.emplace(std::pair(keys[i].group, device_.add(keys[i])), keys[i].block_index);
      }
      if (sides[i] != Side::kDevice) {
        block_index_of_entry_.emplace(std::pair(keys[i].group, store(keys[i])), keys[i].block_index);
      }
    }
  }

  Json answer(const HashChain& hashes, const VectorCase& question) {
    search_.set_boundary_step(question.alignment_tokens);
    const std::int64_t hit = search_.longest_boundary(hashes, question.prompt_tokens, 0).boundary_tokens;
    std::vector<std::vector<std::int64_t>> blocks(geometry_.num_groups());
    if (hit > 0) {
      std::vector<PromisedBlock> promised;
      if (!search_.append_needed(hashes, 0, hit, promised)) {
        return {{"error", true}, {"why", "the blocks of the answer cannot be found"}};
      }
      for (const PromisedBlock& block : promised) {
        blocks[block.group.value()].push_back(is_where_it_says(block) ? std::int64_t{block.block_index} : -1);
      }
    }
    return {{"hit_tokens", hit}, {"blocks", blocks}};
  }

 private:
  EntryId store(const Key& key) {
    std::vector<EntryId> reserved;
    const StoreWant want{.key = offload_key(key)};
    if (!cache_.reserve(std::span(&want, 1), 0, reserved)) {
      return kNoEntry;
    }
    cache_.publish(reserved.front());
    return reserved.front();
  }

  // A promise must name the block of that index, whatever place it chose.
  [[nodiscard]] bool is_where_it_says(const PromisedBlock& block) const {
    if (block.device_block != kNullBlock) {
      const auto found = block_index_of_device_.find(std::pair(block.group, block.device_block));
      return found != block_index_of_device_.end() && found->second == std::int64_t{block.block_index};
    }
    const auto found = block_index_of_entry_.find(std::pair(block.group, block.entry));
    return found != block_index_of_entry_.end() && found->second == std::int64_t{block.block_index};
  }

  const Geometry& geometry_;
  OffloadCache cache_;
  ShownCache device_;
  PrefixSearch search_;
  std::map<std::pair<GroupIndex, BlockId>, std::int64_t> block_index_of_device_;
  std::map<std::pair<GroupIndex, EntryId>, std::int64_t> block_index_of_entry_;
};

}  // namespace

Result<VectorAnswer> answer_hit(const Geometry& geometry, const VectorCase& question) {
  if (question.alignment_tokens % geometry.hit_alignment_tokens() != 0) {
    return error(StatusCode::kInvalidArgument,
                 fmt::format("input.alignment_tokens {}; allowed: multiples of the geometry's hit alignment {}",
                             question.alignment_tokens, geometry.hit_alignment_tokens()));
  }
  const HashChain hashes = chain_of(geometry.hash_block_tokens(), question.prompt_tokens);
  const Result<std::vector<Key>> keys = keys_of(geometry, question, hashes.hashed_tokens());
  if (!keys) {
    return error(keys.error());
  }
  VectorAnswer last;
  for (const Arrangement& arrangement : arrangements_of(keys->size())) {
    Json got = PlacedKeys(geometry, *keys, arrangement.sides).answer(hashes, question);
    last.text = got.dump();
    got["arrangement"] = arrangement.name;
    last.shown = got.dump();
    if (last.text != question.expect) {
      return last;
    }
  }
  last.shown = last.text;
  return last;
}

}  // namespace hostkv::bench
