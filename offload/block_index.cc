#include "offload/block_index.h"

#include "base/check.h"

namespace hostkv {
namespace {

constexpr std::size_t kInitialBuckets = 1024;

std::uint32_t low_half(std::uint64_t hash) {
  return static_cast<std::uint32_t>(hash);
}

}  // namespace

BlockIndex::BlockIndex() : buckets_(kInitialBuckets), mask_(kInitialBuckets - 1) {}

EntryId BlockIndex::find(const OffloadKey& key, std::uint64_t hash) const {
  const std::uint32_t low_hash = low_half(hash);
  for (std::uint64_t at = hash & mask_;; at = (at + 1) & mask_) {
    const Bucket& bucket = buckets_[at];
    if (bucket.entry == kNoEntry) {
      return kNoEntry;
    }
    if (bucket.low_hash == low_hash && entries_[bucket.entry.value()].key == key) {
      return bucket.entry;
    }
  }
}

EntryId BlockIndex::insert(const OffloadKey& key, SlotId slot) {
  HOSTKV_DCHECK(find(key) == kNoEntry, "R9: a key is stored once");
  if ((num_keys_ + 1) * 2 > buckets_.size()) {
    grow();
  }
  EntryId id;
  if (free_entries_.empty()) {
    id = EntryId{static_cast<std::uint32_t>(entries_.size())};
    entries_.emplace_back();
  } else {
    id = free_entries_.back();
    free_entries_.pop_back();
  }
  entries_[id.value()] = IndexEntry{.key = key, .slot = slot, .state = EntryState::kStoring};
  place(Bucket{.low_hash = low_half(hash_of(key)), .entry = id});
  ++num_keys_;
  return id;
}

void BlockIndex::orphan(EntryId id) {
  take_out(id);
  entry(id).state = EntryState::kOrphaned;
}

void BlockIndex::erase(EntryId id) {
  HOSTKV_DCHECK(entry(id).state != EntryState::kFree, "R15: an entry ends once");
  if (entry(id).state != EntryState::kOrphaned) {
    take_out(id);
  }
  entry(id).state = EntryState::kFree;
  free_entries_.push_back(id);
}

void BlockIndex::place(Bucket bucket) {
  std::uint64_t at = bucket.low_hash & mask_;
  while (buckets_[at].entry != kNoEntry) {
    at = (at + 1) & mask_;
  }
  buckets_[at] = bucket;
}

// Linear probing without tombstones: what follows in the run moves up where its home allows it.
void BlockIndex::take_out(EntryId id) {
  std::uint64_t hole = hash_of(entry(id).key) & mask_;
  while (buckets_[hole].entry != id) {
    HOSTKV_DCHECK(buckets_[hole].entry != kNoEntry, "R15: a key in the index is in the table");
    hole = (hole + 1) & mask_;
  }
  for (std::uint64_t at = (hole + 1) & mask_; buckets_[at].entry != kNoEntry; at = (at + 1) & mask_) {
    const std::uint64_t home = buckets_[at].low_hash & mask_;
    if (((at - home) & mask_) >= ((at - hole) & mask_)) {
      buckets_[hole] = buckets_[at];
      hole = at;
    }
  }
  buckets_[hole] = Bucket{};
  --num_keys_;
}

void BlockIndex::grow() {
  std::vector<Bucket> old(buckets_.size() * 2);
  old.swap(buckets_);
  mask_ = buckets_.size() - 1;
  for (const Bucket& bucket : old) {
    if (bucket.entry != kNoEntry) {
      place(bucket);
    }
  }
}

}  // namespace hostkv
