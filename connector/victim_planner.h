#ifndef HOSTKV_CONNECTOR_VICTIM_PLANNER_H_
#define HOSTKV_CONNECTOR_VICTIM_PLANNER_H_

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "connector/job_table.h"
#include "connector/store_planner.h"

namespace hostkv {

// Lazy stores: what the device is about to drop goes to the host first.
//
// The head of the engine's free queue is walked, as far as four of its biggest steps so far would take, when a quarter
// of that was taken: a constant number of looks a handed-out block. What is neither stored nor on the way is planned,
// each block a set of its own: its chain is held together by device and host as a whole. The engine's order of eviction
// stays as it is: the blocks that its next step may take are copied last, at most half of the free ones are pinned at a
// time, and all go back to their places. A block is saved once while it waits.
//
// Thread-safety: one thread. Ownership: borrows everything; keeps scratch memory. Failure: none; what finds no slot is
// counted as dropped, once a walk.
class VictimPlanner {
 public:
  explicit VictimPlanner(StorePlanner::Context context);

  // There may be something to save: the engine should take a step although it has no request to run.
  [[nodiscard]] bool is_due() const;
  // Once a step. True: plan() is due.
  bool begin_step();
  // Appends what must be saved now. REQUIRES: begin_step() said so. One job at a time is on its way: it ends with
  // give_back().
  void plan(PlannedJob& job);
  // The copies have ended: unpins the blocks of the job. They go back to their places among those that were walked with
  // them and still wait at the head of the queue.
  void give_back(std::span<const BlockId> blocks);

 private:
  // One key of a block that waits.
  struct Victim {
    OffloadKey key;
    std::uint64_t stay = 0;  // names block and key together
    BlockId block;
    GroupIndex group;
    std::size_t place = 0;  // in order_
  };

  void walk();
  [[nodiscard]] bool save_range(std::size_t first, std::size_t end, PlannedJob& job);
  void save(const Victim& victim, PlannedJob& job);

  StorePlanner::Context context_;
  bool can_store_;
  std::uint64_t last_handed_out_ = 0;    // at the last step
  std::uint64_t walked_handed_out_ = 0;  // at the last walk
  std::int64_t walked_free_ = 0;
  std::int64_t most_a_step_ = 0;     // blocks handed out between two steps, at most
  std::int64_t horizon_blocks_ = 0;  // walked at a time
  bool is_unfinished_ = true;        // the last walk could not save all, or there was none
  bool is_in_flight_ = false;
  std::unordered_set<std::uint64_t> saved_;  // stays
  // Of the last walk.
  std::vector<CachedBlock> cached_;
  std::vector<Victim> victims_;
  std::vector<BlockId> order_;
  std::vector<EntryId> reserved_;
};

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_VICTIM_PLANNER_H_
