#ifndef HOSTKV_OFFLOAD_OFFLOAD_KEY_H_
#define HOSTKV_OFFLOAD_OFFLOAD_KEY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "hostkv/types.h"

namespace hostkv {

// What a stored block is found by: the engine's prefix hash at the block's end, the group, and the namespace (R23).
//
// Thread-safety: values. Cost: 48 bytes, compared whole: two keys are equal only if all three parts are.
// The engine's hash is opaque. Up to 32 bytes are kept as they are; of a longer one the first 16 bytes and an XXH3-128
// of all.
struct OffloadKey {
  std::array<std::uint64_t, 4> hash{};
  std::uint64_t namespace_fingerprint = 0;
  std::uint32_t group = 0;
  std::uint32_t hash_size_bytes = 0;

  friend bool operator==(const OffloadKey&, const OffloadKey&) = default;
};

inline constexpr std::size_t kMaxHashSizeBytes = 64;

// REQUIRES: 0 < engine_hash.size() <= kMaxHashSizeBytes.
OffloadKey make_offload_key(std::span<const std::byte> engine_hash, GroupIndex group,
                            std::uint64_t namespace_fingerprint);

// Well mixed in all bits, also where the engine's hashes are plain counters.
std::uint64_t hash_of(const OffloadKey& key);

// Identity of a cache: geometry fingerprint and the operator's namespace.
std::uint64_t make_namespace_fingerprint(std::uint64_t geometry_fingerprint,
                                         std::span<const std::byte> cache_namespace);

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_OFFLOAD_KEY_H_
