#ifndef HOSTKV_INCLUDE_HOSTKV_KV_LAYOUT_H_
#define HOSTKV_INCLUDE_HOSTKV_KV_LAYOUT_H_

// Where the bytes of a block are in one rank's device memory.
//
// Purpose: any physical layout as plain data: a block of a group is a list of byte ranges; no tensor, dtype or engine
// name. Thread-safety: values. Ownership: none; addresses belong to the engine. Cost: validate() is O(ranges log
// ranges). Failure: validate() answers kInvalidArgument naming group, range and sizes.

#include <cstdint>
#include <vector>

#include "hostkv/geometry.h"
#include "hostkv/status.h"
#include "hostkv/types.h"

namespace hostkv {

// One allocation of the engine that holds KV bytes.
struct KvRegion {
  void* base = nullptr;  // first byte, device memory of this rank, owned by the engine until WorkerConnector::shutdown
  std::int64_t size_bytes = 0;  // > 0
};

// Bytes [offset + b * block_stride, ... + size) of `region` belong to block b.
struct KvBlockRange {
  std::uint32_t region = 0;  // index into KvLayout::regions
  std::int64_t offset_bytes = 0;
  std::int64_t block_stride_bytes = 0;  // > 0
  std::int64_t size_bytes = 0;          // > 0
};

struct KvLayout {
  std::int64_t num_blocks = 0;  // the null block included; ids 0 .. num_blocks - 1
  std::vector<KvRegion> regions{};
  // [num_groups][ranges of a block]. Groups may overlay each other (a block belongs to one group at a time); the ranges
  // of one group must not overlap, neither within a block nor between blocks. Empty for groups that are not
  // offloadable.
  std::vector<std::vector<KvBlockRange>> groups{};

  // Every range inside its region for every block, no two ranges of a group overlap, and the sizes of a group's ranges
  // add up to its page_bytes (where the geometry knows it). kInvalidArgument otherwise, also where ranges of unequal
  // strides interleave: whether their blocks share bytes is then not looked into.
  [[nodiscard]] Status validate(const Geometry& geometry) const;
  // Bytes of one block of group g on this rank.
  [[nodiscard]] std::int64_t block_bytes(GroupIndex g) const;
};

}  // namespace hostkv

#endif  // HOSTKV_INCLUDE_HOSTKV_KV_LAYOUT_H_
