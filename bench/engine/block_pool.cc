#include "bench/engine/block_pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace hostkv::bench {

BlockPool::BlockPool(std::int64_t num_usable_blocks) : blocks_(static_cast<std::size_t>(num_usable_blocks) + 1) {
  for (std::uint32_t b = 1; b < blocks_.size(); ++b) link_behind(blocks_[0].prev_free, b);
}

void BlockPool::link_behind(std::uint32_t position, std::uint32_t block) {
  const std::uint32_t next = blocks_[position].next_free;
  blocks_[block].prev_free = position;
  blocks_[block].next_free = next;
  blocks_[position].next_free = block;
  blocks_[next].prev_free = block;
  ++num_free_;
}

void BlockPool::unlink(std::uint32_t block) {
  Block& b = blocks_[block];
  blocks_[b.prev_free].next_free = b.next_free;
  blocks_[b.next_free].prev_free = b.prev_free;
  --num_free_;
}

void BlockPool::allocate(std::int64_t count, std::vector<BlockId>& out) {
  HOSTKV_CHECK(count <= num_free_, "R15: more blocks asked for than are free");
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t head = blocks_[0].next_free;
    unlink(head);
    forget_keys(head);
    ++num_handed_out_;
    blocks_[head].ref_count = 1;
    out.push_back(BlockId{head});
  }
}

void BlockPool::touch(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    if (block != kNullBlock) add_reference(block, false);
  }
}

void BlockPool::free(std::span<const BlockId> blocks) {
  release(blocks, false, false);
}

void BlockPool::pin(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    HOSTKV_CHECK(block != kNullBlock && block.value() < blocks_.size(), "R13: a pin names no block of the pool");
    add_reference(block, true);
  }
}

void BlockPool::unpin(std::span<const BlockId> blocks) {
  release(blocks, true, false);
}

void BlockPool::unpin_to_front(std::span<const BlockId> blocks) {
  release(blocks, true, true);
}

void BlockPool::visit_victims(std::size_t max_blocks,
                              const std::function<void(BlockId, const CacheKey*)>& visit) const {
  std::uint32_t b = blocks_[0].next_free;
  for (std::size_t i = 0; i < max_blocks && b != 0; ++i, b = blocks_[b].next_free) {
    for (const CacheKey& key : blocks_[b].keys) visit(BlockId{b}, &key);
    if (blocks_[b].keys.empty()) visit(BlockId{b}, nullptr);
  }
}

void BlockPool::add_reference(BlockId block, bool is_pin) {
  Block& b = at(block);
  if (b.ref_count == 0) unlink(block.value());
  const bool was_pinned_only = b.pin_count > 0 && b.pin_count == b.ref_count;
  ++b.ref_count;
  if (is_pin && b.pin_count++ == 0) ++num_pinned_;
  const bool is_pinned_only = b.pin_count > 0 && b.pin_count == b.ref_count;
  num_pinned_only_ += static_cast<std::int64_t>(is_pinned_only) - static_cast<std::int64_t>(was_pinned_only);
}

void BlockPool::drop_reference(BlockId block, bool is_pin) {
  Block& b = at(block);
  HOSTKV_CHECK(is_pin ? b.pin_count > 0 : b.ref_count > b.pin_count, "R15: a block is released more often than taken");
  const bool was_pinned_only = b.pin_count > 0 && b.pin_count == b.ref_count;
  --b.ref_count;
  if (is_pin && --b.pin_count == 0) --num_pinned_;
  const bool is_pinned_only = b.pin_count > 0 && b.pin_count == b.ref_count;
  num_pinned_only_ += static_cast<std::int64_t>(is_pinned_only) - static_cast<std::int64_t>(was_pinned_only);
}

void BlockPool::release(std::span<const BlockId> blocks, bool is_pin, bool to_front) {
  std::uint32_t last_prepended = 0;  // keeps the order of the list at the head
  for (const BlockId block : blocks) {
    if (block == kNullBlock) continue;
    drop_reference(block, is_pin);
    if (at(block).ref_count > 0) continue;
    if (!at(block).keys.empty() && !to_front) {
      link_behind(blocks_[0].prev_free, block.value());
    } else {
      link_behind(last_prepended, block.value());
      last_prepended = block.value();
    }
  }
}

std::optional<BlockId> BlockPool::find(const CacheKey& key) const {
  const auto found = cache_.find(key);
  if (found == cache_.end()) return std::nullopt;
  return BlockId{found->second.front()};
}

bool BlockPool::carries(BlockId block, const CacheKey& key) const {
  return block.value() < blocks_.size() && std::ranges::find(at(block).keys, key) != at(block).keys.end();
}

void BlockPool::insert(const CacheKey& key, BlockId block, bool is_whole) {
  HOSTKV_CHECK(block != kNullBlock, "R8: the null block carries no key");
  Block& b = at(block);
  if (b.is_whole || carries(block, key)) return;
  if (is_whole) forget_keys(block.value());
  b.is_whole = is_whole;
  num_cached_ += b.keys.empty() ? 1 : 0;
  b.keys.push_back(key);
  cache_[key].push_back(block.value());
}

void BlockPool::move_keys(BlockId from, BlockId to) {
  const std::vector<CacheKey> keys = at(from).keys;
  const bool is_whole = at(from).is_whole;
  forget_keys(from.value());
  for (const CacheKey& key : keys) insert(key, to, is_whole);
}

void BlockPool::forget_keys(std::uint32_t block) {
  Block& b = blocks_[block];
  num_cached_ -= b.keys.empty() ? 0 : 1;
  for (const CacheKey& key : std::exchange(b.keys, {})) {
    const auto entry = cache_.find(key);
    std::erase(entry->second, block);
    if (entry->second.empty()) cache_.erase(entry);
  }
  b.is_whole = false;
}

void BlockPool::evict_cached() {
  for (std::uint32_t b = 1; b < blocks_.size(); ++b) forget_keys(b);
}

Status BlockPool::check_queue() const {
  std::int64_t in_queue = 0;
  for (std::uint32_t b = blocks_[0].next_free; b != 0; b = blocks_[b].next_free) {
    if (blocks_[b].ref_count != 0 || ++in_queue > num_usable()) {
      return Status(StatusCode::kInternal, "R15: block " + std::to_string(b) + " is in the free queue with " +
                                               std::to_string(blocks_[b].ref_count) + " references");
    }
  }
  if (in_queue == num_free_) return {};
  return Status(StatusCode::kInternal, "R15: the free queue holds " + std::to_string(in_queue) +
                                           " blocks, counted are " + std::to_string(num_free_));
}

Status BlockPool::check_conservation(std::span<const std::int32_t> owners) const {
  std::int64_t without_reference = 0;
  for (std::uint32_t b = 1; b < blocks_.size(); ++b) {
    const Block& block = blocks_[b];
    if (block.ref_count == 0) ++without_reference;
    if (block.ref_count == owners[b] + block.pin_count) continue;
    return Status(StatusCode::kInternal, "R15: block " + std::to_string(b) + " has " + std::to_string(block.ref_count) +
                                             " references, but " + std::to_string(owners[b]) + " owners and " +
                                             std::to_string(block.pin_count) + " pins");
  }
  if (blocks_[0].ref_count != 0 || owners[0] != 0) {
    return Status(StatusCode::kInternal, "R15: the null block has an owner");
  }
  if (without_reference != num_free_) {
    return Status(StatusCode::kInternal, "R15: " + std::to_string(without_reference) + " blocks have no owner, " +
                                             std::to_string(num_free_) + " are counted as free");
  }
  return check_queue();
}

}  // namespace hostkv::bench
