#include "offload/offload_cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace hostkv {
namespace {

constexpr std::size_t kWantsAhead = 16;
constexpr std::size_t kVictimsTogether = 8;
constexpr std::uint64_t kMostPrepared = 1U << 20U;  // keys that the index has room for from the start

}  // namespace

OffloadCache::OffloadCache(std::vector<std::uint32_t> slots_per_slab, std::uint64_t num_slabs,
                           std::unique_ptr<EvictionPolicy> policy)
    : index_(std::min(num_slabs * *std::ranges::max_element(slots_per_slab), kMostPrepared)),
      slots_(std::move(slots_per_slab), num_slabs),
      policy_(std::move(policy)),
      entry_of_slot_(num_slabs * slots_.max_slots_per_slab(), kNoEntry) {}

bool OffloadCache::reserve(std::span<const StoreWant> wants, std::uint32_t chain, std::vector<EntryId>& reserved,
                           bool urgent) {
  const std::size_t before = reserved.size();
  for (std::size_t i = 0; i < wants.size(); ++i) {
    const StoreWant& want = wants[i];
    if (i + kWantsAhead < wants.size()) {
      index_.prefetch(hash_of(wants[i + kWantsAhead].key));
    }
    if (i % kVictimsTogether == 0 && i + 1 < wants.size() && !slots_.has_room(want.size_class)) {
      prefetch_victims(want.size_class);
    }
    const SlotId slot = acquire_slot(want.size_class, chain, urgent);
    if (slot == kNoSlot) {
      for (; reserved.size() > before; reserved.pop_back()) {  // nobody was told of them
        index_.orphan(reserved.back());
        unpin(reserved.back());
      }
      return false;
    }
    const EntryId id = index_.insert(want.key, slot);
    IndexEntry& entry = index_.entry(id);
    entry.chain = chain;
    entry.prefix_closed = want.prefix_closed;
    entry.size_class = static_cast<std::uint16_t>(want.size_class);
    entry.pins = 1;
    entry_at(slot) = id;
    ++num_pinned_;
    reserved.push_back(id);
  }
  return true;
}

// Of those that go after the ones until the next call: the table's lines of the first, the entries of the others.
void OffloadCache::prefetch_victims(std::uint32_t size_class) const {
  std::array<EntryId, 3 * kVictimsTogether> victims;
  const std::size_t count = policy_->first_victims(size_class, victims);
  for (std::size_t i = 2 * kVictimsTogether; i < count; ++i) {
    __builtin_prefetch(&index_.entry(victims[i]), 1);
  }
  for (std::size_t i = kVictimsTogether; i < std::min(count, 2 * kVictimsTogether); ++i) {
    index_.prefetch(index_.entry(victims[i]).low_hash);
  }
}

void OffloadCache::publish(EntryId id) {
  publish_all(std::span(&id, 1));
}

void OffloadCache::publish_all(std::span<const EntryId> ids) {
  for (const EntryId id : ids) {
    IndexEntry& entry = index_.entry(id);
    if (entry.state == EntryState::kStoring) {
      entry.state = EntryState::kReady;
      ++num_ready_;
      record(KeyEventKind::kStored, id);
    }
  }
  unpin_all(ids);
}

void OffloadCache::abort(EntryId id) {
  if (index_.entry(id).state == EntryState::kStoring) {
    record(KeyEventKind::kDropped, id);
    tear(chain_of(id));
    index_.orphan(id);
  }
  unpin(id);
}

void OffloadCache::pin(EntryId id) {
  pin_all(std::span(&id, 1));
}

void OffloadCache::unpin(EntryId id) {
  unpin_all(std::span(&id, 1));
}

void OffloadCache::pin_all(std::span<const EntryId> ids) {
  gathered_.clear();
  for (const EntryId id : ids) {
    if (index_.entry(id).pins++ == 0) {
      gathered_.push_back(id);
    }
  }
  num_pinned_ += gathered_.size();
  policy_->remove_candidates(gathered_);
}

void OffloadCache::unpin_all(std::span<const EntryId> ids) {
  gathered_.clear();
  for (const EntryId id : ids) {
    IndexEntry& entry = index_.entry(id);
    HOSTKV_CHECK(entry.pins > 0, "R4: each pin is undone once");
    if (--entry.pins > 0) {
      continue;
    }
    --num_pinned_;
    if (entry.state != EntryState::kReady) {
      slots_.free(end_entry(id));
      continue;
    }
    if (!gathered_.empty() && class_of(gathered_.front()) != entry.size_class) {
      flush_candidates();
    }
    gathered_.push_back(id);
  }
  flush_candidates();
}

void OffloadCache::flush_candidates() {
  if (!gathered_.empty()) {
    policy_->add_candidates(gathered_, class_of(gathered_.front()));
    gathered_.clear();
  }
}

// An entry may be named twice: its slot was used again by the same chain.
void OffloadCache::touch_chain(std::span<const EntryId> ids, std::uint32_t chain) {
  touched_.clear();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + kWantsAhead < ids.size()) {
      __builtin_prefetch(&index_.entry(ids[i + kWantsAhead]), 1);
    }
    if (is_candidate(ids[i]) && chain_of(ids[i]) == chain) {
      touched_.push_back(ids[i]);
    }
  }
  pin_all(touched_);
  unpin_all(touched_);
}

void OffloadCache::drop(EntryId id) {
  if (!index_.entry(id).is_known()) {
    return;
  }
  record(index_.entry(id).state == EntryState::kReady ? KeyEventKind::kRemoved : KeyEventKind::kDropped, id);
  forget(id);
}

// REQUIRES: its key is known.
void OffloadCache::forget(EntryId id) {
  const bool candidate = is_candidate(id);
  tear(chain_of(id));
  if (index_.entry(id).state == EntryState::kReady) {
    --num_ready_;
  }
  index_.orphan(id);
  if (candidate) {
    policy_->remove_candidate(id);
    slots_.free(end_entry(id));
  }
}

void OffloadCache::clear() {
  for (std::uint32_t i = 0; i < index_.entries().size(); ++i) {
    const EntryId id{i};
    if (index_.entry(id).state == EntryState::kStoring) {
      record(KeyEventKind::kDropped, id);
    }
    if (index_.entry(id).is_known()) {
      forget(id);
    }
  }
  if (events_ != nullptr) {
    events_->emplace_back().kind = KeyEventKind::kCleared;
  }
}

void OffloadCache::open_chain(std::uint32_t chain) {
  living_chains_.try_emplace(chain, false);
}

void OffloadCache::close_chain(std::uint32_t chain) {
  living_chains_.erase(chain);
}

bool OffloadCache::is_torn(std::uint32_t chain) const {
  const auto at = living_chains_.find(chain);
  return at == living_chains_.end() || at->second;
}

void OffloadCache::mend(std::uint32_t chain) {
  if (const auto at = living_chains_.find(chain); at != living_chains_.end()) {
    at->second = false;
    last_torn_ = kNoChain;
  }
}

void OffloadCache::tear(std::uint32_t chain) {
  ++num_removals_;
  if (chain == last_torn_) {
    return;
  }
  last_torn_ = chain;
  if (const auto at = living_chains_.find(chain); at != living_chains_.end()) {
    at->second = true;
  }
}

void OffloadCache::write_event(KeyEventKind kind, EntryId id) const {
  const IndexEntry& entry = index_.entry(id);
  events_->push_back(KeyEvent{.hash = entry.key_hash, .tag = entry.key_tag, .request = {}, .kind = kind});
}

// The reserve is the last resort of an urgent set: as long as something can be evicted it stays whole. A slab that goes
// for another set refills it first, so more than one may have to go.
SlotId OffloadCache::acquire_slot(std::uint32_t size_class, std::uint32_t chain, bool urgent) {
  SlotId slot = take_free(size_class, false);
  if (slot == kNoSlot && evict_oldest_slab(size_class, chain)) {
    slot = take_free(size_class, urgent);
  }
  if (slot == kNoSlot) {
    slot = evict_and_reuse(size_class, chain);
  }
  while (slot == kNoSlot && evict_any_slab(size_class, chain)) {
    slot = take_free(size_class, urgent);
  }
  return slot == kNoSlot && urgent ? take_free(size_class, urgent) : slot;
}

SlotId OffloadCache::take_free(std::uint32_t size_class, bool urgent) {
  return slots_.has_room(size_class, urgent) ? slots_.allocate(size_class, urgent).value_or(kNoSlot) : kNoSlot;
}

// The slab of the oldest block of all, where that block has another size or the reserve wants a slab.
bool OffloadCache::evict_oldest_slab(std::uint32_t size_class, std::uint32_t chain) {
  if (slots_.num_size_classes() == 1 && !slots_.reserve_is_short()) {
    return false;
  }
  const EntryId oldest = policy_->victim();
  if (oldest == kNoEntry || (class_of(oldest) == size_class && !slots_.reserve_is_short()) ||
      !may_evict_slab(slab_of(slot(oldest)), chain)) {
    return false;
  }
  evict_slab(slab_of(slot(oldest)));
  return true;
}

// One block of the same size goes; its slot changes hands without a detour through the free ones.
SlotId OffloadCache::evict_and_reuse(std::uint32_t size_class, std::uint32_t chain) {
  EntryId victim = policy_->victim(size_class);
  for (int passed = 0; victim != kNoEntry && passed < kMaxPassedOver; ++passed) {
    if (may_evict(victim, chain)) {
      return evict(victim);
    }
    victim = policy_->next_victim(victim);
  }
  return kNoSlot;
}

// A slab is often held by one block that was reserved a moment ago: then the next one goes.
bool OffloadCache::evict_any_slab(std::uint32_t size_class, std::uint32_t chain) {
  for (std::uint32_t c = 0; c < slots_.num_size_classes(); ++c) {
    EntryId victim = c == size_class ? kNoEntry : policy_->victim(c);
    for (int passed = 0; victim != kNoEntry && passed < kMaxPassedOver; ++passed) {
      const std::uint64_t slab = slab_of(slot(victim));
      if (may_evict_slab(slab, chain)) {
        evict_slab(slab);
        return true;
      }
      victim = policy_->next_victim(victim);
    }
  }
  return false;
}

bool OffloadCache::may_evict(EntryId id, std::uint32_t chain) const {
  const IndexEntry& entry = index_.entry(id);
  return is_candidate(id) && !(entry.prefix_closed && entry.chain == chain && chain != kNoChain);
}

bool OffloadCache::may_evict_slab(std::uint64_t slab, std::uint32_t chain) const {
  return std::ranges::all_of(entries_of_slab(slab), [&](EntryId id) { return id == kNoEntry || may_evict(id, chain); });
}

SlotId OffloadCache::evict(EntryId id) {
  record(KeyEventKind::kRemoved, id);
  policy_->remove_candidate(id);
  tear(chain_of(id));
  --num_ready_;
  ++num_evictions_;
  return end_entry(id);
}

void OffloadCache::evict_slab(std::uint64_t slab) {
  for (const EntryId id : entries_of_slab(slab)) {
    if (id != kNoEntry) {
      slots_.free(evict(id));
    }
  }
}

SlotId OffloadCache::end_entry(EntryId id) {
  const SlotId freed = slot(id);
  entry_at(freed) = kNoEntry;
  index_.erase(id);
  return freed;
}

Status OffloadCache::check_conservation() const {
  std::uint64_t used = 0;
  std::uint64_t ready = 0;
  std::uint64_t pinned = 0;
  std::uint64_t keys = 0;
  std::uint64_t candidates = 0;
  for (std::uint32_t i = 0; i < index_.entries().size(); ++i) {
    const IndexEntry& entry = index_.entry(EntryId{i});
    if (entry.state == EntryState::kFree) {
      continue;
    }
    ++used;
    ready += entry.state == EntryState::kReady ? 1U : 0U;
    pinned += entry.pins > 0 ? 1U : 0U;
    keys += entry.state != EntryState::kOrphaned ? 1U : 0U;
    candidates += is_candidate(EntryId{i}) ? 1U : 0U;
    const std::uint64_t at = slab_of(entry.slot) * slots_.max_slots_per_slab() + index_in_slab(entry.slot);
    if (entry_of_slot_[at] != EntryId{i}) {
      return {StatusCode::kInternal, "R15: slot " + std::to_string(entry.slot.value()) + " has two owners"};
    }
    if (entry.state != EntryState::kReady && entry.pins == 0) {
      return {StatusCode::kInternal, "R15: entry " + std::to_string(i) + " is neither stored nor pinned"};
    }
  }
  std::uint64_t listed = 0;
  for (std::uint32_t c = 0; c < slots_.num_size_classes(); ++c) {
    listed += policy_->num_candidates(c);
  }
  const std::array<std::pair<std::uint64_t, std::uint64_t>, 5> pairs = {{{used, slots_.num_used_slots()},
                                                                         {ready, num_ready_},
                                                                         {pinned, num_pinned_},
                                                                         {keys, index_.num_keys()},
                                                                         {candidates, listed}}};
  static constexpr std::array<const char*, 5> kNames = {"used slots", "ready", "pinned", "keys", "candidates"};
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i].first != pairs[i].second) {
      return {StatusCode::kInternal, std::string("R15: ") + kNames[i] + ": counted " + std::to_string(pairs[i].first) +
                                         ", booked " + std::to_string(pairs[i].second)};
    }
  }
  return {};
}

}  // namespace hostkv
