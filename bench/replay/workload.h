#ifndef HOSTKV_BENCH_REPLAY_WORKLOAD_H_
#define HOSTKV_BENCH_REPLAY_WORKLOAD_H_

// Built-in workloads: traces made from a seed, for machines without a trace file.
//
// `chat`: 320 conversations at a time; each has one of 8 system prompts (2 to 9 blocks) and grows by 1 to 6 blocks a
// turn, for 1 to 12 turns, and is then replaced. `prefix-tree`: walks from one root through a tree with 6 children a
// node, the first ones far more often, 4 to 40 blocks deep. `one-shot`: one shared block, then 8 to 39 blocks that are
// asked for once; one request in eight repeats one of the last 64.
// All arithmetic is on integers: one seed gives one trace on every machine.

#include <cstdint>
#include <span>
#include <string_view>

#include "bench/replay/trace.h"

namespace hostkv::bench {

inline constexpr std::int64_t kDefaultWorkloadRequests = 2000;

std::span<const std::string_view> workload_names();
// kInvalidArgument: unknown name, with the nearest known one; num_requests outside 1 .. 10,000,000.
Result<Trace> make_workload(std::string_view name, std::uint64_t seed, std::int64_t num_requests);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_WORKLOAD_H_
