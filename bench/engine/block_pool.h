#ifndef HOSTKV_BENCH_ENGINE_BLOCK_POOL_H_
#define HOSTKV_BENCH_ENGINE_BLOCK_POOL_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "bench/engine/prefix_hash.h"
#include "hostkv/status.h"
#include "hostkv/types.h"

namespace hostkv::bench {

// The device block pool: reference counts, the free queue and the prefix cache, by vLLM's rules.
//
// Purpose: blocks 1 .. G are handed out from the head of the free queue; block 0 is the null block and never is. A
// freed block that carries a key goes to the tail of the queue and stays findable until it is handed out again; one
// without a key goes to the head. A block may carry several keys: its first one, and those of boundaries inside it.
// Thread-safety: one thread. Ownership: owns only the book-keeping, no bytes. Cost: O(1) a block. Failure: broken
// preconditions abort (HOSTKV_CHECK); null blocks in lists are skipped.
class BlockPool {
 public:
  explicit BlockPool(std::int64_t num_usable_blocks);

  [[nodiscard]] std::int64_t num_usable() const { return static_cast<std::int64_t>(blocks_.size()) - 1; }
  [[nodiscard]] std::int64_t num_free() const { return num_free_; }  // of no owner, cached or not
  [[nodiscard]] std::int64_t num_pinned() const { return num_pinned_; }
  [[nodiscard]] std::int64_t num_pinned_only() const { return num_pinned_only_; }  // kept by pins alone
  [[nodiscard]] bool is_free(BlockId block) const { return at(block).ref_count == 0; }

  // Appends `count` blocks with one reference each; their keys are forgotten. REQUIRES: count <= num_free().
  void allocate(std::int64_t count, std::vector<BlockId>& out);
  // One more reference each; a free block leaves the queue.
  void touch(std::span<const BlockId> blocks);
  // One reference less each; blocks without one go back to the queue, the first of the list to be evicted first.
  void free(std::span<const BlockId> blocks);
  // References that are counted apart: the connector's.
  void pin(std::span<const BlockId> blocks);
  void unpin(std::span<const BlockId> blocks);
  // As unpin(), but blocks without a reference go to the head of the queue in the order of the list.
  void unpin_to_front(std::span<const BlockId> blocks);
  [[nodiscard]] std::uint64_t num_handed_out() const { return num_handed_out_; }
  // The first `max_blocks` blocks of the queue, the next victim first, with each key; null: it has none.
  void visit_victims(std::size_t max_blocks, const std::function<void(BlockId, const CacheKey*)>& visit) const;

  [[nodiscard]] std::optional<BlockId> find(const CacheKey& key) const;
  // Several blocks may carry the same key. The key of a whole block takes the place of all keys inside it.
  void insert(const CacheKey& key, BlockId block, bool is_whole = true);
  [[nodiscard]] bool carries(BlockId block, const CacheKey& key) const;
  // Its key is that of a whole block.
  [[nodiscard]] bool is_whole(BlockId block) const { return at(block).is_whole; }
  // `to` carries the keys of `from` afterwards, and `from` none.
  void move_keys(BlockId from, BlockId to);
  // Forgets all keys; owners keep their blocks.
  void evict_cached();
  [[nodiscard]] std::int64_t num_cached() const { return num_cached_; }

  // `owners[b]` = how many tables hold block b, [num_usable + 1]. kInternal with the difference.
  [[nodiscard]] Status check_conservation(std::span<const std::int32_t> owners) const;

 private:
  struct Block {
    std::int32_t ref_count = 0;  // pins included
    std::int32_t pin_count = 0;
    std::uint32_t prev_free = 0;  // 0 is the queue's sentinel: the null block is never in it
    std::uint32_t next_free = 0;
    bool is_whole = false;  // its key is that of a whole block
    std::vector<CacheKey> keys;
  };

  [[nodiscard]] const Block& at(BlockId block) const { return blocks_[block.value()]; }
  Block& at(BlockId block) { return blocks_[block.value()]; }
  void link_behind(std::uint32_t position, std::uint32_t block);
  void unlink(std::uint32_t block);
  void forget_keys(std::uint32_t block);
  void add_reference(BlockId block, bool is_pin);
  void drop_reference(BlockId block, bool is_pin);
  void release(std::span<const BlockId> blocks, bool is_pin, bool to_front);
  [[nodiscard]] Status check_queue() const;

  std::vector<Block> blocks_;
  std::unordered_map<CacheKey, std::vector<std::uint32_t>> cache_;  // key -> blocks that carry it, the oldest first
  std::uint64_t num_handed_out_ = 0;
  std::int64_t num_free_ = 0;
  std::int64_t num_pinned_ = 0;
  std::int64_t num_pinned_only_ = 0;
  std::int64_t num_cached_ = 0;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_BLOCK_POOL_H_
