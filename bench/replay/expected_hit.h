#ifndef HOSTKV_BENCH_REPLAY_EXPECTED_HIT_H_
#define HOSTKV_BENCH_REPLAY_EXPECTED_HIT_H_

// What a model's hits can be at best, written from the rules of the engine and without the library's table, so that one
// can be held against the other. Thread-safety: pure functions. REQUIRES of all: a geometry that resolves.

#include <cstdint>

#include "hostkv/geometry.h"

namespace hostkv::bench {

// Tokens of a group's block over all ranks.
std::int64_t span_of(const KvCacheGroup& group, const ParallelLayout& parallel);
// The least common multiple of all spans.
std::int64_t scheduler_block_of(const GeometrySpec& spec);
// Tokens of one prefix hash: as asked for, else the greatest common divisor of the spans of what takes part in lookups;
// the scheduler block where recurrent states are not kept at hand-offs.
std::int64_t hash_block_of(const GeometrySpec& spec);
// Whether hits may end inside a block: not switched off, several groups, a recurrent state of mode align that is
// longer than the hash block (under DCP: or as long), and beside it only full attention, MLA, states and blocks of one
// hash.
bool ends_inside_blocks(const GeometrySpec& spec);
// Hits end on its multiples: the hash block where they may end inside a block, else the scheduler block.
std::int64_t boundary_unit(const GeometrySpec& spec);

// False: what a group holds is kept nowhere (not cacheable, recurrent mode none), so it is missing at every boundary.
// Scratch groups hold nothing that a hit needs.
bool can_hit_on_device(const GeometrySpec& spec);
// False also where a group that a hit needs never leaves the device.
bool can_hit_on_host(const GeometrySpec& spec);

// The largest boundary <= `limit_tokens` at which every draft group still sees its extra unit (a block, where hits end
// inside one the hash block) within the first `seen_tokens`; as if every key were there.
std::int64_t largest_boundary(const GeometrySpec& spec, std::int64_t limit_tokens, std::int64_t seen_tokens);

struct ExpectedHits {
  std::int64_t device_tokens = 0;
  std::int64_t host_tokens = 0;
};
// Of a prompt that was computed as a whole before. A draft's extra unit may end at the last but one token where the
// model has one group, at the last where it has several (the engine's two ways to look up). Where hits end inside
// blocks, the engine keeps a state at exactly this boundary: the last hash block before the last token, with a draft
// the last one but one.
ExpectedHits expected_hits(const GeometrySpec& spec, std::int64_t prompt_tokens);
// Stored implies findable: what a repeated prompt hits at least while nothing is evicted, where the model can hit at
// all. Less than one unit before its last token: a hash block where hits end inside blocks, else a scheduler block;
// with a draft its dropped unit comes on top.
std::int64_t least_findable_tokens(const GeometrySpec& spec, std::int64_t prompt_tokens);
// The longest prompt that hits nothing although the model can hit.
std::int64_t longest_prompt_without_hit(const GeometrySpec& spec);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_EXPECTED_HIT_H_
