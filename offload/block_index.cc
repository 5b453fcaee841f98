#include "offload/block_index.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace hostkv {
namespace {

constexpr std::size_t kInitialBuckets = 1024;

std::size_t buckets_for(std::size_t num_keys) {
  return std::bit_ceil(std::max(kInitialBuckets, 2 * num_keys + 1));
}

}  // namespace

BlockIndex::BlockIndex(std::size_t expected_keys) : buckets_(buckets_for(expected_keys)), mask_(buckets_.size() - 1) {
  entries_.reserve(expected_keys);
  free_entries_.reserve(expected_keys);
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
  const auto low_hash = static_cast<std::uint32_t>(hash_of(key));
  entries_[id.value()] = IndexEntry{
      .key_hash = key.hash, .key_tag = key.tag, .slot = slot, .low_hash = low_hash, .state = EntryState::kStoring};
  place(Bucket{.low_hash = low_hash, .entry = id});
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
  std::uint64_t hole = entry(id).low_hash & mask_;
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
