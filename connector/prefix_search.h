#ifndef HOSTKV_CONNECTOR_PREFIX_SEARCH_H_
#define HOSTKV_CONNECTOR_PREFIX_SEARCH_H_

#include <array>
#include <cstdint>
#include <vector>

#include "connector/device_view.h"
#include "connector/request_state.h"
#include "hostkv/geometry.h"
#include "offload/offload_cache.h"

namespace hostkv {

// Finds the longest boundary behind a local hit for which every group can be assembled from the host and from what else
// the device caches (R2, R3), and where each block of it is.
//
// A block of attention over all tokens serves every boundary inside it up to its key, so such a group has a run of
// whole blocks and at most one key inside the block behind it. A window, chunk or state is looked at from its end.
//
// Thread-safety: one thread. Ownership: borrows geometry, cache and engine; keeps scratch memory so that a search
// allocates nothing once warm. Cost: proportional to the hit: full-attention blocks are probed once, left to right,
// prefetched, up to the first miss; a miss of a window or chunk skips every boundary that would need the same block, a
// miss of a state all that have none. The device is asked for what the host lacks only, and, for the blocks of the
// answer, whether it has them too.
class PrefixSearch {
 public:
  struct Answer {
    std::int64_t boundary_tokens = 0;       // num_local_tokens: nothing behind it
    std::int64_t shared_prefix_tokens = 0;  // where attention over all tokens ends, if behind the boundary; else 0
    // Nothing that is missing ended the search, but the end of the hashes: with more of them it may get further.
    bool hangs_on_hashes = false;
  };

  // `device`: null for the host alone.
  PrefixSearch(const Geometry& geometry, const OffloadCache& cache, EngineBlocks* device,
               std::uint64_t namespace_fingerprint);

  // The device may be left out of the next searches: its blocks cannot be had, or not be trusted.
  void use_device(bool use) { uses_device_ = use && device_.can_see(); }

  // Answers of longest_boundary are multiples of it: of the hit alignment, or of a multiple of that.
  void set_boundary_step(std::int64_t step_tokens) { step_tokens_ = step_tokens; }

  // The largest boundary B, a multiple of the step, num_local_tokens < B <= num_tokens - 1, for which every
  // offloadable group has all keys that a lookup must see. What ends at or before num_local_tokens is on the device.
  Answer longest_boundary(const HashChain& hashes, std::int64_t num_tokens, std::int64_t num_local_tokens);

  // What the load to `boundary_tokens` copies: the blocks that each group needs there and the request does not have
  // yet, from the device where it has them. REQUIRES: the boundary is the answer of longest_boundary, nothing changed
  // in between. False: the engine tells another thing of its cache than a moment ago; `blocks` is as it was.
  [[nodiscard]] bool append_needed(const HashChain& hashes, std::int64_t num_local_tokens, std::int64_t boundary_tokens,
                                   std::vector<PromisedBlock>& blocks);
  // The same for a boundary of the engine's choice, also one between two alignments. False: some block is nowhere;
  // `blocks` is as it was.
  [[nodiscard]] bool assemble(const HashChain& hashes, std::int64_t num_local_tokens, std::int64_t boundary_tokens,
                              std::vector<PromisedBlock>& blocks);

  // [num_groups]: tokens by which each group shortened the last answer, measured from where attention over all tokens
  // got to.
  [[nodiscard]] const std::vector<std::int64_t>& lost_tokens() const { return lost_tokens_; }

  // The stored entry of a block that ends at `boundary_tokens`; kNoEntry: not stored or not ready.
  [[nodiscard]] EntryId find_ready(const HashChain& hashes, GroupIndex group, std::int64_t boundary_tokens) const;

 private:
  static constexpr std::size_t kMostInBatch = 256;  // keys that are looked up together

  // Where a block is: an entry of the host, else a block of the device, else nowhere.
  struct Place {
    EntryId entry = kNoEntry;
    BlockId device = kNullBlock;
    [[nodiscard]] bool nowhere() const { return entry == kNoEntry && device == kNullBlock; }
  };
  struct Query {
    const HashChain& hashes;
    std::int64_t num_local_tokens = 0;
    std::int64_t reach_tokens = 0;  // the last token that the key of a dropped unit may end at
  };
  // The blocks of one full-attention group in a row, from where the search began, and the key inside the next one.
  struct FullRun {
    GroupIndex group;
    std::int64_t first_block = 0;
    std::int64_t tail_tokens = 0;  // where the last key ends
    std::vector<Place> places;     // whole blocks, then at most one with a key inside
  };

  [[nodiscard]] bool hangs_on_hashes(const HashChain& hashes) const;
  void measure_run(const Query& query, FullRun& run);
  void find_whole_blocks(const HashChain& hashes, std::int64_t end_block, FullRun& run);
  void find_inner_key(const Query& query, std::int64_t reach_tokens, FullRun& run);
  std::int64_t cap_by_runs(const Query& query, std::int64_t boundary_tokens);
  std::int64_t shorten_by_others(const Query& query, std::int64_t boundary_tokens);
  // The boundary itself where the group has all that it needs there; else a smaller one worth a try.
  std::int64_t next_candidate(const Query& query, GroupIndex group, std::int64_t boundary_tokens);
  std::int64_t next_state(const Query& query, GroupIndex group, std::int64_t boundary_tokens);
  [[nodiscard]] bool has_dropped_unit(const HashChain& hashes, GroupIndex group, std::int64_t boundary_tokens);
  void append_run(const HashChain& hashes, const FullRun& run, BlockIndexRange range, std::int64_t boundary_tokens,
                  std::vector<PromisedBlock>& blocks);
  [[nodiscard]] BlockId find_last_on_device(const HashChain& hashes, GroupIndex group, std::int64_t boundary_tokens);
  bool append_others(const HashChain& hashes, GroupIndex group, BlockIndexRange range, std::int64_t boundary_tokens,
                     std::vector<PromisedBlock>& blocks);
  bool append_group(const HashChain& hashes, GroupIndex group, std::int64_t num_local_tokens,
                    std::int64_t boundary_tokens, std::vector<PromisedBlock>& blocks);
  [[nodiscard]] Place find(const HashChain& hashes, GroupIndex group, std::int64_t boundary_tokens);
  [[nodiscard]] std::int64_t drop_tokens(GroupIndex group) const;

  const Geometry& geometry_;
  const OffloadCache& cache_;
  DeviceView device_;
  bool uses_device_;
  std::uint64_t namespace_fingerprint_;
  bool can_search_;                       // false: some group keeps what no host can restore
  std::vector<FullRun> full_runs_;        // one a full-attention group
  std::vector<GroupIndex> other_groups_;  // windows, chunks, states
  std::int64_t step_tokens_;              // of the boundaries that are looked at
  std::vector<std::int64_t> lost_tokens_;
  std::array<EntryId, kMostInBatch> batch_;  // scratch
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_PREFIX_SEARCH_H_
