#ifndef HOSTKV_GEOMETRY_RANGE_OVERLAP_H_
#define HOSTKV_GEOMETRY_RANGE_OVERLAP_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "hostkv/kv_layout.h"

namespace hostkv::detail {

// Two ranges of one group that share a byte for some pair of blocks. `first` < `second`: indices into the list.
struct OverlappingRanges {
  std::size_t first = 0;
  std::size_t second = 0;
  bool different_strides = false;
};

// Exact for ranges of equal stride. Ranges of unequal strides count as overlapping as soon as the bytes between their
// first and last block do: no known layout interleaves them. REQUIRES: every range is inside its region and no longer
// than its stride. Cost: O(ranges log ranges).
std::optional<OverlappingRanges> find_overlap(const std::vector<KvBlockRange>& ranges, std::int64_t num_blocks);

}  // namespace hostkv::detail

#endif  // HOSTKV_GEOMETRY_RANGE_OVERLAP_H_
