#ifndef HOSTKV_GEOMETRY_COPY_PLAN_H_
#define HOSTKV_GEOMETRY_COPY_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "hostkv/kv_layout.h"
#include "hostkv/types.h"

namespace hostkv {

// One block on the device and the first byte of its slot in the host pool.
struct BlockPair {
  BlockId block{};
  std::int64_t host_offset_bytes = 0;
};

// Contiguous on both sides. Covers (parts of) pairs [first_pair, first_pair + num_pairs) of the input.
struct PlannedRun {
  std::uint32_t device_region = 0;  // index into KvLayout::regions
  std::int64_t device_offset_bytes = 0;
  std::int64_t host_offset_bytes = 0;
  std::int64_t size_bytes = 0;
  std::uint32_t first_pair = 0;
  std::uint32_t num_pairs = 0;
};

// One block of the device and the block of the same group that becomes its copy.
struct DevicePair {
  BlockId source{};
  BlockId target{};
};

// Contiguous at the source and at the target, inside one region. Covers (parts of) pairs [first_pair, first_pair +
// num_pairs) of the input.
struct DeviceRun {
  std::uint32_t device_region = 0;  // index into KvLayout::regions
  std::int64_t src_offset_bytes = 0;
  std::int64_t dst_offset_bytes = 0;
  std::int64_t size_bytes = 0;
  std::uint32_t first_pair = 0;
  std::uint32_t num_pairs = 0;
};

// Appends the fewest runs that move the blocks of one group between device and slots, in either direction. A slot holds
// the ranges of a block one behind the other, in layout order. Neighbouring ranges of a block, and neighbouring pairs,
// merge where both sides are adjacent. Pairs are taken in the order given. REQUIRES: layout validated, blocks in range
// and not null. Cost: O(pairs x ranges).
void append_copy_runs(const KvLayout& layout, GroupIndex group, std::span<const BlockPair> pairs,
                      std::vector<PlannedRun>& runs);

// Appends the fewest runs that copy blocks of one group onto others of the same group. Merges as append_copy_runs does.
// REQUIRES: layout validated, blocks in range and not null, no block named twice as a target, none both as a source and
// as a target: then no run overlaps itself. Cost: O(pairs x ranges).
void append_device_copy_runs(const KvLayout& layout, GroupIndex group, std::span<const DevicePair> pairs,
                             std::vector<DeviceRun>& runs);

}  // namespace hostkv

#endif  // HOSTKV_GEOMETRY_COPY_PLAN_H_
