#ifndef HOSTKV_RECOVERY_RECOVERY_PLANNER_H_
#define HOSTKV_RECOVERY_RECOVERY_PLANNER_H_

#include "hostkv/recovery.h"
#include "recovery/bad_blocks.h"
#include "recovery/boundary_walk.h"
#include "recovery/plan_builder.h"

namespace hostkv {

// What a planner keeps between calls.
class RecoveryPlanner::Impl {
 public:
  Impl(Geometry of, LoadFailurePolicy policy)
      : geometry(std::move(of)), bad(geometry.num_groups()), walk(geometry), builder(geometry, policy) {}

  const Geometry geometry;
  BadBlocks bad;  // of the request that is asked about; empty between calls
  BoundaryWalk walk;
  PlanBuilder builder;
};

}  // namespace hostkv

#endif  // HOSTKV_RECOVERY_RECOVERY_PLANNER_H_
