#ifndef HOSTKV_BENCH_ENGINE_PREFIX_HASH_H_
#define HOSTKV_BENCH_ENGINE_PREFIX_HASH_H_

// Chained prefix hashes of the reference engine: hash i names the tokens [0, (i + 1) * hash_block_tokens).
//
// Thread-safety: values. Ownership: none. Cost: one XXH3-128 over a hash block's tokens and its parent. Failure: none.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "hostkv/types.h"

namespace hostkv::bench {

struct PrefixHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const PrefixHash&, const PrefixHash&) = default;
};
static_assert(sizeof(PrefixHash) == 16, "a prefix hash travels to the connector as 16 bytes");

// A block of one group in the device's prefix cache.
struct CacheKey {
  PrefixHash hash;
  GroupIndex group;
  friend bool operator==(const CacheKey&, const CacheKey&) = default;
};

// Appends the hashes of all hash blocks that `tokens` fills and `hashes` does not hold yet.
void extend_prefix_hashes(std::span<const std::int32_t> tokens, std::int64_t hash_block_tokens,
                          std::vector<PrefixHash>& hashes);

}  // namespace hostkv::bench

template <>
struct std::hash<hostkv::bench::CacheKey> {
  std::size_t operator()(const hostkv::bench::CacheKey& key) const noexcept {
    return key.hash.low ^ (key.group.value() * 0x9E3779B97F4A7C15ULL);
  }
};

#endif  // HOSTKV_BENCH_ENGINE_PREFIX_HASH_H_
