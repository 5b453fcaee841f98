#include "offload/pool_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>

namespace hostkv {
namespace {

constexpr std::int64_t kMaxBlockBytes = std::int64_t{1} << 40U;
constexpr std::int64_t kMaxSlotsPerSlab = 65536;
constexpr std::int64_t kMaxLargestSlotsPerSlab = 8;
constexpr std::int64_t kMinSlabs = 64;      // a slab of several large slots only where the pool still has this many
constexpr std::int64_t kWasteDivisor = 16;  // at most 1/16 of a slab is left over for any size

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kSlotAlignmentBytes - 1) / kSlotAlignmentBytes * kSlotAlignmentBytes;
}

std::int64_t largest_waste_bytes(const std::vector<std::int64_t>& slots, std::int64_t slab_bytes) {
  std::int64_t waste = 0;
  for (const std::int64_t slot : slots) {
    waste = std::max(waste, slab_bytes % slot);
  }
  return waste;
}

std::string product_text(std::uint64_t count, std::int64_t bytes) {
  const auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max() / bytes);
  return count > largest ? "2^63" : std::to_string(static_cast<std::int64_t>(count) * bytes);
}

// The smallest multiple of the largest slot that leaves little over for every size.
std::int64_t choose_slab_bytes(const std::vector<std::int64_t>& slots, std::int64_t budget_bytes) {
  const std::int64_t largest = *std::max_element(slots.begin(), slots.end());
  for (std::int64_t count = 1; count <= kMaxLargestSlotsPerSlab; ++count) {
    const std::int64_t slab = largest * count;
    if (count > 1 && budget_bytes / slab < kMinSlabs) {
      break;
    }
    if (largest_waste_bytes(slots, slab) * kWasteDivisor <= slab) {
      return slab;
    }
  }
  return largest;
}

Status check_block_bytes(const Geometry& geometry, std::span<const std::int64_t> block_bytes) {
  if (block_bytes.size() != geometry.num_groups()) {
    return {StatusCode::kInvalidArgument, "block sizes of " + std::to_string(block_bytes.size()) +
                                              " groups given, the geometry has " +
                                              std::to_string(geometry.num_groups())};
  }
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    if (geometry.offloadable(GroupIndex{g}) && (block_bytes[g] < 1 || block_bytes[g] > kMaxBlockBytes)) {
      return {StatusCode::kInvalidArgument, geometry.group_label(GroupIndex{g}) + ": a block has " +
                                                std::to_string(block_bytes[g]) + " bytes; 1 .. " +
                                                std::to_string(kMaxBlockBytes) + " are allowed"};
    }
  }
  return {};
}

}  // namespace

Result<PoolPlan> PoolPlan::make(const Geometry& geometry, std::span<const std::int64_t> block_bytes,
                                std::int64_t budget_bytes) {
  if (Status status = check_block_bytes(geometry, block_bytes); !status.ok()) {
    return error(std::move(status));
  }
  std::vector<std::int64_t> slots;  // of offloadable groups
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    if (geometry.offloadable(GroupIndex{g})) {
      slots.push_back(aligned(block_bytes[g]));
    }
  }
  PoolPlan plan;
  plan.slots_per_slab.assign(geometry.num_groups(), 0);
  plan.pitch_bytes.assign(geometry.num_groups(), 0);
  if (slots.empty()) {
    return plan;  // nothing can be offloaded: an empty pool
  }
  plan.slab_bytes = choose_slab_bytes(slots, budget_bytes);
  plan.num_slabs = static_cast<std::uint64_t>(std::max<std::int64_t>(budget_bytes, 0) / plan.slab_bytes);
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    if (geometry.offloadable(GroupIndex{g})) {
      const std::int64_t count = std::min(plan.slab_bytes / aligned(block_bytes[g]), kMaxSlotsPerSlab);
      plan.slots_per_slab[g] = static_cast<std::uint32_t>(count);
      plan.pitch_bytes[g] = plan.slab_bytes / count / kSlotAlignmentBytes * kSlotAlignmentBytes;
    }
  }
  const std::uint64_t needed = slabs_of_boundary_set(geometry, plan.slots_per_slab);
  if (plan.num_slabs < needed) {
    return error(StatusCode::kInvalidArgument,
                 "a host pool of " + std::to_string(budget_bytes) +
                     " bytes per rank is smaller than one boundary set of " +
                     std::to_string(geometry.scheduler_block_tokens()) + " tokens; at least " +
                     product_text(needed, plan.slab_bytes) +
                     " bytes per rank are needed (raise cpu_bytes_to_use or cpu_bytes_to_use_per_rank)");
  }
  return plan;
}

std::uint64_t slabs_of_boundary_set(const Geometry& geometry, std::span<const std::uint32_t> slots_per_slab) {
  std::map<std::uint32_t, std::int64_t> blocks_by_class;  // slots per slab -> blocks
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    if (slots_per_slab[g] == 0) {
      continue;
    }
    const std::int64_t boundary = geometry.scheduler_block_tokens();
    std::int64_t blocks = 0;
    if (const std::optional<LookupNeed> need = geometry.lookup_need(GroupIndex{g}, boundary)) {
      blocks = need->blocks.end_block - need->blocks.first_block;
    }
    blocks_by_class[slots_per_slab[g]] += std::max<std::int64_t>(blocks, 1);
  }
  std::uint64_t slabs = 0;
  for (const auto& [slots, blocks] : blocks_by_class) {
    slabs += static_cast<std::uint64_t>((blocks + slots - 1) / slots);
  }
  return slabs;
}

}  // namespace hostkv
