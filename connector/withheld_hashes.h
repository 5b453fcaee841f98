#ifndef HOSTKV_CONNECTOR_WITHHELD_HASHES_H_
#define HOSTKV_CONNECTOR_WITHHELD_HASHES_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

#include "hostkv/connector.h"
#include "hostkv/geometry.h"

namespace hostkv {

// Prefix hashes under which the device may hold what must not be stored: behind RequestInfo::max_offload_tokens of the
// request that computed them, or damaged by the engine (EngineTraits::damages_fine_hits). Lazy stores leave them out.
//
// Thread-safety: one thread. Ownership: its hashes. Cost: one probe a hash; keep_cached() asks the engine for all of
// them, and is due when they have doubled: there are never more than twice as many as the device holds and living
// requests have, or kFewHashes. Failure: none.
class WithheldHashes {
 public:
  static constexpr std::size_t kFewHashes = 1024;

  explicit WithheldHashes(const Geometry& geometry) : geometry_(geometry) {}

  void add(std::span<const std::byte> hash) { hashes_.emplace(text_of(hash)); }
  void remove(std::span<const std::byte> hash) {
    if (const auto at = hashes_.find(text_of(hash)); at != hashes_.end()) {
      hashes_.erase(at);
    }
  }
  void clear() { hashes_.clear(); }
  [[nodiscard]] bool contains(std::span<const std::byte> hash) const { return hashes_.contains(text_of(hash)); }
  [[nodiscard]] bool empty() const { return hashes_.empty(); }
  [[nodiscard]] std::size_t size() const { return hashes_.size(); }

  // There may be many that nobody needs: keep_cached() and settle() are worth their while.
  [[nodiscard]] bool is_due() const { return hashes_.size() > most_hashes_; }
  // Forgets the hashes under which the engine caches no block of any group.
  void keep_cached(EngineBlocks& engine);
  // Of `hashes` [n, hash_size_bytes] alone.
  void forget_uncached(EngineBlocks& engine, std::span<const std::byte> hashes, std::size_t hash_size_bytes);
  // As many again are allowed before it is due.
  void settle();

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  static std::string_view text_of(std::span<const std::byte> hash) {
    return {reinterpret_cast<const char*>(hash.data()), hash.size()};
  }

  const Geometry& geometry_;
  std::unordered_set<std::string, Hash, std::equal_to<>> hashes_;
  std::size_t most_hashes_ = kFewHashes;
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_WITHHELD_HASHES_H_
