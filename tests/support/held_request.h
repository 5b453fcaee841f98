#ifndef HOSTKV_TESTS_SUPPORT_HELD_REQUEST_H_
#define HOSTKV_TESTS_SUPPORT_HELD_REQUEST_H_

// A request that owns its tables, for tests of recovery: `HeldTables a(1, 256, {{1, 2, 3}, {0, 7}}, {{}, {0, 128}})`.

#include <cstdint>
#include <utility>
#include <vector>

#include "hostkv/recovery.h"

namespace hostkv::testing {

struct HeldTables {
  RequestId id{};
  std::int64_t settled_tokens = 0;
  LoadMode mode = LoadMode::kAsynchronous;
  std::vector<std::vector<BlockId>> tables;             // [groups]
  std::vector<std::vector<std::int64_t>> state_tokens;  // [groups], empty but for recurrent groups

  HeldTables() = default;
  HeldTables(std::uint64_t number, std::int64_t settled, const std::vector<std::vector<std::uint32_t>>& blocks,
             std::vector<std::vector<std::int64_t>> states = {}, LoadMode load_mode = LoadMode::kAsynchronous)
      : id{number}, settled_tokens(settled), mode(load_mode), state_tokens(std::move(states)) {
    state_tokens.resize(blocks.size());
    for (const auto& of_group : blocks) {
      std::vector<BlockId>& table = tables.emplace_back();
      for (const std::uint32_t block : of_group) {
        table.push_back(BlockId{block});
      }
    }
  }
};

// What the planner is given; the tables have to outlive it.
class HeldViews {
 public:
  explicit HeldViews(const std::vector<HeldTables>& requests) {
    groups_.resize(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const HeldTables& held = requests[i];
      for (std::size_t g = 0; g < held.tables.size(); ++g) {
        groups_[i].push_back({held.tables[g], held.state_tokens[g]});
      }
      views_.push_back({.id = held.id, .settled_tokens = held.settled_tokens, .mode = held.mode, .groups = groups_[i]});
    }
  }
  [[nodiscard]] const std::vector<HeldRequest>& all() const { return views_; }
  [[nodiscard]] const HeldRequest& front() const { return views_.front(); }

 private:
  std::vector<std::vector<HeldBlocks>> groups_;
  std::vector<HeldRequest> views_;
};

inline FailedLoad failed_load(std::uint64_t request, std::uint32_t group, std::uint32_t block, std::uint32_t rank = 0) {
  return {RequestId{request}, GroupIndex{group}, BlockId{block}, RankIndex{rank}};
}

// The answer of a fresh planner, -1 where there is none.
inline std::int64_t safe_boundary_of(const Geometry& geometry, const HeldTables& held,
                                     const std::vector<FailedLoad>& failed) {
  RecoveryPlanner planner(geometry);
  const std::vector<HeldTables> one = {held};
  return planner.safe_boundary(HeldViews(one).front(), failed).value_or(-1);
}

}  // namespace hostkv::testing

#endif  // HOSTKV_TESTS_SUPPORT_HELD_REQUEST_H_
