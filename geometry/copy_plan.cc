#include "geometry/copy_plan.h"

#include "base/check.h"

namespace hostkv {
namespace {

// The two sides of a run by name, so that both kinds of run are merged by the same lines.
struct HostSides {
  static constexpr auto kFirst = &PlannedRun::device_offset_bytes;
  static constexpr auto kSecond = &PlannedRun::host_offset_bytes;
};
struct DeviceSides {
  static constexpr auto kFirst = &DeviceRun::src_offset_bytes;
  static constexpr auto kSecond = &DeviceRun::dst_offset_bytes;
};

// Grows `run` by `next` where the two are neighbours on both sides, at either end (blocks and slots are often handed
// out in descending order).
template <class Sides, class Run>
bool merge(Run& run, const Run& next) {
  if (run.device_region != next.device_region) {
    return false;
  }
  const bool behind = run.*Sides::kFirst + run.size_bytes == next.*Sides::kFirst &&
                      run.*Sides::kSecond + run.size_bytes == next.*Sides::kSecond;
  const bool before = next.*Sides::kFirst + next.size_bytes == run.*Sides::kFirst &&
                      next.*Sides::kSecond + next.size_bytes == run.*Sides::kSecond;
  if (!behind && !before) {
    return false;
  }
  if (before) {
    run.*Sides::kFirst = next.*Sides::kFirst;
    run.*Sides::kSecond = next.*Sides::kSecond;
  }
  run.size_bytes += next.size_bytes;
  run.num_pairs = next.first_pair + 1 - run.first_pair;
  return true;
}

// Appends the runs of one pair, one a range where they do not merge. Runs before `first_run` are another call's.
template <class Sides, class Run, class MakeRun>
void append_pair(const std::vector<KvBlockRange>& ranges, std::size_t first_run, std::vector<Run>& runs,
                 const MakeRun& make_run) {
  const std::size_t first_of_pair = runs.size();
  for (const KvBlockRange& range : ranges) {
    const Run next = make_run(range);
    if (runs.size() == first_run || !merge<Sides>(runs.back(), next)) {
      runs.push_back(next);
    }
  }
  // A block lies before the last run only as a whole.
  if (runs.size() == first_of_pair + 1 && first_of_pair > first_run &&
      merge<Sides>(runs[first_of_pair - 1], runs.back())) {
    runs.pop_back();
  }
}

std::int64_t offset_of(const KvBlockRange& range, BlockId block) {
  return range.offset_bytes + std::int64_t{block.value()} * range.block_stride_bytes;
}

[[maybe_unused]] bool in_range(const KvLayout& layout, BlockId block) {
  return block != kNullBlock && block.value() < layout.num_blocks;
}

}  // namespace

void append_copy_runs(const KvLayout& layout, GroupIndex group, std::span<const BlockPair> pairs,
                      std::vector<PlannedRun>& runs) {
  HOSTKV_DCHECK(group.value() < layout.groups.size(), "group in range");
  const std::size_t first_run = runs.size();
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    HOSTKV_DCHECK(in_range(layout, pairs[i].block), "block in range and not null");
    std::int64_t host_offset = pairs[i].host_offset_bytes;
    append_pair<HostSides>(layout.groups[group.value()], first_run, runs, [&](const KvBlockRange& range) {
      const PlannedRun next{.device_region = range.region,
                            .device_offset_bytes = offset_of(range, pairs[i].block),
                            .host_offset_bytes = host_offset,
                            .size_bytes = range.size_bytes,
                            .first_pair = static_cast<std::uint32_t>(i),
                            .num_pairs = 1};
      host_offset += range.size_bytes;
      return next;
    });
  }
}

void append_device_copy_runs(const KvLayout& layout, GroupIndex group, std::span<const DevicePair> pairs,
                             std::vector<DeviceRun>& runs) {
  HOSTKV_DCHECK(group.value() < layout.groups.size(), "group in range");
  const std::size_t first_run = runs.size();
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    HOSTKV_DCHECK(in_range(layout, pairs[i].source) && in_range(layout, pairs[i].target),
                  "blocks in range and not null");
    append_pair<DeviceSides>(layout.groups[group.value()], first_run, runs, [&](const KvBlockRange& range) {
      return DeviceRun{.device_region = range.region,
                       .src_offset_bytes = offset_of(range, pairs[i].source),
                       .dst_offset_bytes = offset_of(range, pairs[i].target),
                       .size_bytes = range.size_bytes,
                       .first_pair = static_cast<std::uint32_t>(i),
                       .num_pairs = 1};
    });
  }
}

}  // namespace hostkv
