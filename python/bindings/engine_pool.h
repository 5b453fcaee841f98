#ifndef HOSTKV_PYTHON_BINDINGS_ENGINE_POOL_H_
#define HOSTKV_PYTHON_BINDINGS_ENGINE_POOL_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "hostkv/connector.h"
#include "python/bindings/object_slot.h"

namespace hostkv::python {

// EngineBlocks over the block pool of an engine that is written in Python (vLLM's BlockPool and its KVCacheBlock).
//
// Purpose: reads and counts block objects from C++, where a loop in Python would cost a microsecond a block. All names
// of the engine's attributes come from `shim`, the one Python object that knows them (hostkv/vllm/block_pool.py has its
// contract); rare operations are its methods. Thread-safety: the scheduler's thread, which holds the GIL.
// Ownership: keeps the shim and, through it, the engine's lists alive. Cost: two accesses to the object of a block that
// is owned by somebody; a method of the engine for a batch that leaves or enters its free queue. Failure: an exception
// of the engine's Python code never unwinds the core: what was asked is answered as if the pool had nothing, what was
// not pinned is not unpinned, and end_call() throws the exception as it is.
class EnginePool final : public EngineBlocks {
 public:
  // `state_spans` [num_groups]: tokens of a block of each group of recurrent states in align mode, 0 for others.
  EnginePool(nanobind::object shim, std::vector<std::int64_t> state_spans);

  // First in every call of the core: tables that were handed out are void, the engine's maps are looked up again.
  void begin_call();
  // Last in every call of the core: throws the first exception that the engine's code raised in it.
  void end_call();
  void know_request(RequestId id, nanobind::object engine_id);
  void forget_request(RequestId id);

  // Block numbers of one list of block objects, those below `first_block` left at 0.
  GroupTable convert(nanobind::handle blocks, std::int64_t first_block);
  // Blocks that nobody but the connector holds: they are free once its copies have ended.
  [[nodiscard]] bool holds_alone() const;
  [[nodiscard]] std::int64_t num_pins() const { return num_pins_; }

  void pin(std::span<const BlockId> blocks) override;
  void unpin(std::span<const BlockId> blocks) override;
  [[nodiscard]] GroupTable block_table(RequestId request, GroupIndex group, std::int64_t first_block) override;
  [[nodiscard]] bool shows_cache() const override { return shows_cache_; }
  void find_cached(GroupIndex group, std::span<const std::byte> hashes, std::size_t hash_size_bytes,
                   std::span<BlockId> blocks) override;
  [[nodiscard]] bool carries_key(BlockId block, GroupIndex group, std::span<const std::byte> hash) override;
  // Without the null block, which no request can own.
  [[nodiscard]] std::int64_t num_blocks() const override { return static_cast<std::int64_t>(pins_.size()) - 1; }
  [[nodiscard]] std::int64_t num_free_blocks() const override;
  [[nodiscard]] std::uint64_t num_handed_out() const override;
  void next_victims(std::size_t max_blocks, std::vector<CachedBlock>& victims) override;
  void unpin_to_front(std::span<const BlockId> blocks) override;

 private:
  using Pins = std::uint32_t;

  // The checked number of a block object, and back.
  [[nodiscard]] BlockId id_of(nanobind::handle block) const;
  [[nodiscard]] nanobind::handle block_object(BlockId block) const;
  // Starts the fetch of what a loop over `blocks` will read of a block object soon.
  void prefetch(std::span<const BlockId> blocks, std::size_t at) const;
  template <class Answer, class Call>
  Answer answer(Answer otherwise, Call call) const;
  void pin_all(std::span<const BlockId> blocks);
  void drop_owners(std::span<const BlockId> blocks, const char* method);
  void find_all(GroupIndex group, std::span<const std::byte> hashes, std::size_t hash_size_bytes,
                std::span<BlockId> blocks) const;
  [[nodiscard]] bool has_key(BlockId block, GroupIndex group, std::span<const std::byte> hash) const;
  void append_victims(std::size_t max_blocks, std::vector<CachedBlock>& victims);
  // Counts one owner less where others remain; appends the block to `last` where it was the last.
  void drop_owner(BlockId block, nanobind::list& last);
  [[nodiscard]] nanobind::object key_of(GroupIndex group, std::span<const std::byte> hash) const;
  [[nodiscard]] nanobind::handle cached_block(nanobind::handle key) const;
  [[nodiscard]] bool may_be_copied(nanobind::handle block, GroupIndex group, nanobind::handle key) const;
  void append_victim(nanobind::handle block, std::vector<CachedBlock>& victims);
  void append_key(BlockId block, nanobind::object key, std::vector<CachedBlock>& victims);

  nanobind::object shim_;
  nanobind::object blocks_;     // list of all block objects, by number
  nanobind::object cached_;     // dict: key -> block object, or dict of them
  nanobind::object secondary_;  // dict: block number -> set of further keys
  nanobind::object block_type_;
  ObjectSlot id_, owners_, key_, key_tokens_, next_free_;  // of a block object
  std::vector<std::string> key_suffixes_;                  // [num_groups]
  std::vector<std::int64_t> state_spans_;                  // [num_groups]
  bool shows_cache_ = false;
  bool counts_accesses_ = false;  // the engine observes every access: no owner is counted behind its back

  std::unordered_map<RequestId, nanobind::object> requests_;
  mutable std::exception_ptr failure_;  // of the engine's code, in this call
  std::vector<Pins> pins_;              // [blocks]
  std::int64_t num_pins_ = 0;

  std::vector<std::vector<BlockId>> tables_;  // handed out in this call; their memory is used again
  std::size_t num_tables_ = 0;
  std::vector<nanobind::handle> owned_;        // scratch of pin_all
  std::vector<nanobind::object> victim_keys_;  // keep the bytes of the last victims alive
};

}  // namespace hostkv::python

#endif  // HOSTKV_PYTHON_BINDINGS_ENGINE_POOL_H_
