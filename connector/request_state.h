#ifndef HOSTKV_CONNECTOR_REQUEST_STATE_H_
#define HOSTKV_CONNECTOR_REQUEST_STATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hostkv/connector.h"
#include "offload/block_index.h"

namespace hostkv {

// A stored block that a lookup promised, pinned.
struct PromisedBlock {
  GroupIndex group;
  std::int64_t block_index = 0;
  EntryId entry;
};

// Tokens promised to a request, from its lookup to on_blocks_allocated or cancel (R4).
struct Promise {
  std::int64_t num_local_tokens = 0;
  std::int64_t boundary_tokens = 0;
  std::vector<PromisedBlock> blocks;  // per group ascending; each pinned once
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
};

// What the scheduler side knows of one live request.
struct RequestState {
  RequestId id;
  std::int64_t num_prompt_tokens = 0;
  bool skip_reading_cache = false;
  HashChain hashes;

  bool admitted = false;                // owns blocks
  bool from_before_reset = false;       // its blocks hold, or build on, what a reset has declared void: never stored
  std::uint64_t admitted_step = 0;      // steps that were built before this admission
  std::int64_t admitted_tokens = 0;     // local + external tokens of this admission: not computed by the request itself
  std::int64_t loaded_from_tokens = 0;  // the load of this admission began here; 0 with admitted_tokens 0: no load
  std::optional<Promise> promise;
  std::optional<JobId> load_job;  // planned or in flight
  bool counted_lookup = false;    // queries are counted once per admission (R24)

  // Stores. Cursors are hints: a key is looked up before it is stored again.
  std::int64_t tried_tokens = 0;    // boundaries up to here were tried
  std::int64_t stored_tokens = 0;   // blocks of full-attention groups up to here are stored, present or on the way
  std::int64_t retry_tokens = 0;    // after a set that found no room: not again before this boundary
  std::int64_t counted_tokens = 0;  // blocks up to here were counted as present or dropped: once is enough
  std::int64_t open_boundary_tokens = 0;   // stored, but a draft group's unit behind it was not written yet; 0: none
  std::uint32_t chain = 0;                 // names this admission in the cache
  std::vector<BoundaryHandOff> hand_offs;  // of the step being planned
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_REQUEST_STATE_H_
