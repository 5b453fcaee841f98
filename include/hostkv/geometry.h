#ifndef HOSTKV_INCLUDE_HOSTKV_GEOMETRY_H_
#define HOSTKV_INCLUDE_HOSTKV_GEOMETRY_H_

// The resolved geometry of a hybrid KV cache: the one table of spans, boundaries and needs that every part of HostKV
// uses (R1, R2).
//
// Purpose: from groups and parallel sizes to spans, scheduler block, hash block and alignment; what a group needs at a
// boundary; which rank and slot hold a token. Formulas: vLLM's resolve_kv_cache_block_sizes, the cache managers'
// get_num_skipped_tokens and finders, and the slot-mapping kernels; conformance vectors of these run through `hostkv
// check`. Thread-safety: Geometry is immutable after resolve(); share it freely. Ownership: owns copies of everything
// it was given. Cost: resolve() allocates; every other call is O(1) arithmetic and allocates nothing. Failure:
// resolve() refuses impossible and unsupported combinations with kInvalidArgument, naming the group, the value and the
// required multiple. The other calls have preconditions (group in range, tokens >= 0) that are checked in Debug builds.
//
// Lengths are in tokens, sizes in bytes. cdiv(a, b) = ceil(a / b). A "boundary" B is a number of tokens from the start
// of a request: [0, B) is behind it. Block index i of a group covers tokens [i * span, (i + 1) * span).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hostkv/status.h"
#include "hostkv/types.h"

namespace hostkv {

enum class GroupKind : std::uint8_t {
  kFullAttention = 0,
  kMla = 1,
  kSlidingWindow = 2,
  kChunkedLocal = 3,
  kMamba = 4,    // one block = one complete recurrent state; block_tokens = distance of the states
  kScratch = 5,  // rings and tails, one block a request: never hashed, stored or loaded
};

// Where an engine keeps recurrent states. kNone: one state updated in place, nothing to find. kAlign: at boundaries
// that the engine hands off. kAll: at every block boundary, the table is dense and append-only.
enum class MambaMode : std::uint8_t { kNone = 0, kAlign = 1, kAll = 2 };

// "full", "mla", "sliding_window", "chunked_local", "mamba", "ring": the names of conformance vectors and model files.
std::string_view group_kind_name(GroupKind kind);
std::optional<GroupKind> group_kind_from_name(std::string_view name);

// Layers that share block tables.
struct KvCacheGroup {
  std::string name{};  // for messages; empty: "group <index>"
  GroupKind kind = GroupKind::kFullAttention;
  std::int64_t block_tokens = 0;  // tokens of one block on one rank, > 0
  bool sharded = false;           // DCP deals the tokens of a block out over the ranks (full attention and MLA only)
  // Bytes of one block on one rank, all layers and all buffers (K, V, scales, ...); 0: unknown.
  std::int64_t page_bytes = 0;
  std::int64_t window_tokens = 0;  // kSlidingWindow: the token being computed and window_tokens - 1 before it are read
  std::int64_t extra_retained_tokens = 0;  // kSlidingWindow: kept alive behind the window, never read
  std::int64_t chunk_tokens = 0;           // kChunkedLocal: only tokens of the same chunk are read
  std::int64_t tokens_per_entry = 1;       // compression: tokens that one cache entry stands for
  // Draft (EAGLE, MTP) group. Its cache lags one position behind, so a lookup must see one unit more than it answers (a
  // block; the hash block where hits are fine) and drops it: a prompt that ends with its last cached unit hits one
  // less.
  bool eagle = false;
  // False: no part in hashing, lookup, store, load, recovery. Nothing of it can be found again: where it is more than
  // scratch, no prefix of the model can be resumed.
  bool cacheable = true;
  // False: the engine keeps it and it is never stored or loaded. A cacheable group of this kind makes host hits
  // impossible, since nothing could fill its blocks: a connector then stores nothing and says so at its start.
  bool transferable = true;
  MambaMode mamba_mode = MambaMode::kAlign;
};

struct ParallelLayout {
  std::int64_t tp = 1;
  std::int64_t pp = 1;
  std::int64_t dcp = 1;                // decode context parallel size; its ranks are the TP ranks
  std::int64_t pcp = 1;                // prefill context parallel size
  std::int64_t interleave_tokens = 1;  // consecutive tokens that go to one rank before the next rank's turn
};

// What a connector can live with. A host tier copies whole physical rows, so it takes any interleave and never changes
// it; a connector that needs rows to hold consecutive tokens sets the flag, and the engine must then use interleave =
// block.
struct ConnectorCapabilities {
  bool needs_block_interleave = false;
};
// The interleave that an engine must use for a set of connectors: the requested one, or the block where any of them
// needs it.
std::int64_t required_interleave_tokens(std::int64_t requested_tokens, std::int64_t block_tokens,
                                        const std::vector<ConnectorCapabilities>& connectors);

struct GeometrySpec {
  std::vector<KvCacheGroup> groups{};
  ParallelLayout parallel{};
  // Tokens of one prefix hash; nullopt: the gcd of the spans, as the engine chooses.
  std::optional<std::int64_t> hash_block_tokens{};
  bool prefix_caching = true;
  bool connector = true;  // a KV connector is configured (with neither, hashes are per scheduler block)
  // Fine hits end on hash blocks, also inside a block; coarse ones on the scheduler block. nullopt: fine where the
  // engine has them; false: coarse.
  std::optional<bool> fine_hits{};
};

// Half-open range of block indices of one group. first == end: nothing.
struct BlockIndexRange {
  std::int64_t first_block = 0;
  std::int64_t end_block = 0;
  [[nodiscard]] constexpr bool empty() const { return first_block >= end_block; }
  friend constexpr bool operator==(const BlockIndexRange&, const BlockIndexRange&) = default;
};

// What a lookup must see in one group to answer boundary B.
struct LookupNeed {
  BlockIndexRange blocks{};
  // Where the last of these keys ends: B, or for a group that drops B plus the dropped unit. The key of block i of
  // `blocks` is the prefix hash at (i + 1) * span, that of the last one at tail_boundary_tokens.
  std::int64_t tail_boundary_tokens = 0;
};

// Where a token's row is. rank == -1: every rank holds it.
struct TokenPlace {
  std::int64_t rank = -1;
  std::int64_t block_index = 0;    // index into the group's block table
  std::int64_t slot_in_block = 0;  // row inside the block, 0 .. block_tokens - 1
  friend constexpr bool operator==(const TokenPlace&, const TokenPlace&) = default;
};

class Geometry {
 public:
  static Result<Geometry> resolve(GeometrySpec spec);

  [[nodiscard]] const GeometrySpec& spec() const { return spec_; }
  [[nodiscard]] std::uint32_t num_groups() const { return static_cast<std::uint32_t>(spec_.groups.size()); }
  [[nodiscard]] const KvCacheGroup& group(GroupIndex g) const { return spec_.groups[g.value()]; }
  [[nodiscard]] const std::string& group_label(GroupIndex g) const { return labels_[g.value()]; }  // for messages
  // Takes part in lookup, store and load: cacheable, transferable, not scratch, not Mamba none.
  [[nodiscard]] bool offloadable(GroupIndex g) const { return offloadable_[g.value()]; }

  [[nodiscard]] std::int64_t span_tokens(GroupIndex g) const { return spans_[g.value()]; }
  [[nodiscard]] std::int64_t scheduler_block_tokens() const {
    return scheduler_block_tokens_;
  }                                                                                    // S: multiple of every span
  [[nodiscard]] std::int64_t hash_block_tokens() const { return hash_block_tokens_; }  // h
  [[nodiscard]] std::int64_t hit_alignment_tokens() const {
    return hit_alignment_tokens_;
  }  // A: h in fine mode, else S
  [[nodiscard]] bool fine_hits() const { return fine_hits_; }
  // Does group g drop one unit at a lookup? True for a draft group and for the groups that are looked up with it.
  [[nodiscard]] bool drops_unit(GroupIndex g) const { return drops_unit_[g.value()]; }
  // The smallest prefix that can ever be reused: one alignment unit (printed at start-up).
  [[nodiscard]] std::int64_t min_reusable_tokens() const { return hit_alignment_tokens_; }

  // Tokens from the start that group g does not read again once B tokens are computed.
  [[nodiscard]] std::int64_t skipped_tokens(GroupIndex g, std::int64_t boundary_tokens) const;
  // Blocks that must be present to go on after B tokens (for Mamba: the one block of the state after exactly B tokens).
  [[nodiscard]] BlockIndexRange needs(GroupIndex g, std::int64_t boundary_tokens) const;
  // Keys that a lookup must see to answer B; nullopt where no lookup of this group can answer B: between
  // two alignments, and where a state is kept for the running request only. B == 0 needs nothing, nor does a group that
  // takes no part in lookups.
  [[nodiscard]] std::optional<LookupNeed> lookup_need(GroupIndex g, std::int64_t boundary_tokens) const;
  // Windows: blocks in a row that a lookup wants, the draft unit included; 0 for other kinds.
  [[nodiscard]] std::int64_t lookup_run_blocks(GroupIndex g) const;
  // Block indices that tokens [begin, end) touch: floor(begin / span) .. cdiv(end, span).
  [[nodiscard]] BlockIndexRange blocks_of_tokens(GroupIndex g, std::int64_t begin_tokens,
                                                 std::int64_t end_tokens) const;

  // Token position -> rank and row, and back. The inverse answers nullopt for a place that holds no token.
  [[nodiscard]] TokenPlace place_of_token(GroupIndex g, std::int64_t position) const;
  [[nodiscard]] std::optional<std::int64_t> token_at(GroupIndex g, const TokenPlace& place) const;
  // Tokens of a sequence of `length_tokens` that rank r holds in group g.
  [[nodiscard]] std::int64_t local_length_tokens(GroupIndex g, std::int64_t length_tokens, std::int64_t rank) const;

  // Identity of everything that makes bytes of two caches interchangeable (groups, sizes, parallel layout, hash block):
  // equal specs have equal fingerprints on every machine (R23).
  [[nodiscard]] std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  Geometry() = default;

  GeometrySpec spec_;
  std::vector<std::string> labels_;
  std::vector<bool> offloadable_;
  std::vector<bool> drops_unit_;
  std::vector<std::int64_t> spans_;
  std::int64_t scheduler_block_tokens_ = 0;
  std::int64_t hash_block_tokens_ = 0;
  std::int64_t hit_alignment_tokens_ = 0;
  bool fine_hits_ = false;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace hostkv

#endif  // HOSTKV_INCLUDE_HOSTKV_GEOMETRY_H_
