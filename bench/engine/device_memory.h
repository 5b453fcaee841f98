#ifndef HOSTKV_BENCH_ENGINE_DEVICE_MEMORY_H_
#define HOSTKV_BENCH_ENGINE_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "hostkv/geometry.h"
#include "hostkv/kv_layout.h"
#include "hostkv/types.h"

namespace hostkv::bench {

// Bytes of one block of group g: its rows, or one recurrent state.
std::int64_t group_block_bytes(const KvCacheGroup& group, std::int64_t payload_bytes);

// Bytes of the KV memory of one rank with `num_blocks` blocks; INT64_MAX where they are more.
std::int64_t device_memory_bytes(const Geometry& geometry, std::int64_t payload_bytes, std::int64_t num_blocks);

// The KV memory of one rank.
//
// Purpose: two regions, as an engine with two layers would have them. Rows [0, half) of a block are in the first, the
// others in the second; recurrent states are in the first alone. All groups overlay the same memory. New memory holds a
// pattern that no payload equals. Thread-safety: none of its own; the rank's stream and the copies order the accesses.
// Ownership: owns the bytes. Cost: address arithmetic. Failure: std::bad_alloc.
class DeviceMemory {
 public:
  DeviceMemory(const Geometry& geometry, std::int64_t payload_bytes, std::int64_t num_blocks);

  [[nodiscard]] const KvLayout& layout() const { return layout_; }
  // Rows of group g from `row` on that lie one behind the other, at most `num_rows`; their number replaces num_rows.
  [[nodiscard]] std::byte* rows(GroupIndex g, BlockId block, std::int64_t row, std::int64_t& num_rows);
  [[nodiscard]] std::byte* state(GroupIndex g, BlockId block);
  // Byte `offset_bytes` of a block, counted over its ranges in layout order.
  [[nodiscard]] std::byte* byte_at(GroupIndex g, BlockId block, std::int64_t offset_bytes);
  // All bytes of one block into another one of the same group.
  void copy(GroupIndex g, BlockId from, BlockId to);
  // Overwrites a block with the pattern of new memory.
  void scrub(GroupIndex g, BlockId block);

 private:
  struct FreeBytes {
    void operator()(std::byte* bytes) const;
  };
  std::int64_t payload_bytes_;
  std::vector<std::int64_t> first_half_rows_;  // [num_groups] rows in the first region
  std::vector<std::unique_ptr<std::byte, FreeBytes>> memory_;
  KvLayout layout_;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_DEVICE_MEMORY_H_
