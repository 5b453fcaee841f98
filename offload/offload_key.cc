#include "offload/offload_key.h"

#include <xxhash.h>

#include "base/check.h"

namespace hostkv {

std::array<std::uint64_t, 4> detail::odd_sized_words(const std::byte* engine_hash, std::size_t size_bytes) {
  HOSTKV_DCHECK(size_bytes > 0 && size_bytes <= kMaxHashSizeBytes, "R23: hash size");
  std::array<std::uint64_t, 4> words{};
  if (size_bytes <= sizeof(words)) {
    std::memcpy(words.data(), engine_hash, size_bytes);
  } else {
    const XXH128_hash_t digest = XXH3_128bits(engine_hash, size_bytes);
    std::memcpy(words.data(), engine_hash, 16);
    words[2] = digest.low64;
    words[3] = digest.high64;
  }
  return words;
}

std::uint64_t make_namespace_fingerprint(std::uint64_t geometry_fingerprint,
                                         std::span<const std::byte> cache_namespace) {
  return XXH3_64bits_withSeed(cache_namespace.data(), cache_namespace.size(), geometry_fingerprint);
}

}  // namespace hostkv
