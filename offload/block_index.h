#ifndef HOSTKV_OFFLOAD_BLOCK_INDEX_H_
#define HOSTKV_OFFLOAD_BLOCK_INDEX_H_

#include <cstdint>
#include <span>
#include <vector>

#include "hostkv/types.h"
#include "offload/offload_key.h"

namespace hostkv {

// Number of an entry of a BlockIndex; stable while the entry lives, used again afterwards.
using EntryId = StrongId<struct EntryIdTag, std::uint32_t>;
inline constexpr EntryId kNoEntry{0xFFFFFFFFU};

enum class EntryState : std::uint8_t {
  kFree = 0,
  kStoring = 1,   // has a slot, its bytes are on the way: not findable by a lookup, but not stored twice
  kReady = 2,     // every rank holds its bytes
  kOrphaned = 3,  // the key is gone, the slot goes back when the last pin does
};

struct IndexEntry {
  OffloadKey key;
  SlotId slot;
  std::uint32_t pins = 0;
  std::uint32_t chain = 0;  // who stored it: one admission of one request
  EntryState state = EntryState::kFree;
  bool prefix_closed = false;  // worthless for a chain that has lost it (full attention)
};

// Key -> entry: an open-addressed table of (tag, entry) over an array of entries.
//
// Thread-safety: one thread. Ownership: owns entries and table.
// Cost: find() is one probe of a cache line in the common case plus one line of the entry; insert amortised O(1).
// prefetch() starts the loads of a later find(): the keys of a chain are all known before the first probe. Failure:
// none; insert() REQUIRES that the key is not there.
class BlockIndex {
 public:
  BlockIndex();

  [[nodiscard]] EntryId find(const OffloadKey& key) const { return find(key, hash_of(key)); }
  [[nodiscard]] EntryId find(const OffloadKey& key, std::uint64_t hash) const;
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&buckets_[hash & mask_]); }

  // A new entry in state kStoring.
  EntryId insert(const OffloadKey& key, SlotId slot);
  // Takes the key out of the table; the entry lives on, orphaned. REQUIRES: state kStoring or kReady.
  void orphan(EntryId id);
  // Ends the entry; takes the key out first where it is still in.
  void erase(EntryId id);

  [[nodiscard]] IndexEntry& entry(EntryId id) { return entries_[id.value()]; }
  [[nodiscard]] const IndexEntry& entry(EntryId id) const { return entries_[id.value()]; }
  [[nodiscard]] std::size_t num_keys() const { return num_keys_; }
  // All entries ever used, free ones included, by EntryId.
  [[nodiscard]] std::span<const IndexEntry> entries() const { return entries_; }

 private:
  // The low half of the hash tells a bucket's home and, past the bits that its neighbours share, most foreign keys
  // apart: no entry is looked at while buckets move.
  struct Bucket {
    std::uint32_t low_hash = 0;
    EntryId entry = kNoEntry;
  };

  void place(Bucket bucket);
  void take_out(EntryId id);
  void grow();

  std::vector<Bucket> buckets_;
  std::uint64_t mask_;
  std::size_t num_keys_ = 0;
  std::vector<IndexEntry> entries_;
  std::vector<EntryId> free_entries_;
};

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_BLOCK_INDEX_H_
