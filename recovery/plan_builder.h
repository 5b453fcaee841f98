#ifndef HOSTKV_RECOVERY_PLAN_BUILDER_H_
#define HOSTKV_RECOVERY_PLAN_BUILDER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hostkv/geometry.h"
#include "hostkv/recovery.h"
#include "recovery/bad_blocks.h"
#include "recovery/block_marks.h"
#include "recovery/boundary_walk.h"

namespace hostkv {

// How the failures that one rank knows touch a request. The least over the ranks is how it is touched.
enum class Touch : std::uint8_t {
  kShapeDiffers = 0,  // a rank names a group that the geometry does not have
  kFindable = 1,      // it holds a failed block that may be in the prefix cache
  kUnfindable = 2,    // it holds failed blocks, all of them targets of asynchronous loads
  kNone = 3,
};

// Turns failures of many requests into a plan.
//
// Call order: start(); add() or add_entries() for what failed; touch_of() as often as wanted; build() once. Several
// ranks go the same way with restart() between what each knows and what all know (plan_together.cc).
//
// What a failed load leads to spreads: a synchronous request has computed on it, what it wrote behind its settled
// tokens is void, and whoever found that in the prefix cache is touched too (spread()).
//
// Thread-safety: one thread. Ownership: keeps its memory between plans; views are read until build() is done.
class PlanBuilder {
 public:
  PlanBuilder(const Geometry& geometry, LoadFailurePolicy policy);

  // kInvalidArgument: a broken view, or two requests with one id.
  Status start(std::span<const HeldRequest> requests);
  void add(std::span<const FailedLoad> failed);
  [[nodiscard]] Touch touch_of(std::size_t request) const;

  // Exchange between ranks. Forgets what has failed; touches and entries of all ranks together follow.
  void restart();
  // Bytes that tell the others what has failed of one request. kUnfindable: its candidates. Below: one byte a table
  // entry of the groups that take part. kNone: nothing.
  [[nodiscard]] std::size_t num_bytes(std::size_t request, Touch touch) const;
  void write(std::size_t request, Touch touch, std::span<std::uint8_t> bytes);
  void add_entries(std::size_t request, std::span<const std::uint8_t> bytes);

  // `touches` [requests]. `safe` [requests]: candidates of those that are kUnfindable, where the blocks that failed are
  // known on other ranks only; empty: what was added says all.
  RecoveryPlan build(std::span<const Touch> touches, std::span<const std::span<const std::uint8_t>> safe);

 private:
  // A block that a request in front computes again.
  struct Promise {
    std::size_t table_index = 0;
    std::int64_t settled_tokens = 0;
  };

  [[nodiscard]] bool takes_part(GroupIndex group) const;
  // visit(group, block) for every table entry of the groups that take part, always in the same order.
  template <class Visit>
  void for_each_entry(std::size_t request, const Visit& visit) const;
  [[nodiscard]] std::optional<std::size_t> find_request(RequestId id) const;
  [[nodiscard]] bool is_synchronous(std::size_t request) const {
    return requests_[request].mode == LoadMode::kSynchronous;
  }
  void add_all_blocks(std::size_t request);

  // plan_spread.cc
  void spread(std::vector<Touch>& touches);
  std::vector<VoidBlock> take_computed_behind(std::span<const Touch> touches,
                                              std::vector<std::uint8_t>& has_spread) const;
  void append_computed_behind(std::size_t request, std::vector<VoidBlock>& blocks) const;
  [[nodiscard]] bool holds_void_of_others(std::size_t request) const;
  void append_evicted(std::size_t request, std::vector<EvictedBlock>& evicted) const;

  // plan_actions.cc
  RequestRecovery recover(std::size_t request, Touch touch, std::span<const std::uint8_t> safe);
  [[nodiscard]] std::int64_t safe_boundary(std::size_t request, std::span<const std::uint8_t> safe);
  [[nodiscard]] RecoveryAction action_of(std::size_t request) const;
  // Of one group of attention over all tokens: goes on in place, leaving to requests in front what they compute again.
  void rewind_sharing(std::size_t request, Touch touch, RequestRecovery& recovery);
  [[nodiscard]] bool is_promised(std::size_t request, std::size_t table_index) const;
  [[nodiscard]] std::vector<BlockIndexRange> kept_at(std::size_t request, std::int64_t boundary_tokens) const;

  const Geometry* geometry_;
  LoadFailurePolicy policy_;
  std::span<const HeldRequest> requests_;
  std::vector<std::pair<RequestId, std::size_t>> by_id_;  // ascending
  std::vector<std::uint8_t> shape_differs_;               // [requests]
  BadBlocks bad_;
  BlockMarks findable_;  // failed blocks that were not a target of a known asynchronous load
  BoundaryWalk walk_;
  std::unordered_map<BlockId, Promise> promised_;
};

}  // namespace hostkv

#endif  // HOSTKV_RECOVERY_PLAN_BUILDER_H_
