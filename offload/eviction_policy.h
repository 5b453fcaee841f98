#ifndef HOSTKV_OFFLOAD_EVICTION_POLICY_H_
#define HOSTKV_OFFLOAD_EVICTION_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "offload/block_index.h"

namespace hostkv {

// Which block leaves the host pool next. A policy knows entries and size classes, never bytes or keys.
//
// Thread-safety: one thread. Ownership: nothing of the entries. Cost: O(1) per call, whatever number of entries is
// pinned: a pinned entry is not a candidate and is not known to the policy. Failure: none; calls out of order are bugs
// (Debug checks).
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // The entry may be evicted from now on; it is the most recent of its class. REQUIRES: not a candidate yet.
  virtual void add_candidate(EntryId entry, std::uint32_t size_class) = 0;
  // Pinned or gone. REQUIRES: a candidate.
  virtual void remove_candidate(EntryId entry) = 0;
  // The same for many, one after the other.
  virtual void add_candidates(std::span<const EntryId> entries, std::uint32_t size_class) {
    for (const EntryId entry : entries) {
      add_candidate(entry, size_class);
    }
  }
  virtual void remove_candidates(std::span<const EntryId> entries) {
    for (const EntryId entry : entries) {
      remove_candidate(entry);
    }
  }
  // The next victim of the class; kNoEntry: there is none.
  [[nodiscard]] virtual EntryId victim(std::uint32_t size_class) const = 0;
  // Who of the same class goes after a candidate; kNoEntry: it is the last. For victims that cannot go just now.
  [[nodiscard]] virtual EntryId next_victim(EntryId candidate) const = 0;
  // The first victims of the class, in order; how many there are, at most victims.size(). To fetch what will be needed.
  [[nodiscard]] virtual std::size_t first_victims(std::uint32_t size_class, std::span<EntryId> victims) const {
    std::size_t count = 0;
    for (EntryId next = victim(size_class); next != kNoEntry && count < victims.size(); next = next_victim(next)) {
      victims[count++] = next;
    }
    return count;
  }
  // The next victim over all classes.
  [[nodiscard]] virtual EntryId victim() const = 0;
  [[nodiscard]] virtual std::uint64_t num_candidates(std::uint32_t size_class) const = 0;
};

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_EVICTION_POLICY_H_
