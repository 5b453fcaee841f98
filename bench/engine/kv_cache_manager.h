#ifndef HOSTKV_BENCH_ENGINE_KV_CACHE_MANAGER_H_
#define HOSTKV_BENCH_ENGINE_KV_CACHE_MANAGER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "bench/engine/block_pool.h"
#include "bench/engine/engine.h"
#include "bench/engine/prefix_lookup.h"
#include "bench/engine/request.h"
#include "bench/engine/state_rules.h"
#include "hostkv/connector.h"
#include "hostkv/geometry.h"

namespace hostkv::bench {

// Blocks that an admission leaves free beside those that it takes.
struct BlockReserve {
  std::int64_t for_others = 0;
  // Also what the request itself needs later to get here; 0: nothing.
  std::int64_t own_end_tokens = 0;
  std::int64_t chunk_tokens = 0;  // its chunks have at most so many
};

// A block of one group, copied on every rank before the step's forward, in order.
struct BlockCopy {
  GroupIndex group;
  BlockId from;
  BlockId to;
};

// What a pass takes blocks for.
struct ChunkEnd {
  std::int64_t tokens = 0;             // known ones
  std::int64_t num_drafts = 0;         // behind them
  std::int64_t checkpoint_tokens = 0;  // a state to be exported on the way; 0: none
};

// Block tables of all groups: what a request gets, when it loses blocks again, what becomes findable.
//
// Purpose: vLLM's hybrid cache manager. Attention tables are append-only, with nulls for blocks that are out of reach;
// an align-mode table holds the state that the request continues from, the one that it writes, and speculative blocks
// behind it that move along; scratch and Mamba none hold one block. With steps in flight nothing of it is released
// before their results are in. What a hit shares and a forward would overwrite (a
// block that the boundary lies inside of) is copied first. Thread-safety: one thread. Ownership: the pool and the
// geometry are the caller's. Cost: O(groups + blocks changed). Failure: grow() and admit() answer false when the pool
// has not enough free blocks; admit() has changed nothing then, grow() may have released blocks that are out of reach.
class KvCacheManager {
 public:
  KvCacheManager(const Geometry& geometry, const EngineConfig& config, BlockPool& pool);

  // Forgets what the pass before has made findable, copied and handed off.
  void begin_pass();
  [[nodiscard]] const std::vector<BlockCopy>& copies() const { return copies_; }
  // Align states that became findable in this pass, or were copied away in it. A state that is still where its request
  // would overwrite it is not among them yet.
  [[nodiscard]] const std::vector<BoundaryHandOff>& hand_offs() const { return hand_offs_; }

  // It got a key in this pass: what it holds under it may be written by this step's forward only.
  [[nodiscard]] bool is_keyed_in_this_pass(BlockId block) const {
    return states_of_this_pass_.contains(block) || blocks_of_this_pass_.contains(block);
  }

  // First tables: the device hit, blocks for what a load brings up to hit + num_external_tokens, blocks for tokens up
  // to `end`. Appends the blocks that the load will fill to `load_targets`.
  [[nodiscard]] bool admit(Request& request, const PrefixHit& hit, std::int64_t num_external_tokens,
                           const ChunkEnd& end, const BlockReserve& reserve, std::vector<FailedBlock>* load_targets);
  // Blocks for tokens up to `end`; releases what is out of reach of the settled tokens first.
  [[nodiscard]] bool grow(Request& request, const ChunkEnd& end);
  // Makes findable what is complete after end_tokens, and the state exported at `checkpoint_tokens`.
  void cache_blocks(Request& request, std::int64_t end_tokens, std::int64_t checkpoint_tokens = 0);
  // States that became findable when their step was settled are handed off by this one.
  void hand_off_late(Request& request);
  // A forward that wrote the tokens [begin, end), or drafts among them, has ended; only now its tokens are known. What
  // is complete becomes findable: states are handed off by the next step. `running_column`: of that forward.
  void cache_settled(Request& request, std::span<const std::int64_t> running_column, std::int64_t begin_tokens,
                     std::int64_t end_tokens);
  // Tail first.
  void free(Request& request);
  // As free(), but the blocks are the caller's, to be freed later, one list after the other.
  [[nodiscard]] static std::vector<std::vector<BlockId>> take_blocks(Request& request);

  // Can the state at a boundary be exported by a chunk (begin, end]? Its column must be free.
  [[nodiscard]] bool can_export(const Request& request, std::int64_t begin_tokens, std::int64_t end_tokens) const;

  // Most blocks of all groups that a request with tables still has to get until it has computed its first
  // `end_tokens` tokens in chunks of at most `chunk_tokens`.
  [[nodiscard]] std::int64_t blocks_to_get(const Request& request, std::int64_t end_tokens,
                                           std::int64_t chunk_tokens) const;
  // Most blocks that a request of `total_tokens` owns at once when chunks have at most `chunk_tokens`.
  [[nodiscard]] std::int64_t most_blocks(std::int64_t total_tokens, std::int64_t chunk_tokens) const;
  // A state that became findable in this pass, or a block that would be copied, is not there before the forward has
  // run.
  [[nodiscard]] bool waits_for_forward(const PrefixHit& hit) const;

 private:
  [[nodiscard]] std::int64_t table_blocks(GroupIndex g, std::int64_t end_tokens) const;
  [[nodiscard]] std::int64_t new_blocks(const Request& request, GroupIndex g, const ChunkEnd& end) const;
  [[nodiscard]] std::int64_t new_states(std::int64_t running_column, std::int64_t num_in_table, GroupIndex g,
                                        const ChunkEnd& end) const;
  [[nodiscard]] std::int64_t most_blocks(GroupIndex g, std::int64_t total_tokens, std::int64_t chunk_tokens) const;
  [[nodiscard]] std::int64_t unsettled_columns(std::int64_t span_tokens) const;
  [[nodiscard]] std::int64_t blocks_in_reach(const Request& request, GroupIndex g) const;
  [[nodiscard]] std::int64_t first_in_reach(const Request& request, GroupIndex g) const;
  [[nodiscard]] bool must_copy(GroupIndex g, std::int64_t boundary_tokens) const;
  void release_out_of_reach(Request& request);
  void copy_partial_states(Request& request);
  void append_blocks(Request& request, GroupIndex g, const ChunkEnd& end);
  void append_states(Request& request, GroupIndex g, const ChunkEnd& end);
  [[nodiscard]] BlockIndexRange kept_range(GroupIndex g, std::int64_t boundary_tokens) const;
  void build_table(Request& request, GroupIndex g, const GroupHit& hit, std::int64_t boundary_tokens,
                   std::vector<FailedBlock>* load_targets);
  void copy_last_block(Request& request, GroupIndex g, std::int64_t boundary_tokens);
  void cache_group(Request& request, GroupIndex g, std::int64_t end_tokens);
  void cache_state(Request& request, GroupIndex g, std::int64_t boundary_tokens, std::int64_t column);
  void cache_passed_states(Request& request, GroupIndex g, std::int64_t running_column, std::int64_t begin_tokens,
                           std::int64_t end_tokens);
  void cache_inner_keys(Request& request, std::int64_t end_tokens);
  [[nodiscard]] CacheKey key_at(const Request& request, GroupIndex g, std::int64_t boundary_tokens) const;

  const Geometry& geometry_;
  BlockPool& pool_;
  StateRules rules_;
  std::int64_t num_speculative_;
  std::int64_t steps_ahead_;
  bool exports_states_;
  bool caches_blocks_;
  std::unordered_set<BlockId> states_of_this_pass_;
  std::unordered_set<BlockId> blocks_of_this_pass_;  // of other groups, keyed in it
  std::vector<BlockCopy> copies_;
  std::vector<BoundaryHandOff> hand_offs_;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_KV_CACHE_MANAGER_H_
