#ifndef HOSTKV_CONNECTOR_PREFIX_SEARCH_H_
#define HOSTKV_CONNECTOR_PREFIX_SEARCH_H_

#include <cstdint>
#include <vector>

#include "connector/request_state.h"
#include "hostkv/geometry.h"
#include "offload/offload_cache.h"

namespace hostkv {

// Finds the longest boundary that the host can serve behind a local hit (R2, R3), and the stored blocks that its load
// needs.
//
// Thread-safety: one thread. Ownership: borrows geometry and cache; keeps scratch memory so that a search allocates
// nothing once warm. Cost: proportional to the hit: full-attention blocks are probed once, left to right, prefetched,
// up to the first miss; a window, chunk or state is probed from its end, and a miss skips every boundary that would
// need the same block.
class PrefixSearch {
 public:
  PrefixSearch(const Geometry& geometry, const OffloadCache& cache, std::uint64_t namespace_fingerprint);

  // The largest boundary B, a multiple of the alignment, num_local_tokens < B <= num_tokens - 1, for which every
  // offloadable group has all keys that a lookup must see; num_local_tokens where there is none. Blocks that end at or
  // before num_local_tokens are on the device.
  std::int64_t longest_boundary(const HashChain& hashes, std::int64_t num_tokens, std::int64_t num_local_tokens);

  // What the load to `boundary_tokens` copies: the blocks that each group needs there and the device lacks. REQUIRES:
  // the boundary is the answer of longest_boundary, nothing changed in between.
  void append_needed(const HashChain& hashes, std::int64_t num_local_tokens, std::int64_t boundary_tokens,
                     std::vector<PromisedBlock>& blocks) const;

  // The stored entry of a block that ends at `boundary_tokens`; kNoEntry: not stored or not ready.
  [[nodiscard]] EntryId find_ready(const HashChain& hashes, GroupIndex group, std::int64_t boundary_tokens) const;

 private:
  struct Query {
    const HashChain& hashes;
    std::int64_t num_local_tokens = 0;
    std::int64_t reach_tokens = 0;  // the last token that a key may end at
  };
  // The stored blocks of one full-attention group in a row, from where the last search began.
  struct FullRun {
    GroupIndex group;
    std::int64_t first_block = 0;
    std::vector<EntryId> entries;
    [[nodiscard]] std::int64_t end_block() const { return first_block + std::ssize(entries); }
  };
  void find_run(const HashChain& hashes, std::int64_t first_block, std::int64_t end_block, FullRun& run) const;
  // 0 and more: the highest block index that a lookup at the boundary must see and that is missing; -1: all there; -2:
  // this group cannot answer the boundary at all.
  [[nodiscard]] std::int64_t highest_missing_block(const Query& query, GroupIndex group,
                                                   std::int64_t boundary_tokens) const;
  [[nodiscard]] std::int64_t next_candidate(GroupIndex group, std::int64_t boundary_tokens, std::int64_t missing) const;

  const Geometry& geometry_;
  const OffloadCache& cache_;
  std::uint64_t namespace_fingerprint_;
  bool can_search_;                       // false: some group keeps what no host can restore
  std::vector<FullRun> full_runs_;        // one a full-attention group, left to right
  std::vector<GroupIndex> other_groups_;  // windows, chunks, states
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_PREFIX_SEARCH_H_
