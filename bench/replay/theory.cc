#include "bench/replay/theory.h"

namespace hostkv::bench {

std::int64_t SeenBlocks::visit(std::span<const std::int64_t> block_ids) {
  std::size_t hits = 0;
  while (hits < block_ids.size() && seen_.contains(block_ids[hits])) ++hits;
  seen_.insert(block_ids.begin(), block_ids.end());
  return static_cast<std::int64_t>(hits);
}

double infinite_hit_rate(const Trace& trace) {
  SeenBlocks seen;
  std::int64_t hits = 0;
  for (const TraceRequest& request : trace.requests) hits += seen.visit(request.block_ids);
  const std::int64_t refs = trace.num_block_refs();
  return refs == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(refs);
}

}  // namespace hostkv::bench
