#ifndef HOSTKV_BENCH_ENGINE_KV_CACHE_MANAGER_H_
#define HOSTKV_BENCH_ENGINE_KV_CACHE_MANAGER_H_

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "bench/engine/block_pool.h"
#include "bench/engine/prefix_lookup.h"
#include "bench/engine/request.h"
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

// Block tables of all groups: what a request gets, when it loses blocks again, what becomes findable.
//
// Purpose: vLLM's hybrid cache manager. Attention tables are append-only, with nulls for blocks that are out of reach;
// an align-mode table holds the state that the request continues from and the one that it writes; scratch and Mamba
// none hold one block. Thread-safety: one thread. Ownership: the pool and the geometry are the caller's. Cost:
// O(groups + blocks changed). Failure: grow() and admit() answer false when the pool has not enough free blocks;
// admit() has changed nothing then, grow() may have released blocks that are out of reach.
class KvCacheManager {
 public:
  KvCacheManager(const Geometry& geometry, BlockPool& pool);

  // Forgets which states became findable in the pass before.
  void begin_pass() { states_of_this_pass_.clear(); }

  // First tables: the device hit, blocks for what a load brings up to hit + num_external_tokens, blocks for tokens up
  // to end_tokens. Appends the blocks that the load will fill to `load_targets`.
  [[nodiscard]] bool admit(Request& request, const PrefixHit& hit, std::int64_t num_external_tokens,
                           std::int64_t end_tokens, const BlockReserve& reserve,
                           std::vector<FailedBlock>* load_targets);
  // Blocks for tokens up to end_tokens; releases what is out of reach of the settled tokens first.
  [[nodiscard]] bool grow(Request& request, std::int64_t end_tokens);
  // Makes findable what is complete after end_tokens.
  void cache_blocks(Request& request, std::int64_t end_tokens);
  // Tail first.
  void free(Request& request);

  // Most blocks of all groups that a request with tables still has to get until it has computed its first
  // `end_tokens` tokens in chunks of at most `chunk_tokens`.
  [[nodiscard]] std::int64_t blocks_to_get(const Request& request, std::int64_t end_tokens,
                                           std::int64_t chunk_tokens) const;
  // Most blocks that a request of `total_tokens` owns at once when chunks have at most `chunk_tokens`.
  [[nodiscard]] std::int64_t most_blocks(std::int64_t total_tokens, std::int64_t chunk_tokens) const;
  // A state that became findable in this pass is not there before the forward has run.
  [[nodiscard]] bool has_state_of_this_pass(const PrefixHit& hit) const;

 private:
  [[nodiscard]] std::int64_t table_blocks(GroupIndex g, std::int64_t end_tokens) const;
  [[nodiscard]] std::int64_t new_blocks(GroupIndex g, std::int64_t num_in_table, std::int64_t end_tokens) const;
  [[nodiscard]] std::int64_t most_blocks(GroupIndex g, std::int64_t total_tokens, std::int64_t chunk_tokens) const;
  [[nodiscard]] std::int64_t blocks_in_reach(const Request& request, GroupIndex g) const;
  void release_out_of_reach(Request& request);
  void append_blocks(Request& request, GroupIndex g, std::int64_t end_tokens);
  [[nodiscard]] BlockIndexRange kept_range(GroupIndex g, std::int64_t boundary_tokens) const;
  void build_table(Request& request, GroupIndex g, const GroupHit& hit, std::int64_t boundary_tokens,
                   std::vector<FailedBlock>* load_targets);
  void cache_group(Request& request, GroupIndex g, std::int64_t end_tokens);

  const Geometry& geometry_;
  BlockPool& pool_;
  bool caches_blocks_;
  std::unordered_set<BlockId> states_of_this_pass_;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_KV_CACHE_MANAGER_H_
