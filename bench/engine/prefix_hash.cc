#include "bench/engine/prefix_hash.h"

#include <xxhash.h>

#include <cstring>

namespace hostkv::bench {

void extend_prefix_hashes(std::span<const std::int32_t> tokens, std::int64_t hash_block_tokens,
                          std::vector<PrefixHash>& hashes) {
  const auto block_tokens = static_cast<std::size_t>(hash_block_tokens);
  const std::size_t token_bytes = block_tokens * sizeof(std::int32_t);
  std::vector<std::byte> message(sizeof(PrefixHash) + token_bytes);
  const std::size_t num_full = tokens.size() / block_tokens;
  hashes.reserve(num_full);
  while (hashes.size() < num_full) {
    const PrefixHash parent = hashes.empty() ? PrefixHash{} : hashes.back();
    std::memcpy(message.data(), &parent, sizeof(parent));
    std::memcpy(message.data() + sizeof(parent), tokens.data() + hashes.size() * block_tokens, token_bytes);
    const XXH128_hash_t hash = XXH3_128bits(message.data(), message.size());
    hashes.push_back(PrefixHash{hash.low64, hash.high64});
  }
}

}  // namespace hostkv::bench
