#ifndef HOSTKV_OFFLOAD_BLOCK_INDEX_H_
#define HOSTKV_OFFLOAD_BLOCK_INDEX_H_

#include <array>
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

// All that is known of a stored block, in one cache line.
struct alignas(64) IndexEntry {
  std::array<std::uint64_t, 4> key_hash{};  // hash and tag of its OffloadKey
  std::uint64_t key_tag = 0;
  SlotId slot;
  std::uint32_t pins = 0;
  std::uint32_t chain = 0;     // who stored it: one admission of one request
  std::uint32_t low_hash = 0;  // the low half of hash_of(key)
  std::uint16_t size_class = 0;
  EntryState state = EntryState::kFree;
  bool prefix_closed = false;  // worthless for a chain that has lost it (full attention)

  [[nodiscard]] bool holds(const OffloadKey& key) const { return holds(key.hash, key.tag); }
  [[nodiscard]] bool holds(const std::array<std::uint64_t, 4>& hash, std::uint64_t tag) const {
    return ((key_hash[0] ^ hash[0]) | (key_hash[1] ^ hash[1]) | (key_hash[2] ^ hash[2]) | (key_hash[3] ^ hash[3]) |
            (key_tag ^ tag)) == 0;
  }
  // Its key is in the index.
  [[nodiscard]] bool is_known() const { return state == EntryState::kStoring || state == EntryState::kReady; }
};
static_assert(sizeof(IndexEntry) == 64);

// Where a run of keys has been found so far.
struct RunCursor {
  EntryId last = kNoEntry;
  std::uint32_t step = 0;        // from an entry to the next, modulo 2^32; 0: not known
  std::size_t num_together = 2;  // keys that are looked up together next
};

// Key -> entry: an open-addressed table of (tag, entry) over an array of entries.
//
// Thread-safety: one thread. Ownership: owns entries and table.
// Cost: find() is one probe of a cache line in the common case plus one line of the entry; insert amortised O(1).
// prefetch() starts the loads of a later find(): the keys of a chain are all known before the first probe. Where the
// table's line has come, prefetch_entry() starts the entry's. Failure: none; insert() REQUIRES that the key is not
// there.
class BlockIndex {
 public:
  // Room for `expected_keys` without growing.
  explicit BlockIndex(std::size_t expected_keys = 0);

  [[nodiscard]] EntryId find(const OffloadKey& key) const { return find(key, hash_of(key)); }
  [[nodiscard]] EntryId find(const OffloadKey& key, std::uint64_t hash) const { return find(key.hash, key.tag, hash); }
  // The entries of the first entries.size() keys of the run, kNoEntry: none. Blocks that were stored together lie in a
  // regular row: where the last two finds were near each other, what lies as far behind the last is tried first,
  // without the table; its key tells. Elsewhere keys are looked up together, so that their lines come together.
  // `cursor`: kept from the call for the keys before.
  void find_run(const KeyRun& run, std::span<EntryId> entries, RunCursor& cursor) const;

  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&buckets_[hash & mask_]); }
  void prefetch_entry(std::uint64_t hash) const {
    const Bucket& bucket = buckets_[hash & mask_];
    if (bucket.low_hash == static_cast<std::uint32_t>(hash)) {
      __builtin_prefetch(entries_.data() + bucket.entry.value());
    }
  }

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

  [[nodiscard]] EntryId find(const std::array<std::uint64_t, 4>& key_hash, std::uint64_t key_tag,
                             std::uint64_t hash) const {
    const auto low_hash = static_cast<std::uint32_t>(hash);
    for (std::uint64_t at = hash & mask_;; at = (at + 1) & mask_) {
      const Bucket& bucket = buckets_[at];
      if (bucket.entry == kNoEntry ||
          (bucket.low_hash == low_hash && entries_[bucket.entry.value()].holds(key_hash, key_tag))) {
        return bucket.entry;
      }
    }
  }
  // How many of the entries were found in a regular row.
  std::size_t follow(const KeyRun& run, std::span<EntryId> entries, RunCursor& cursor) const;
  void find_together(const KeyRun& run, std::span<EntryId> entries) const;
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
