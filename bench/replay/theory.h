#ifndef HOSTKV_BENCH_REPLAY_THEORY_H_
#define HOSTKV_BENCH_REPLAY_THEORY_H_

#include <cstdint>
#include <span>
#include <unordered_set>

#include "bench/replay/trace.h"

namespace hostkv::bench {

// What a cache without limit would have hit: the leading blocks of a request that earlier requests named.
class SeenBlocks {
 public:
  // Answers the number of leading blocks seen before, then remembers all blocks of the request.
  std::int64_t visit(std::span<const std::int64_t> block_ids);

 private:
  std::unordered_set<std::int64_t> seen_;
};

// Share of the trace's block references that an unlimited cache hits; 0 for a trace without blocks.
double infinite_hit_rate(const Trace& trace);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_THEORY_H_
