#ifndef HOSTKV_CONNECTOR_REQUEST_STATE_H_
#define HOSTKV_CONNECTOR_REQUEST_STATE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "hostkv/connector.h"
#include "offload/block_index.h"

namespace hostkv {

// A block that a lookup promised: of the host, or (entry kNoEntry) of the device.
struct PromisedBlock {
  GroupIndex group;
  std::uint32_t block_index = 0;
  EntryId entry = kNoEntry;
  BlockId device_block = kNullBlock;
};

// Tokens promised to a request, from its lookup to on_blocks_allocated or cancel (R4).
struct Promise {
  std::int64_t num_local_tokens = 0;
  std::int64_t boundary_tokens = 0;
  std::vector<PromisedBlock> blocks;  // per group ascending; entries are pinned once each
  std::int64_t num_device_blocks = 0;
  bool pins_device = false;        // its device blocks are pinned, until the step's metadata is built
  std::uint32_t device_place = 0;  // in the list of the promises that pin some
};

// Prefix hashes of a request, packed.
struct HashChain {
  std::vector<std::byte> bytes;  // [size(), hash_size_bytes]
  std::size_t hash_size_bytes = 0;
  std::int64_t hash_block_tokens = 1;

  [[nodiscard]] std::int64_t size() const {
    return hash_size_bytes == 0 ? 0 : static_cast<std::int64_t>(bytes.size() / hash_size_bytes);
  }
  [[nodiscard]] std::int64_t hashed_tokens() const { return size() * hash_block_tokens; }
  void truncate(std::int64_t num_hashes) {
    if (num_hashes < size()) {
      bytes.resize(static_cast<std::size_t>(num_hashes) * hash_size_bytes);
    }
  }
  // The hash of the prefix [0, boundary). REQUIRES: boundary a multiple of the hash block, 0 < boundary <=
  // hashed_tokens().
  [[nodiscard]] std::span<const std::byte> at_boundary(std::int64_t boundary_tokens) const {
    const auto index = static_cast<std::size_t>(boundary_tokens / hash_block_tokens - 1);
    return std::span<const std::byte>(bytes).subspan(index * hash_size_bytes, hash_size_bytes);
  }
  // The keys of `num_keys` boundaries, `step_tokens` apart. REQUIRES: all of them as at_boundary() wants them.
  [[nodiscard]] KeyRun keys(GroupIndex group, std::uint64_t namespace_fingerprint, std::int64_t first_boundary_tokens,
                            std::int64_t step_tokens, std::size_t num_keys) const {
    return {.hashes = num_keys == 0 ? nullptr : at_boundary(first_boundary_tokens).data(),
            .stride_bytes = static_cast<std::size_t>(step_tokens / hash_block_tokens) * hash_size_bytes,
            .hash_size_bytes = hash_size_bytes,
            .num_keys = num_keys,
            .tag = make_key_tag(group, hash_size_bytes, namespace_fingerprint)};
  }
};

// How far the blocks of one admission are stored. Cursors are hints: a key is looked up before it is stored again.
struct StoreProgress {
  std::int64_t tried_tokens = 0;          // boundaries up to here were tried
  std::int64_t stored_tokens = 0;         // the last boundary whose set is stored, present or on the way
  std::int64_t retry_tokens = 0;          // after a set that found no room: not again before this boundary
  std::int64_t counted_tokens = 0;        // blocks up to here were counted as present or dropped: once is enough
  std::int64_t open_boundary_tokens = 0;  // stored, but a draft group's unit behind it was not written yet; 0: none
  std::int64_t verified_tokens = 0;       // stored up to here when it was looked at again, ..
  std::uint64_t verified_removals = 0;    // .. after so many removals from the cache
  bool builds_on_others = false;          // some of it was stored by others: of that no removal is told apart
  bool has_holes = false;                 // the last look found some, and could not fill them

  void mark_verified(std::uint64_t num_removals, std::int64_t tokens) {
    verified_removals = num_removals;
    verified_tokens = tokens;
    builds_on_others = has_holes = false;
  }
  // What lies behind is to be computed anew, maybe from other tokens.
  void go_back_to(std::int64_t tokens) {
    for (std::int64_t* cursor : {&tried_tokens, &stored_tokens, &retry_tokens, &counted_tokens, &verified_tokens}) {
      *cursor = std::min(*cursor, tokens);
    }
    open_boundary_tokens = open_boundary_tokens > tokens ? 0 : open_boundary_tokens;
  }
};

inline constexpr std::int64_t kNoOffloadLimit = std::numeric_limits<std::int64_t>::max();

// What the scheduler side knows of one live request.
struct RequestState {
  RequestId id;
  std::int64_t num_prompt_tokens = 0;
  bool skip_reading_cache = false;
  HashChain hashes;

  // Lookups.
  std::optional<Promise> promise;
  bool counted_lookup = false;  // queries are counted once per admission (R24)
  bool avoids_device = false;   // a copy from the device has failed: the host alone is searched
  // Its last promise had device blocks and was not taken in its step: the next lookup searches the host alone, so that
  // pins of ours cannot be what keeps the request waiting.
  bool device_untaken = false;
  bool waits_for_loads = false;     // its last lookup found a hit, and too much was being loaded
  std::int64_t refused_offers = 0;  // loads to a boundary of the engine's choice that could not be assembled

  // The admission.
  bool admitted = false;     // owns blocks
  bool loading = false;      // its load is planned or in flight
  bool load_failed = false;  // it has not been asked for since; the engine may go on with the blocks of it
  bool has_run = false;
  // Its blocks hold, or build on, what must not be stored: a reset has declared it void, or the engine has damaged it.
  bool tainted = false;
  // By the engine: what others compute from what it has left on the device must not be stored either.
  bool damaged = false;
  std::uint64_t admitted_step = 0;      // steps that were built before this admission
  std::int64_t admitted_tokens = 0;     // local + external tokens: not computed by the request itself
  std::int64_t loaded_from_tokens = 0;  // the load began here; 0 with admitted_tokens 0: no load
  std::uint32_t chain = 0;              // names this admission in the cache
  StoreProgress stores;
  std::vector<BoundaryHandOff> hand_offs;  // of the step being planned

  // Its limit on what is stored.
  std::int64_t max_offload_tokens = kNoOffloadLimit;
  std::int64_t first_computed_tokens = 0;  // when it has run: where it began
  std::int64_t judged_tokens = 0;          // lazy stores: up to here the limit has been told to WithheldHashes
  std::int64_t damaged_tokens = 0;         // up to here its damage has been told to WithheldHashes
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_REQUEST_STATE_H_
