#ifndef HOSTKV_BENCH_REPLAY_ONE_REQUEST_H_
#define HOSTKV_BENCH_REPLAY_ONE_REQUEST_H_

#include <cstdint>
#include <vector>

#include "bench/engine/engine.h"
#include "hostkv/status.h"

namespace hostkv::bench {

// Runs one request to its end on an engine that has no other, its stores included. Failure: what the engine refuses;
// kInternal where it does not report exactly this request.
Result<RequestReport> run_one(Engine& engine, std::vector<std::int32_t> prompt_tokens);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_ONE_REQUEST_H_
