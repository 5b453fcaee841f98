#include "offload/offload_key.h"

#include <xxhash.h>

#include <cstring>

#include "base/check.h"

namespace hostkv {
namespace {

// Folded 64 x 64 -> 128 bit product.
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
}

constexpr std::uint64_t kOdd0 = 0x9E3779B97F4A7C15ULL;
constexpr std::uint64_t kOdd1 = 0xD1B54A32D192ED03ULL;
constexpr std::uint64_t kOdd2 = 0x8CB92BA72F3D8DD7ULL;

}  // namespace

OffloadKey make_offload_key(std::span<const std::byte> engine_hash, GroupIndex group,
                            std::uint64_t namespace_fingerprint) {
  HOSTKV_DCHECK(!engine_hash.empty() && engine_hash.size() <= kMaxHashSizeBytes, "R23: hash size");
  OffloadKey key;
  if (engine_hash.size() <= sizeof(key.hash)) {
    std::memcpy(key.hash.data(), engine_hash.data(), engine_hash.size());
  } else {
    const XXH128_hash_t digest = XXH3_128bits(engine_hash.data(), engine_hash.size());
    std::memcpy(key.hash.data(), engine_hash.data(), 16);
    key.hash[2] = digest.low64;
    key.hash[3] = digest.high64;
  }
  key.namespace_fingerprint = namespace_fingerprint;
  key.group = group.value();
  key.hash_size_bytes = static_cast<std::uint32_t>(engine_hash.size());
  return key;
}

std::uint64_t hash_of(const OffloadKey& key) {
  const std::uint64_t a = mix(key.hash[0] ^ kOdd0, key.hash[1] ^ kOdd1);
  const std::uint64_t b = mix(key.hash[2] ^ kOdd1, key.hash[3] ^ kOdd2);
  const std::uint64_t c = mix(key.namespace_fingerprint ^ kOdd2, (std::uint64_t{key.group} + 1) * kOdd0);
  return mix(a ^ kOdd2, b ^ c ^ kOdd0) ^ a;
}

std::uint64_t make_namespace_fingerprint(std::uint64_t geometry_fingerprint,
                                         std::span<const std::byte> cache_namespace) {
  return XXH3_64bits_withSeed(cache_namespace.data(), cache_namespace.size(), geometry_fingerprint);
}

}  // namespace hostkv
