#include "bench/engine/device_memory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>

#include "bench/engine/group_rules.h"
#include "bench/engine/payload.h"

namespace hostkv::bench {
namespace {

constexpr std::int64_t kAlignmentBytes = 128;
constexpr int kPoison = 0xA5;

std::int64_t align_up(std::int64_t size_bytes) {
  return cdiv(size_bytes, kAlignmentBytes) * kAlignmentBytes;
}

// The part of a block that is in the first region; all of it where it cannot be split.
std::int64_t first_part_bytes(const KvCacheGroup& group, std::int64_t payload_bytes) {
  if (group.kind == GroupKind::kMamba || group.block_tokens < 2) return group_block_bytes(group, payload_bytes);
  return group.block_tokens / 2 * payload_bytes;
}

// Bytes from one block to the next in the two regions.
std::array<std::int64_t, 2> region_strides(const Geometry& geometry, std::int64_t payload_bytes) {
  std::array<std::int64_t, 2> strides{kAlignmentBytes, kAlignmentBytes};
  for (const KvCacheGroup& group : geometry.spec().groups) {
    const std::int64_t first = first_part_bytes(group, payload_bytes);
    strides[0] = std::max(strides[0], align_up(first));
    strides[1] = std::max(strides[1], align_up(group_block_bytes(group, payload_bytes) - first));
  }
  return strides;
}

}  // namespace

std::int64_t device_memory_bytes(const Geometry& geometry, std::int64_t payload_bytes, std::int64_t num_blocks) {
  const std::array<std::int64_t, 2> strides = region_strides(geometry, payload_bytes);
  const std::int64_t block_bytes = strides[0] + strides[1];
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return block_bytes > kMost / num_blocks ? kMost : block_bytes * num_blocks;
}

std::int64_t group_block_bytes(const KvCacheGroup& group, std::int64_t payload_bytes) {
  return (group.kind == GroupKind::kMamba ? kStateRows : group.block_tokens) * payload_bytes;
}

void DeviceMemory::FreeBytes::operator()(std::byte* bytes) const {
  ::operator delete (bytes, std::align_val_t{kAlignmentBytes});
}

DeviceMemory::DeviceMemory(const Geometry& geometry, std::int64_t payload_bytes, std::int64_t num_blocks)
    : payload_bytes_(payload_bytes) {
  const std::array<std::int64_t, 2> strides = region_strides(geometry, payload_bytes);
  for (const KvCacheGroup& group : geometry.spec().groups) {
    first_half_rows_.push_back(first_part_bytes(group, payload_bytes) / payload_bytes);
  }
  layout_.num_blocks = num_blocks;
  for (const std::int64_t stride : strides) {
    const std::int64_t size_bytes = stride * num_blocks;
    auto* bytes = static_cast<std::byte*>(
        ::operator new (static_cast<std::size_t>(size_bytes), std::align_val_t{kAlignmentBytes}));
    std::memset(bytes, kPoison, static_cast<std::size_t>(size_bytes));
    memory_.emplace_back(bytes);
    layout_.regions.push_back(KvRegion{bytes, size_bytes});
  }
  for (const KvCacheGroup& group : geometry.spec().groups) {
    const std::int64_t first = first_part_bytes(group, payload_bytes);
    const std::int64_t second = group_block_bytes(group, payload_bytes) - first;
    layout_.groups.push_back({KvBlockRange{0, 0, strides[0], first}});
    if (second > 0) layout_.groups.back().push_back(KvBlockRange{1, 0, strides[1], second});
  }
}

std::byte* DeviceMemory::rows(GroupIndex g, BlockId block, std::int64_t row, std::int64_t& num_rows) {
  const std::int64_t half = first_half_rows_[g.value()];
  if (row < half) num_rows = std::min(num_rows, half - row);
  return byte_at(g, block, row * payload_bytes_);
}

std::byte* DeviceMemory::state(GroupIndex g, BlockId block) {
  return byte_at(g, block, 0);
}

std::byte* DeviceMemory::byte_at(GroupIndex g, BlockId block, std::int64_t offset_bytes) {
  const std::vector<KvBlockRange>& ranges = layout_.groups[g.value()];
  const std::size_t part = offset_bytes < ranges[0].size_bytes ? 0 : 1;
  const std::int64_t in_part = part == 0 ? offset_bytes : offset_bytes - ranges[0].size_bytes;
  return memory_[part].get() + static_cast<std::int64_t>(block.value()) * ranges[part].block_stride_bytes + in_part;
}

void DeviceMemory::copy(GroupIndex g, BlockId from, BlockId to) {
  for (const KvBlockRange& range : layout_.groups[g.value()]) {
    std::byte* base = memory_[range.region].get();
    std::memcpy(base + static_cast<std::int64_t>(to.value()) * range.block_stride_bytes,
                base + static_cast<std::int64_t>(from.value()) * range.block_stride_bytes,
                static_cast<std::size_t>(range.size_bytes));
  }
}

void DeviceMemory::scrub(GroupIndex g, BlockId block) {
  for (const KvBlockRange& range : layout_.groups[g.value()]) {
    std::byte* first =
        memory_[range.region].get() + static_cast<std::int64_t>(block.value()) * range.block_stride_bytes;
    std::memset(first, kPoison, static_cast<std::size_t>(range.size_bytes));
  }
}

}  // namespace hostkv::bench
