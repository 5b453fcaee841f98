#include "offload/lru_policy.h"

#include "base/check.h"

namespace hostkv {

void LruPolicy::add_candidates(std::span<const EntryId> entries, std::uint32_t size_class) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    prefetch(entries, i + kPrefetchDistance);
    append(entries[i], size_class);
  }
}

void LruPolicy::remove_candidates(std::span<const EntryId> entries) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    prefetch(entries, i + kPrefetchDistance);
    unlink(entries[i]);
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

void LruPolicy::unlink(EntryId entry) {
  const Link removed = link(entry);
  HOSTKV_DCHECK(removed.size_class != kNoClass, "R15: only a candidate is removed");
  List& list = lists_[removed.size_class];
  (removed.older == kNoEntry ? list.oldest : link(removed.older).newer) = removed.newer;
  (removed.newer == kNoEntry ? list.newest : link(removed.newer).older) = removed.older;
  link(entry).size_class = kNoClass;
  --list.size;
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
