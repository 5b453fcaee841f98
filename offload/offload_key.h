#ifndef HOSTKV_OFFLOAD_OFFLOAD_KEY_H_
#define HOSTKV_OFFLOAD_OFFLOAD_KEY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "hostkv/types.h"

namespace hostkv {

inline constexpr std::size_t kMaxHashSizeBytes = 64;

// What a stored block is found by: the engine's prefix hash at the block's end, the group, and the namespace (R23).
//
// Thread-safety: values. Cost: 48 bytes; two keys are equal only if hash and tag are.
// The engine's hash is opaque. Up to 32 bytes are kept as they are; of a longer one the first 16 bytes and an XXH3-128
// of all.
struct OffloadKey {
  std::array<std::uint64_t, 4> hash{};
  std::uint64_t tag = 0;    // namespace, group and size of the engine's hash: see make_key_tag
  std::uint64_t mixed = 0;  // hash_of(): follows from the others

  // All words at once: most comparisons are of equal keys.
  friend bool operator==(const OffloadKey& a, const OffloadKey& b) {
    return ((a.hash[0] ^ b.hash[0]) | (a.hash[1] ^ b.hash[1]) | (a.hash[2] ^ b.hash[2]) | (a.hash[3] ^ b.hash[3]) |
            (a.tag ^ b.tag)) == 0;
  }
};

// Well mixed in all bits, also where the engine's hashes are plain counters.
inline std::uint64_t hash_of(const OffloadKey& key) {
  return key.mixed;
}

namespace detail {

inline constexpr std::uint64_t kTagFactor = 0x9E3779B97F4A7C15ULL;

// Of an odd number, modulo 2^64: each step of Newton's doubles the bits that are right.
constexpr std::uint64_t inverse_of(std::uint64_t odd) {
  std::uint64_t inverse = odd;
  for (int bits = 3; bits < 64; bits *= 2) {
    inverse *= 2 - odd * inverse;
  }
  return inverse;
}
static_assert(kTagFactor * inverse_of(kTagFactor) == 1);

}  // namespace detail

// Different for every group and size of one namespace, and as different for two namespaces as their fingerprints are.
inline std::uint64_t make_key_tag(GroupIndex group, std::size_t hash_size_bytes, std::uint64_t namespace_fingerprint) {
  return namespace_fingerprint ^ (((std::uint64_t{group.value()} << 8U) | hash_size_bytes) * detail::kTagFactor);
}

// What make_key_tag() was made from.
struct KeyTagParts {
  GroupIndex group;
  std::size_t hash_size_bytes = 0;
};
inline KeyTagParts split_key_tag(std::uint64_t tag, std::uint64_t namespace_fingerprint) {
  const std::uint64_t parts = (tag ^ namespace_fingerprint) * detail::inverse_of(detail::kTagFactor);
  return {GroupIndex{static_cast<std::uint32_t>(parts >> 8U)}, static_cast<std::size_t>(parts & 0xFFU)};
}

namespace detail {

// Folded 64 x 64 -> 128 bit product.
inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
}

inline void mix_key(OffloadKey& key) {
  constexpr std::array<std::uint64_t, 3> kOdd = {0x9E3779B97F4A7C15ULL, 0xD1B54A32D192ED03ULL, 0x8CB92BA72F3D8DD7ULL};
  key.mixed =
      mix(key.hash[0] ^ key.tag ^ kOdd[0], key.hash[1] ^ kOdd[1]) ^ mix(key.hash[2] ^ kOdd[2], key.hash[3] ^ kOdd[0]);
}

// The words of a hash that is not 32 bytes long.
std::array<std::uint64_t, 4> odd_sized_words(const std::byte* engine_hash, std::size_t size_bytes);

inline std::array<std::uint64_t, 4> words_of(const std::byte* engine_hash, std::size_t size_bytes) {
  std::array<std::uint64_t, 4> words;
  if (size_bytes != sizeof(words)) [[unlikely]] {
    return odd_sized_words(engine_hash, size_bytes);
  }
  std::memcpy(words.data(), engine_hash, sizeof(words));
  return words;
}

inline OffloadKey make_key(const std::byte* engine_hash, std::size_t size_bytes, std::uint64_t tag) {
  OffloadKey key;
  key.hash = words_of(engine_hash, size_bytes);
  key.tag = tag;
  mix_key(key);
  return key;
}

}  // namespace detail

// REQUIRES: 0 < engine_hash.size() <= kMaxHashSizeBytes.
inline OffloadKey make_offload_key(std::span<const std::byte> engine_hash, GroupIndex group,
                                   std::uint64_t namespace_fingerprint) {
  return detail::make_key(engine_hash.data(), engine_hash.size(),
                          make_key_tag(group, engine_hash.size(), namespace_fingerprint));
}

// Keys of one group whose engine hashes stand at equal distances: a chain's blocks in a row. Borrows the hashes.
struct KeyRun {
  const std::byte* hashes = nullptr;  // of the first key
  std::size_t stride_bytes = 0;       // from a key's hash to the next one's
  std::size_t hash_size_bytes = 0;    // 1 .. kMaxHashSizeBytes
  std::size_t num_keys = 0;
  std::uint64_t tag = 0;  // make_key_tag

  [[nodiscard]] OffloadKey operator[](std::size_t i) const {
    return detail::make_key(hashes + i * stride_bytes, hash_size_bytes, tag);
  }
  // The hash of a key alone.
  [[nodiscard]] std::array<std::uint64_t, 4> words(std::size_t i) const {
    return detail::words_of(hashes + i * stride_bytes, hash_size_bytes);
  }
  [[nodiscard]] KeyRun from(std::size_t first) const {
    return {hashes + first * stride_bytes, stride_bytes, hash_size_bytes, num_keys - first, tag};
  }
};

// Identity of a cache: geometry fingerprint and the operator's namespace.
std::uint64_t make_namespace_fingerprint(std::uint64_t geometry_fingerprint,
                                         std::span<const std::byte> cache_namespace);

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_OFFLOAD_KEY_H_
