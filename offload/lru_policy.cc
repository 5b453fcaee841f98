#include "offload/lru_policy.h"

#include "base/check.h"

namespace hostkv {

void LruPolicy::add_candidates(std::span<const EntryId> entries, std::uint32_t size_class) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    prefetch(entries, i + kPrefetchDistance);
    append(entries[i], size_class);
  }
}

// Entries that stand in the list as they do here leave it together: only the ends of such a run are re-linked.
void LruPolicy::remove_candidates(std::span<const EntryId> entries) {
  for (std::size_t begin = 0; begin < entries.size();) {
    const bool to_older = begin + 1 < entries.size() && link(entries[begin]).older == entries[begin + 1];
    std::size_t end = begin + 1;
    while (end < entries.size() &&
           (to_older ? link(entries[end - 1]).older : link(entries[end - 1]).newer) == entries[end]) {
      prefetch(entries, end + kPrefetchDistance);
      ++end;
    }
    const auto run = entries.subspan(begin, end - begin);
    unlink(to_older ? run.back() : run.front(), to_older ? run.front() : run.back(), run.size());
    for (const EntryId entry : run) {
      link(entry).size_class = kNoClass;
    }
    begin = end;
  }
}

void LruPolicy::append(EntryId entry, std::uint32_t size_class) {
  if (entry.value() >= links_.size()) {
    links_.resize(std::size_t{entry.value()} + 1);
  }
  HOSTKV_DCHECK(link(entry).size_class == kNoClass, "R15: a candidate is added once");
  List& list = lists_[size_class];
  link(entry) = Link{.older = list.newest, .newer = kNoEntry, .stamp = clock_++, .size_class = size_class};
  if (list.newest == kNoEntry) {
    list.oldest = entry;
  } else {
    link(list.newest).newer = entry;
  }
  list.newest = entry;
  ++list.size;
}

void LruPolicy::unlink(EntryId oldest, EntryId newest, std::uint64_t count) {
  HOSTKV_DCHECK(link(oldest).size_class != kNoClass, "R15: only a candidate is removed");
  List& list = lists_[link(oldest).size_class];
  const EntryId older = link(oldest).older;
  const EntryId newer = link(newest).newer;
  (older == kNoEntry ? list.oldest : link(older).newer) = newer;
  (newer == kNoEntry ? list.newest : link(newer).older) = older;
  list.size -= count;
}

std::size_t LruPolicy::first_victims(std::uint32_t size_class, std::span<EntryId> victims) const {
  std::size_t count = 0;
  for (EntryId next = lists_[size_class].oldest; next != kNoEntry && count < victims.size();
       next = links_[next.value()].newer) {
    victims[count++] = next;
  }
  return count;
}

EntryId LruPolicy::victim() const {
  EntryId best = kNoEntry;
  std::uint32_t best_age = 0;
  for (const List& list : lists_) {
    if (list.oldest == kNoEntry) {
      continue;
    }
    const std::uint32_t age = clock_ - links_[list.oldest.value()].stamp;
    if (best == kNoEntry || age > best_age) {
      best = list.oldest;
      best_age = age;
    }
  }
  return best;
}

}  // namespace hostkv
