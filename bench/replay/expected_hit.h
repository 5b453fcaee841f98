#ifndef HOSTKV_BENCH_REPLAY_EXPECTED_HIT_H_
#define HOSTKV_BENCH_REPLAY_EXPECTED_HIT_H_

// What a model's hits can be at best, written from the rules of the engine and without the library's table, so that one
// can be held against the other. Thread-safety: pure functions. REQUIRES of all: a geometry that resolves, boundaries
// on the scheduler block (fine_hits false).

#include <cstdint>

#include "hostkv/geometry.h"

namespace hostkv::bench {

// Tokens of a group's block over all ranks.
std::int64_t span_of(const KvCacheGroup& group, const ParallelLayout& parallel);
// The least common multiple of all spans: the only boundaries of this version.
std::int64_t boundary_unit(const GeometrySpec& spec);

// False: what a group holds is kept nowhere (not cacheable, recurrent mode none), so it is missing at every boundary.
// Scratch groups hold nothing that a hit needs.
bool can_hit_on_device(const GeometrySpec& spec);
// False also where a group that a hit needs never leaves the device.
bool can_hit_on_host(const GeometrySpec& spec);

// The largest boundary <= `limit_tokens` at which every draft group still sees its extra block within the first
// `seen_tokens`; as if every key were there.
std::int64_t largest_boundary(const GeometrySpec& spec, std::int64_t limit_tokens, std::int64_t seen_tokens);

struct ExpectedHits {
  std::int64_t device_tokens = 0;
  std::int64_t host_tokens = 0;
};
// Of a prompt that was computed as a whole before. A draft's extra block may end at the last but one token where the
// model has one group, at the last where it has several (the engine's two ways to look up).
ExpectedHits expected_hits(const GeometrySpec& spec, std::int64_t prompt_tokens);
// The longest prompt that hits nothing although the model can hit.
std::int64_t longest_prompt_without_hit(const GeometrySpec& spec);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_EXPECTED_HIT_H_
