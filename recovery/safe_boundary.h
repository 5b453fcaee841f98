#ifndef HOSTKV_RECOVERY_SAFE_BOUNDARY_H_
#define HOSTKV_RECOVERY_SAFE_BOUNDARY_H_

// One request and the loads that failed: checks, marks, and its safe candidates as bytes. Thread-safety: functions on
// the caller's memory, one thread. Failure: kInvalidArgument naming request, group and sizes.

#include <cstddef>
#include <cstdint>
#include <span>

#include "hostkv/geometry.h"
#include "hostkv/recovery.h"
#include "recovery/bad_blocks.h"
#include "recovery/boundary_walk.h"

namespace hostkv {

// Can the view be read without surprise? Tables may have any length: what is behind their end is not held.
Status check_request(const Geometry& geometry, const HeldRequest& request);

// Of a request that was checked; 1 for any other.
std::size_t num_candidates(const Geometry& geometry, const HeldRequest& request);

// Adds what failed, whose load it ever was. False: the request is safe at 0 alone, and `bad` may be incomplete.
bool add_failures(const Geometry& geometry, const HeldRequest& request, std::span<const FailedLoad> failed,
                  BadBlocks& bad);

// Byte i of `safe`: 1 where candidate i is safe, else 0. REQUIRES: a walk that has started and was not asked yet.
void mark_candidates(const Geometry& geometry, BoundaryWalk& walk, std::span<std::uint8_t> safe);

}  // namespace hostkv

#endif  // HOSTKV_RECOVERY_SAFE_BOUNDARY_H_
