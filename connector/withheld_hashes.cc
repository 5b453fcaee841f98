#include "connector/withheld_hashes.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace hostkv {

void WithheldHashes::keep_cached(EngineBlocks& engine) {
  std::map<std::size_t, std::string> packed;  // by the size of a hash
  for (const std::string& hash : hashes_) {
    packed[hash.size()] += hash;
  }
  for (const auto& [size_bytes, bytes] : packed) {
    forget_uncached(engine, std::as_bytes(std::span(bytes)), size_bytes);
  }
}

void WithheldHashes::forget_uncached(EngineBlocks& engine, std::span<const std::byte> hashes,
                                     std::size_t hash_size_bytes) {
  std::vector<bool> is_cached(hashes.size() / hash_size_bytes, false);
  std::vector<BlockId> blocks;
  for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
    if (!geometry_.offloadable(GroupIndex{g})) {
      continue;
    }
    blocks.assign(is_cached.size(), kNullBlock);
    engine.find_cached(GroupIndex{g}, hashes, hash_size_bytes, blocks);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      is_cached[i] = is_cached[i] || blocks[i] != kNullBlock;
    }
  }
  for (std::size_t i = 0; i < is_cached.size(); ++i) {
    if (!is_cached[i]) {
      remove(hashes.subspan(i * hash_size_bytes, hash_size_bytes));
    }
  }
}

void WithheldHashes::settle() {
  most_hashes_ = std::max(kFewHashes, 2 * hashes_.size());
}

}  // namespace hostkv
