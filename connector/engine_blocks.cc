// What an engine that does not show its cache answers.

#include <algorithm>
#include <limits>

#include "hostkv/connector.h"

namespace hostkv {

void EngineBlocks::find_cached(GroupIndex /*group*/, std::span<const std::byte> /*hashes*/,
                               std::size_t /*hash_size_bytes*/, std::span<BlockId> blocks) {
  std::ranges::fill(blocks, kNullBlock);
}

bool EngineBlocks::carries_key(BlockId /*block*/, GroupIndex /*group*/, std::span<const std::byte> /*hash*/) {
  return true;
}

std::int64_t EngineBlocks::num_free_blocks() const {
  return std::numeric_limits<std::int64_t>::max();
}

std::uint64_t EngineBlocks::num_handed_out() const {
  return 0;
}

void EngineBlocks::next_victims(std::size_t /*max_blocks*/, std::vector<CachedBlock>& /*victims*/) {}

void EngineBlocks::unpin_to_front(std::span<const BlockId> blocks) {
  unpin(blocks);
}

}  // namespace hostkv
