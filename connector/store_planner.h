#ifndef HOSTKV_CONNECTOR_STORE_PLANNER_H_
#define HOSTKV_CONNECTOR_STORE_PLANNER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "connector/job_table.h"
#include "connector/request_state.h"
#include "connector/withheld_hashes.h"
#include "hostkv/connector.h"
#include "hostkv/geometry.h"
#include "hostkv/metrics.h"
#include "offload/key_events.h"
#include "offload/offload_cache.h"

namespace hostkv {

// Which blocks of a request go to the host now.
//
// The unit is a boundary set: the blocks of all groups that a request resuming at the boundary needs. Its missing
// blocks get slots together or not at all (R2, R20); what is stored or on the way already is left alone and not
// refreshed: a device hit must not make the host a mirror of the device. Boundaries are the scheduler blocks, or, where
// recurrent align states are kept, those at which a state was handed off; such a state comes from its hand-off only,
// never from a table by position. Other groups' tables are read by position, the block that a boundary lies inside of
// included: it is stored under that boundary's key. Keys are captured here (R8).
//
// With leave_to_device() what the device keeps under its own key is left out: the victim planner takes it when the
// device is about to drop it.
//
// Thread-safety: one thread. Ownership: borrows everything; keeps scratch memory. Cost: proportional to the blocks
// behind the request's cursor, planned together where they fit together; after a set that found no room the next try
// waits until the backlog has doubled. Where a block of the chain has left, or may have, because it is others', all of
// it is looked for again when the chain has doubled and at its end: a constant number of probes a block. Metrics: what
// is stored is counted per set, what is present or finds no room once a block and admission.
class StorePlanner {
 public:
  struct Context {
    const Geometry& geometry;
    OffloadCache& cache;
    EngineBlocks& engine;
    SchedulerMetrics& metrics;
    std::uint64_t namespace_fingerprint = 0;
    std::vector<std::uint32_t> class_of_group;  // [num_groups]
    const WithheldHashes* withheld = nullptr;   // what lazy stores leave out; null: nothing
    const WithheldHashes* damaged = nullptr;    // and what they leave out as damaged by the engine
    KeyEvents* events = nullptr;                // what is planned is written there; null: nobody wants to know
  };
  // kEnd: the request computes nothing any more.
  enum class Moment : std::uint8_t { kStep, kEnd };

  explicit StorePlanner(Context context);

  void leave_to_device(bool leave) { leaves_to_device_ = leave; }

  // False: plan() would find nothing to try; what most steps of a decoding request answer. O(1).
  [[nodiscard]] bool may_plan(const RequestState& request, std::int64_t storable_tokens, Moment moment) const;
  // Appends the boundary sets of `request` that end at or before `storable_tokens` (positions written by a forward,
  // this step included).
  void plan(RequestState& request, std::int64_t storable_tokens, Moment moment, PlannedJob& job);

 private:
  enum class Outcome : std::uint8_t { kStored, kNothingNew, kNoRoom };
  struct Candidate {
    const std::byte* engine_hash = nullptr;  // of its key, in the request's chain
    std::uint64_t hash = 0;                  // hash_of(its key)
    std::int64_t end_tokens = 0;             // of the key
    std::uint32_t ordinal = 0;               // of its set among those that are tried together
    GroupIndex group;
    std::uint32_t block_index = kHandedOff;  // in the group's table
    BlockId source;                          // of a handed-off state; of others once they are known to be missing
  };
  static constexpr std::uint32_t kHandedOff = 0xFFFFFFFFU;

  // A group's table, and what of it stands between the device's own blocks and a load's: never written. Entries are
  // asked for from `first_read` on: of windows those of the boundaries that are tried, of full attention first those
  // behind what is stored, and more where one before that has left the host.
  struct Source {
    GroupTable table;
    std::int64_t first_read = 0;
    BlockIndexRange left_out;
    // Boundaries are looked at in ascending order, so that each block of a window is looked at once.
    std::int64_t scanned_end = 0;
    std::int64_t last_gone = -1;  // the last of the scanned blocks that is neither here nor stored
    [[nodiscard]] BlockId at(std::int64_t index) const {
      const bool readable = index >= first_read && index < std::ssize(table) &&
                            (index < left_out.first_block || index >= left_out.end_block);
      return readable ? table[static_cast<std::size_t>(index)] : kNullBlock;
    }
  };

  // To the boundary before.
  [[nodiscard]] std::int64_t round_down(std::int64_t tokens) const {
    const std::int64_t alignment = context_.geometry.scheduler_block_tokens();
    return tokens / alignment * alignment;
  }
  void name_keys(const RequestState& request);
  void read_tables(const RequestState& request, std::int64_t storable_tokens);
  [[nodiscard]] bool must_verify(const RequestState& request, std::int64_t storable_tokens, Moment moment) const;
  void find_boundaries(const RequestState& request, std::int64_t storable_tokens);
  [[nodiscard]] std::int64_t end_of_tables() const;
  void drop_unstorable(const RequestState& request, std::int64_t storable_tokens);
  [[nodiscard]] bool is_storable(const RequestState& request, GroupIndex group, std::int64_t boundary_tokens,
                                 std::int64_t storable_tokens);
  void plan_boundaries(RequestState& request, std::int64_t storable_tokens, PlannedJob& job);
  Outcome try_sets(RequestState& request, std::span<const std::int64_t> boundaries, std::int64_t storable_tokens,
                   PlannedJob& job);
  void plan_one(RequestState& request, std::int64_t boundary_tokens, std::int64_t storable_tokens, PlannedJob& job);
  void mark_verified(RequestState& request, std::int64_t storable_tokens) const;
  void book_no_room(RequestState& request, std::int64_t boundary_tokens);
  void book_stored(RequestState& request, std::int64_t boundary_tokens, std::int64_t storable_tokens);

  void collect(const RequestState& request, std::span<const std::int64_t> boundaries, std::int64_t storable_tokens,
               std::int64_t done_tokens);
  void collect_full(const RequestState& request, GroupIndex group, std::span<const std::int64_t> boundaries,
                    std::int64_t storable_tokens, std::int64_t done_tokens);
  void collect_other(const RequestState& request, GroupIndex group, std::span<const std::int64_t> boundaries,
                     std::int64_t storable_tokens);
  void sort_by_set(std::size_t num_sets);
  void add_candidate(const RequestState& request, GroupIndex group, std::int64_t end_tokens, std::size_t ordinal,
                     std::int64_t block_index);
  Candidate& add_candidate(const std::byte* engine_hash, GroupIndex group, std::int64_t end_tokens, std::size_t ordinal,
                           std::int64_t block_index);
  [[nodiscard]] OffloadKey key_of(const Candidate& candidate) const {
    return detail::make_key(candidate.engine_hash, hash_size_bytes_, tags_[candidate.group.value()]);
  }
  void keep_missing(RequestState& request, std::span<const std::int64_t> boundaries);
  void fill_holes(const RequestState& request, std::span<const std::int64_t> boundaries);
  bool find_source(Candidate& candidate, const RequestState& request, std::span<const std::int64_t> boundaries);
  // Not counted before.
  [[nodiscard]] static bool is_new(const Candidate& candidate, const RequestState& request,
                                   std::span<const std::int64_t> boundaries) {
    return candidate.end_tokens > request.stores.counted_tokens &&
           candidate.end_tokens <= boundaries[candidate.ordinal];
  }
  [[nodiscard]] bool is_left_to_device(const Candidate& candidate) const;
  Outcome reserve_and_commit(const RequestState& request, PlannedJob& job);
  void record_planned(RequestId request) const;

  [[nodiscard]] BlockIndexRange wanted_range(GroupIndex group, std::int64_t boundary_tokens,
                                             std::int64_t storable_tokens) const;
  [[nodiscard]] static BlockId handed_off(const RequestState& request, GroupIndex group, std::int64_t boundary_tokens);

  Context context_;
  bool can_store_;
  bool leaves_to_device_ = false;
  bool has_align_states_ = false;
  std::int64_t max_drop_tokens_ = 0;  // how far behind a boundary a lookup may look
  std::vector<GroupIndex> full_groups_;
  std::vector<GroupIndex> other_groups_;
  // Of the call.
  std::size_t hash_size_bytes_ = 0;
  std::vector<std::uint64_t> tags_;  // [num_groups]: of the group's keys
  std::vector<Source> sources_;      // [num_groups]; empty for align states
  bool looks_again_ = false;         // at the last stored boundary, for holes before it alone
  bool from_start_ = false;          // the next set looks at all of its full-attention blocks again
  std::vector<std::int64_t> boundaries_;
  std::vector<Candidate> candidates_;
  std::vector<Candidate> sorted_;
  std::vector<std::size_t> set_ends_;
  std::vector<StoreWant> wants_;
  std::vector<EntryId> reserved_;
  std::vector<BlockId> pinned_;
  std::int64_t num_present_ = 0;    // not counted yet
  std::int64_t num_new_wants_ = 0;  // of the wants those that were not counted yet
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_STORE_PLANNER_H_
