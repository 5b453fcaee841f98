#ifndef HOSTKV_BENCH_ENGINE_STEP_LAUNCH_H_
#define HOSTKV_BENCH_ENGINE_STEP_LAUNCH_H_

#include <cstdint>
#include <vector>

#include "bench/engine/engine.h"
#include "bench/engine/rank_forward.h"
#include "bench/engine/request.h"
#include "bench/engine/scheduler.h"

namespace hostkv::bench {

// What the launch of a chunk makes of its plan.
//
// Purpose: the device goes on from where its last forward of the request really ended, which the scheduler does not
// know while that forward is in flight: a chunk was planned behind drafts that may come to nothing. How many drafts of
// this one are accepted is as good as drawn. Moves `request.on_device` on; the scheduler is told with the results.
// `views`: the forward will run, and needs its request as it is now. Cost: O(blocks of the request) with `views`.
LaunchedChunk launch_chunk(const EngineConfig& config, const Geometry& geometry, const ChunkPlan& plan, bool views,
                           Request& request);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_STEP_LAUNCH_H_
