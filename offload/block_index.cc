#include "offload/block_index.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace hostkv {
namespace {

constexpr std::size_t kInitialBuckets = 1024;
constexpr std::size_t kMostTogether = 32;
constexpr std::uint32_t kWidestStep = 16;  // between blocks that may lie in a regular row: one of each group, say
constexpr std::uint32_t kStepsAhead = 12;

std::size_t buckets_for(std::size_t num_keys) {
  return std::bit_ceil(std::max(kInitialBuckets, 2 * num_keys + 1));
}

}  // namespace

BlockIndex::BlockIndex(std::size_t expected_keys) : buckets_(buckets_for(expected_keys)), mask_(buckets_.size() - 1) {
  entries_.reserve(expected_keys);
  free_entries_.reserve(expected_keys);
}

void BlockIndex::find_run(const KeyRun& run, std::span<EntryId> entries, RunCursor& cursor) const {
  std::size_t done = 0;
  while (done < entries.size()) {
    if (cursor.step != 0) {
      const std::size_t num_followed = follow(run.from(done), entries.subspan(done), cursor);
      cursor.num_together = num_followed > 0 ? 2 : cursor.num_together;
      done += num_followed;
    }
    const auto together = entries.subspan(done, std::min(cursor.num_together, entries.size() - done));
    find_together(run.from(done), together);
    for (const EntryId id : together) {
      const std::uint32_t step = id.value() - cursor.last.value();
      const bool are_near = id != kNoEntry && cursor.last != kNoEntry && step + kWidestStep <= 2 * kWidestStep;
      cursor.step = are_near ? step : 0;
      cursor.last = id;
    }
    cursor.num_together = std::min(2 * cursor.num_together, kMostTogether);
    done += together.size();
  }
}

std::size_t BlockIndex::follow(const KeyRun& run, std::span<EntryId> entries, RunCursor& cursor) const {
  const auto num_entries = static_cast<std::uint32_t>(entries_.size());
  std::uint32_t next = cursor.last.value() + cursor.step;
  std::size_t found = 0;
  for (; found < entries.size() && next < num_entries; ++found, next += cursor.step) {
    if (const std::uint32_t ahead = next + kStepsAhead * cursor.step; ahead < num_entries) {
      __builtin_prefetch(&entries_[ahead], 1);
    }
    const IndexEntry& entry = entries_[next];
    if (!entry.is_known() || !entry.holds(run.words(found), run.tag)) {
      break;
    }
    entries[found] = EntryId{next};
  }
  cursor.last = EntryId{next - cursor.step};
  return found;
}

void BlockIndex::find_together(const KeyRun& run, std::span<EntryId> entries) const {
  std::array<std::uint64_t, kMostTogether> hashes;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    hashes[i] = run[i].mixed;
    prefetch(hashes[i]);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    prefetch_entry(hashes[i]);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i] = find(run.words(i), run.tag, hashes[i]);
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
