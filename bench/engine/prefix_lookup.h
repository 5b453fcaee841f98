#ifndef HOSTKV_BENCH_ENGINE_PREFIX_LOOKUP_H_
#define HOSTKV_BENCH_ENGINE_PREFIX_LOOKUP_H_

#include <cstdint>
#include <vector>

#include "bench/engine/block_pool.h"
#include "bench/engine/request.h"
#include "hostkv/geometry.h"

namespace hostkv::bench {

// The cached blocks of one group that a request continues from.
struct GroupHit {
  std::int64_t first_block = 0;
  std::vector<BlockId> blocks;  // indices first_block, first_block + 1, ..
};

struct PrefixHit {
  std::int64_t boundary_tokens = 0;
  // How far attention over all tokens alone reaches, where that is beyond the hit; else 0.
  std::int64_t junction_tokens = 0;
  std::vector<GroupHit> groups;  // [num_groups]

  // The same up to a smaller boundary, for a load that begins there: blocks that begin behind it are left out.
  void cut(const Geometry& geometry, std::int64_t boundary);
};

// Can a prefix be found at all? False with a group (scratch apart) whose blocks or states are never findable: nothing
// would fill what it reads behind a hit.
bool has_findable_prefixes(const Geometry& geometry);

// Does group g take part in the device's prefix cache?
bool is_cached_group(const Geometry& geometry, GroupIndex group);

// The longest boundary, at most num_tokens - 1, for which every cached group has all that a lookup wants in the pool
// (R2, R3); 0 without findable prefixes. Takes no reference. Cost: O(blocks of the prompt) probes for full attention,
// and the blocks of the window or one state for each boundary tried below that.
PrefixHit find_longest_prefix(const Geometry& geometry, const BlockPool& pool, const Request& request);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_PREFIX_LOOKUP_H_
