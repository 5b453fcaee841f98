#ifndef HOSTKV_OFFLOAD_LRU_POLICY_H_
#define HOSTKV_OFFLOAD_LRU_POLICY_H_

#include <cstdint>
#include <vector>

#include "offload/eviction_policy.h"

namespace hostkv {

// Least recently used, one list per size class. Chains lose their tail first because callers hand a chain's blocks over
// tail first: the head is then the most recent.
class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(std::uint32_t num_size_classes) : lists_(num_size_classes) {}

  void add_candidate(EntryId entry, std::uint32_t size_class) override { append(entry, size_class); }
  void remove_candidate(EntryId entry) override { remove_candidates(std::span(&entry, 1)); }
  void add_candidates(std::span<const EntryId> entries, std::uint32_t size_class) override;
  void remove_candidates(std::span<const EntryId> entries) override;
  [[nodiscard]] EntryId victim(std::uint32_t size_class) const override { return lists_[size_class].oldest; }
  [[nodiscard]] EntryId next_victim(EntryId candidate) const override { return links_[candidate.value()].newer; }
  [[nodiscard]] std::size_t first_victims(std::uint32_t size_class, std::span<EntryId> victims) const override;
  [[nodiscard]] EntryId victim() const override;
  [[nodiscard]] std::uint64_t num_candidates(std::uint32_t size_class) const override {
    return lists_[size_class].size;
  }

 private:
  static constexpr std::size_t kPrefetchDistance = 16;
  static constexpr std::uint32_t kNoClass = 0xFFFFFFFFU;
  struct Link {
    EntryId older = kNoEntry;
    EntryId newer = kNoEntry;
    std::uint32_t stamp = 0;  // when it became a candidate; compared by difference, so that it may wrap
    std::uint32_t size_class = kNoClass;
  };
  struct List {
    EntryId oldest = kNoEntry;
    EntryId newest = kNoEntry;
    std::uint64_t size = 0;
  };

  Link& link(EntryId entry) { return links_[entry.value()]; }
  void prefetch(std::span<const EntryId> entries, std::size_t at) const {
    if (at < entries.size() && entries[at].value() < links_.size()) {
      __builtin_prefetch(links_.data() + entries[at].value(), 1);
    }
  }
  void append(EntryId entry, std::uint32_t size_class);
  // Takes a piece of a list out. Its entries' own links stay as they are.
  void unlink(EntryId oldest, EntryId newest, std::uint64_t count);

  std::vector<Link> links_;  // by EntryId
  std::vector<List> lists_;  // by size class
  std::uint32_t clock_ = 0;
};

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_LRU_POLICY_H_
