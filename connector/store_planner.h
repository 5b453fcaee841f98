#ifndef HOSTKV_CONNECTOR_STORE_PLANNER_H_
#define HOSTKV_CONNECTOR_STORE_PLANNER_H_

#include <cstdint>
#include <vector>

#include "connector/job_table.h"
#include "connector/request_state.h"
#include "hostkv/connector.h"
#include "hostkv/geometry.h"
#include "hostkv/metrics.h"
#include "offload/offload_cache.h"

namespace hostkv {

// Eager stores: which blocks of a request go to the host now.
//
// The unit is a boundary set: the blocks of all groups that a request resuming at the boundary needs. Its missing
// blocks get slots together or not at all (R2, R20); what is stored or on the way already is left alone and not
// refreshed: a device hit must not make the host a mirror of the device. Recurrent align states come from hand-offs
// only, never from a table by position; other groups' tables are read by position. Keys are captured here (R8).
//
// Thread-safety: one thread. Ownership: borrows everything. Cost: proportional to the blocks behind the request's
// cursor; after a set that found no room the next try waits until the backlog has doubled. Metrics: what is stored is
// counted per set, what is present or finds no room once a block and admission.
class StorePlanner {
 public:
  struct Context {
    const Geometry& geometry;
    OffloadCache& cache;
    EngineBlocks& engine;
    SchedulerMetrics& metrics;
    std::uint64_t namespace_fingerprint = 0;
    std::vector<std::uint32_t> class_of_group;  // [num_groups]
  };

  explicit StorePlanner(Context context);

  // False: plan() would find no boundary to try; what most steps of a decoding request answer. O(1).
  [[nodiscard]] bool may_plan(const RequestState& request, std::int64_t storable_tokens) const;
  // Appends the boundary sets of `request` that end at or before `storable_tokens` (positions written by a forward,
  // this step included).
  void plan(RequestState& request, std::int64_t storable_tokens, PlannedJob& job);

 private:
  enum class Outcome : std::uint8_t { kStored, kNothingNew, kUnstorable, kNoRoom, kWaits };

  [[nodiscard]] std::vector<std::int64_t> boundaries_to_try(const RequestState& request,
                                                            std::int64_t storable_tokens) const;
  Outcome try_boundary(RequestState& request, std::int64_t boundary_tokens, std::int64_t storable_tokens,
                       PlannedJob& job);
  void settle(RequestState& request, std::int64_t boundary_tokens, std::int64_t storable_tokens, Outcome outcome);
  bool collect(const RequestState& request, std::int64_t boundary_tokens, std::int64_t storable_tokens, bool waits);
  bool collect_groups(const RequestState& request, std::int64_t boundary_tokens, std::int64_t storable_tokens,
                      bool waits, bool full_ones);
  bool collect_group(const RequestState& request, GroupIndex group, BlockIndexRange range,
                     std::int64_t boundary_tokens);
  [[nodiscard]] BlockIndexRange wanted_range(const RequestState& request, GroupIndex group,
                                             std::int64_t boundary_tokens, std::int64_t storable_tokens,
                                             bool waits) const;
  [[nodiscard]] BlockIndexRange left_out_by_load(const RequestState& request, GroupIndex group) const;
  [[nodiscard]] static BlockId handed_off(const RequestState& request, GroupIndex group, std::int64_t boundary_tokens);
  void commit(PlannedJob& job);

  Context context_;
  bool can_store_;
  bool has_align_states_ = false;
  std::int64_t max_drop_tokens_ = 0;  // how far behind a boundary a lookup may look
  // The set being built.
  std::vector<StoreWant> wants_;
  std::vector<JobBlock> sources_;  // entry filled in by commit
  std::vector<EntryId> reserved_;
  std::vector<BlockId> pinned_;
  std::int64_t num_present_ = 0;    // of the set, not counted yet
  std::int64_t num_new_wants_ = 0;  // of the wants those that were not counted yet
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_STORE_PLANNER_H_
