#include "hostkv/kv_layout.h"

#include <fmt/format.h>

#include <string>

#include "base/check.h"
#include "geometry/range_overlap.h"

namespace hostkv {
namespace {

Status refuse(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

// offset + (num_blocks - 1) * stride + size <= region, without leaving 64 bits. REQUIRES: all values > 0, offset >= 0.
bool fits(const KvBlockRange& range, std::int64_t num_blocks, std::int64_t region_bytes) {
  if (range.offset_bytes > region_bytes || range.size_bytes > region_bytes - range.offset_bytes) {
    return false;
  }
  const std::int64_t rest = region_bytes - range.offset_bytes - range.size_bytes;
  return num_blocks - 1 <= rest / range.block_stride_bytes;
}

Status check_regions(const KvLayout& layout) {
  if (layout.num_blocks < 1) {
    return refuse(fmt::format("layout: num_blocks {} must be at least 1, the null block", layout.num_blocks));
  }
  for (std::size_t i = 0; i < layout.regions.size(); ++i) {
    const KvRegion& region = layout.regions[i];
    if (region.base == nullptr || region.size_bytes < 1) {
      return refuse(fmt::format("layout: region {} has base {} and size_bytes {}; both must be set", i,
                                fmt::ptr(region.base), region.size_bytes));
    }
  }
  return {};
}

Status check_range(const KvLayout& layout, const std::string& label, const KvBlockRange& range) {
  if (range.region >= layout.regions.size()) {
    return refuse(
        fmt::format("{}: region {} does not exist; there are {}", label, range.region, layout.regions.size()));
  }
  if (range.size_bytes < 1 || range.offset_bytes < 0) {
    return refuse(fmt::format("{}: offset_bytes {} and size_bytes {}; allowed: offset >= 0, size > 0", label,
                              range.offset_bytes, range.size_bytes));
  }
  if (range.block_stride_bytes < range.size_bytes) {
    return refuse(fmt::format("{}: block_stride_bytes {} is less than size_bytes {}: neighbouring blocks would overlap",
                              label, range.block_stride_bytes, range.size_bytes));
  }
  const std::int64_t region_bytes = layout.regions[range.region].size_bytes;
  if (!fits(range, layout.num_blocks, region_bytes)) {
    return refuse(
        fmt::format("{}: offset_bytes {} + {} blocks of block_stride_bytes {} and size_bytes {} reach past the end of "
                    "region {} of {} bytes",
                    label, range.offset_bytes, layout.num_blocks, range.block_stride_bytes, range.size_bytes,
                    range.region, region_bytes));
  }
  return {};
}

// REQUIRES: every range of the group has passed check_range, so that no size is over its region's.
Status check_page(const std::string& label, const std::vector<KvBlockRange>& ranges, std::int64_t page_bytes) {
  std::int64_t total = 0;
  for (const KvBlockRange& range : ranges) {
    if (__builtin_add_overflow(total, range.size_bytes, &total)) {
      return refuse(
          fmt::format("{}: the sizes of its {} ranges add up to more than 64 bits hold", label, ranges.size()));
    }
  }
  if (page_bytes != 0 && total != page_bytes) {
    return refuse(fmt::format("{}: its {} ranges add up to {} bytes a block, but page_bytes is {}", label,
                              ranges.size(), total, page_bytes));
  }
  return {};
}

Status check_group_ranges(const KvLayout& layout, const Geometry& geometry, GroupIndex g) {
  const std::vector<KvBlockRange>& ranges = layout.groups[g.value()];
  const std::string& label = geometry.group_label(g);
  if (!geometry.offloadable(g)) {
    return ranges.empty() ? Status()
                          : refuse(fmt::format("{}: has {} ranges, but it is never stored or loaded; leave them out",
                                               label, ranges.size()));
  }
  if (ranges.empty()) {
    return refuse(fmt::format("{}: has no range; the bytes of its blocks are needed", label));
  }
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (Status status = check_range(layout, fmt::format("{}, range {}", label, i), ranges[i]); !status.ok()) {
      return status;
    }
  }
  if (const auto pair = detail::find_overlap(ranges, layout.num_blocks)) {
    return refuse(
        fmt::format("{}: range {} and range {} of region {} share bytes{}", label, pair->first, pair->second,
                    ranges[pair->first].region,
                    pair->different_strides
                        ? fmt::format(" or interleave with unequal strides ({} and {} bytes)",
                                      ranges[pair->first].block_stride_bytes, ranges[pair->second].block_stride_bytes)
                        : std::string()));
  }
  return check_page(label, ranges, geometry.group(g).page_bytes);
}

}  // namespace

Status KvLayout::validate(const Geometry& geometry) const {
  if (Status status = check_regions(*this); !status.ok()) {
    return status;
  }
  if (groups.size() != geometry.num_groups()) {
    return refuse(fmt::format("layout: {} groups, but the geometry has {}", groups.size(), geometry.num_groups()));
  }
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    if (Status status = check_group_ranges(*this, geometry, GroupIndex{g}); !status.ok()) {
      return status;
    }
  }
  return {};
}

std::int64_t KvLayout::block_bytes(GroupIndex g) const {
  HOSTKV_DCHECK(g.value() < groups.size(), "group in range");
  std::int64_t total = 0;
  for (const KvBlockRange& range : groups[g.value()]) {
    total += range.size_bytes;
  }
  return total;
}

}  // namespace hostkv
