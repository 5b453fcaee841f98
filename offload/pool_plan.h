#ifndef HOSTKV_OFFLOAD_POOL_PLAN_H_
#define HOSTKV_OFFLOAD_POOL_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "hostkv/geometry.h"
#include "hostkv/status.h"
#include "hostkv/types.h"

namespace hostkv {

inline constexpr std::int64_t kSlotAlignmentBytes = 128;

// How one rank cuts its host budget: slabs of one size, each cut into slots of one group's size. A slot has the size of
// its group's block, so that small groups do not occupy big slots (R17).
//
// Thread-safety: values. Cost: make() is O(groups). Failure: make() answers kInvalidArgument naming bytes asked and
// needed.
struct PoolPlan {
  std::int64_t slab_bytes = 0;
  std::uint64_t num_slabs = 0;
  std::vector<std::uint32_t> slots_per_slab;  // [num_groups]; 0: not offloadable
  std::vector<std::int64_t>
      pitch_bytes;  // [num_groups] distance of two slots in a slab; equal for groups with equal slots_per_slab

  // `block_bytes`: bytes of one block of each group on this rank, [num_groups].
  static Result<PoolPlan> make(const Geometry& geometry, std::span<const std::int64_t> block_bytes,
                               std::int64_t budget_bytes);

  [[nodiscard]] std::int64_t pool_bytes() const { return slab_bytes * static_cast<std::int64_t>(num_slabs); }
  // First byte of the slot in this rank's pool. REQUIRES: contains(group, slot).
  [[nodiscard]] std::int64_t offset_bytes(GroupIndex group, SlotId slot) const {
    return static_cast<std::int64_t>(slab_of(slot)) * slab_bytes +
           static_cast<std::int64_t>(index_in_slab(slot)) * pitch_bytes[group.value()];
  }
  [[nodiscard]] bool contains(GroupIndex group, SlotId slot) const {
    return group.value() < slots_per_slab.size() && slab_of(slot) < num_slabs &&
           index_in_slab(slot) < slots_per_slab[group.value()];
  }
};

// Slabs that the largest set of blocks that is stored all or nothing takes in an empty pool: the blocks that every
// group needs at the first scheduler block boundaries. A smaller pool could never hold anything useful.
std::uint64_t slabs_of_boundary_set(const Geometry& geometry, std::span<const std::uint32_t> slots_per_slab);

}  // namespace hostkv

#endif  // HOSTKV_OFFLOAD_POOL_PLAN_H_
