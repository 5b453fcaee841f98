#include "bench/plan/flat_floor.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace hostkv::bench {
namespace {

using Clock = std::chrono::steady_clock;
using FlatKey = std::array<std::uint64_t, 4>;  // 32 bytes, as the engine's hashes are; all zero: no key

constexpr std::size_t kPrefetchDistance = 16;
constexpr int kRounds = 31;

class FlatTable {
 public:
  explicit FlatTable(std::int64_t num_keys) : random_(7) {
    std::size_t size = 1;
    while (size < 2 * static_cast<std::size_t>(num_keys)) {
      size *= 2;
    }
    table_.resize(size);
    for (std::int64_t i = 0; i < num_keys; ++i) {
      keys_.push_back(FlatKey{random_() | 1U, random_(), random_(), random_()});
      table_[find(keys_.back())] = keys_.back();
    }
  }

  double ns_of_run(std::size_t num_probes) {
    const std::size_t first = static_cast<std::size_t>(random_()) % (keys_.size() - num_probes + 1);
    std::size_t found = 0;
    const auto start = Clock::now();
    for (std::size_t i = 0; i < num_probes; ++i) {
      __builtin_prefetch(&table_[home(keys_[first + std::min(i + kPrefetchDistance, num_probes - 1)])]);
      found += find(keys_[first + i]);
    }
    const double ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
    benchmark::DoNotOptimize(found);
    return ns / static_cast<double>(num_probes);
  }

 private:
  [[nodiscard]] std::size_t home(const FlatKey& key) const { return key[0] & (table_.size() - 1); }
  [[nodiscard]] std::size_t find(const FlatKey& key) const {
    std::size_t at = home(key);
    while (table_[at] != key && table_[at] != FlatKey{}) {
      at = (at + 1) & (table_.size() - 1);
    }
    return at;
  }

  std::mt19937_64 random_;
  std::vector<FlatKey> table_;
  std::vector<FlatKey> keys_;
};

}  // namespace

double floor_ns_per_key(std::int64_t num_keys, std::int64_t num_probes) {
  static std::map<std::pair<std::int64_t, std::int64_t>, double> known;
  const auto [at, is_new] = known.try_emplace({num_keys, num_probes}, 1e9);
  if (is_new) {
    FlatTable table(num_keys);
    for (int round = 0; round < kRounds; ++round) {
      at->second = std::min(at->second, table.ns_of_run(static_cast<std::size_t>(num_probes)));
    }
  }
  return at->second;
}

}  // namespace hostkv::bench
