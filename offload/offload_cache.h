#ifndef HOSTKV_OFFLOAD_OFFLOAD_CACHE_H_
#define HOSTKV_OFFLOAD_OFFLOAD_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "hostkv/status.h"
#include "offload/block_index.h"
#include "offload/eviction_policy.h"
#include "offload/key_events.h"
#include "offload/slot_allocator.h"

namespace hostkv {

// A block that wants a slot.
struct StoreWant {
  OffloadKey key;
  std::uint32_t size_class = 0;
  bool prefix_closed = false;
};

// What the host pool holds, on the scheduler side: index, slots and eviction in one. It moves no byte and knows no
// address.
//
// An entry is made by reserve() (kStoring, pinned once for its job), becomes findable by publish() (R9) or goes by
// abort(). A pinned entry is never evicted (R4). drop() and clear() take keys away at once; slots that are pinned come
// back with their last pin (R13).
//
// Thread-safety: one thread. Ownership: owns index, slots and policy.
// Cost: every call O(1) per entry. Failure: reserve() answers false when its set does not fit (R19): none of its keys
// is known then; what it evicted before it knew stays evicted, and its slots are free.
class OffloadCache {
 public:
  static constexpr int kMaxPassedOver = 1024;
  static constexpr std::uint32_t kNoChain = 0;

  OffloadCache(std::vector<std::uint32_t> slots_per_slab, std::uint64_t num_slabs,
               std::unique_ptr<EvictionPolicy> policy);

  // From now on what happens to keys is appended to `events`, which must outlive the cache: stored, removed (evicted or
  // dropped), dropped before they were stored, cleared. What is planned is written by the planner, behind reserve().
  void record_events(KeyEvents& events) { events_ = &events; }

  // The entry of the key, stored or on the way; kNoEntry: none.
  [[nodiscard]] EntryId find(const OffloadKey& key) const { return index_.find(key); }
  [[nodiscard]] EntryId find(const OffloadKey& key, std::uint64_t hash) const { return index_.find(key, hash); }
  void prefetch(std::uint64_t hash) const { index_.prefetch(hash); }
  // find() for many keys of a chain; see BlockIndex::find_run.
  void find_run(const KeyRun& run, std::span<EntryId> entries, RunCursor& cursor) const {
    index_.find_run(run, entries, cursor);
  }
  [[nodiscard]] bool ready(EntryId id) const { return index_.entry(id).state == EntryState::kReady; }
  [[nodiscard]] SlotId slot(EntryId id) const { return index_.entry(id).slot; }

  // Slots for all wants or for none, evicting what is least worth keeping. No want's key may be known already. Appends
  // the entries to `reserved` in order. A chain never evicts its own prefix-closed blocks: it would keep its end and
  // lose its head. kNoChain protects nothing. Victims that cannot go are passed over, up to kMaxPassedOver of them a
  // slot. `urgent`: where nothing can be evicted it takes from the reserve.
  bool reserve(std::span<const StoreWant> wants, std::uint32_t chain, std::vector<EntryId>& reserved,
               bool urgent = false);
  // So many slabs are kept free for urgent sets, for what comes once and cannot wait while everything else is pinned.
  // Once used they are won back from the oldest blocks as others are stored. REQUIRES: fewer than there are. 0: none.
  void set_reserved_slabs(std::uint64_t num_slabs) { slots_.set_reserved_slabs(num_slabs); }
  // The bytes are there on every rank. Call it tail first: the last one published is the last to be evicted.
  void publish(EntryId id);
  // The same for many, in the order given.
  void publish_all(std::span<const EntryId> ids);
  // The bytes will never be there.
  void abort(EntryId id);

  void pin(EntryId id);
  // The last unpin makes it a candidate for eviction again, the most recent one.
  void unpin(EntryId id);
  // The same for many, in the order given.
  void pin_all(std::span<const EntryId> ids);
  void unpin_all(std::span<const EntryId> ids);
  // Makes those that the chain has stored, and that are candidates, the most recent ones, in the order given. Entries
  // may have ended, or have other keys now.
  void touch_chain(std::span<const EntryId> ids, std::uint32_t chain);

  // Bad bytes: no lookup finds the key from now on.
  void drop(EntryId id);
  // Everything goes: a new epoch. One event, behind those of stores that were on the way.
  void clear();

  [[nodiscard]] std::uint64_t num_ready() const { return num_ready_; }
  [[nodiscard]] std::uint64_t num_pinned() const { return num_pinned_; }
  [[nodiscard]] std::uint64_t num_used_slots() const { return slots_.num_used_slots(); }
  [[nodiscard]] std::uint64_t num_used_slabs() const { return slots_.num_slabs() - slots_.num_free_slabs(); }
  [[nodiscard]] std::uint64_t num_evictions() const { return num_evictions_; }
  // Evicted, dropped, or forgotten before they were there.
  [[nodiscard]] std::uint64_t num_removals() const { return num_removals_; }
  [[nodiscard]] std::uint32_t chain_of(EntryId id) const { return index_.entry(id).chain; }

  // A living chain is told when blocks of it leave. Idempotent.
  void open_chain(std::uint32_t chain);
  void close_chain(std::uint32_t chain);
  [[nodiscard]] std::size_t num_living_chains() const { return living_chains_.size(); }
  // Since it was opened, or mended, a block that the chain stores or has stored was evicted, dropped or not stored
  // after all. True for a chain that is not open.
  [[nodiscard]] bool is_torn(std::uint32_t chain) const;
  void mend(std::uint32_t chain);
  // R15, by counting everything: kInternal with the difference.
  [[nodiscard]] Status check_conservation() const;

 private:
  // A slot that cannot be: an optional's two parts would be written and read apart, which stalls each eviction.
  static constexpr SlotId kNoSlot{~std::uint64_t{0}};

  SlotId acquire_slot(std::uint32_t size_class, std::uint32_t chain, bool urgent);
  SlotId take_free(std::uint32_t size_class, bool urgent);
  [[nodiscard]] bool may_evict(EntryId id, std::uint32_t chain) const;
  [[nodiscard]] bool may_evict_slab(std::uint64_t slab, std::uint32_t chain) const;
  bool evict_oldest_slab(std::uint32_t size_class, std::uint32_t chain);
  SlotId evict_and_reuse(std::uint32_t size_class, std::uint32_t chain);
  bool evict_any_slab(std::uint32_t size_class, std::uint32_t chain);
  // The slot is the caller's to use or to free.
  SlotId evict(EntryId id);
  void evict_slab(std::uint64_t slab);
  SlotId end_entry(EntryId id);
  void flush_candidates();
  // The cache lines that the next evictions of the class will need.
  void prefetch_victims(std::uint32_t size_class) const;
  void forget(EntryId id);
  void tear(std::uint32_t chain);
  void record(KeyEventKind kind, EntryId id) const {
    if (events_ != nullptr) {
      write_event(kind, id);
    }
  }
  void write_event(KeyEventKind kind, EntryId id) const;
  [[nodiscard]] std::uint32_t class_of(EntryId id) const { return index_.entry(id).size_class; }
  [[nodiscard]] bool is_candidate(EntryId id) const {
    return index_.entry(id).pins == 0 && index_.entry(id).state == EntryState::kReady;
  }
  EntryId& entry_at(SlotId slot) {
    return entry_of_slot_[slab_of(slot) * slots_.max_slots_per_slab() + index_in_slab(slot)];
  }
  [[nodiscard]] std::span<const EntryId> entries_of_slab(std::uint64_t slab) const {
    return {entry_of_slot_.data() + slab * slots_.max_slots_per_slab(), slots_.max_slots_per_slab()};
  }

  BlockIndex index_;
  SlotAllocator slots_;
  std::unique_ptr<EvictionPolicy> policy_;
  std::vector<EntryId> entry_of_slot_;  // [num_slabs x max slots a slab]
  std::vector<EntryId> gathered_;       // scratch: candidates to be handed over together, of one size class
  std::vector<EntryId> touched_;        // scratch of touch_chain
  std::unordered_map<std::uint32_t, bool> living_chains_;  // chain -> a block of it has left
  std::uint32_t last_torn_ = kNoChain;                     // the same one often comes many times in a row
  KeyEvents* events_ = nullptr;                            // null: nobody wants to know
  std::uint64_t num_ready_ = 0;
  std::uint64_t num_pinned_ = 0;
  std::uint64_t num_evictions_ = 0;
  std::uint64_t num_removals_ = 0;
};

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_OFFLOAD_CACHE_H_
