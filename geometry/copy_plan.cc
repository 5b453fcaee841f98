#include "geometry/copy_plan.h"

#include "base/check.h"

namespace hostkv {
namespace {

// Grows `run` by `next` where the two are neighbours on both sides, at either end (blocks and slots are often handed
// out in descending order).
bool merge(PlannedRun& run, const PlannedRun& next) {
  if (run.device_region != next.device_region) {
    return false;
  }
  const bool behind = run.device_offset_bytes + run.size_bytes == next.device_offset_bytes &&
                      run.host_offset_bytes + run.size_bytes == next.host_offset_bytes;
  const bool before = next.device_offset_bytes + next.size_bytes == run.device_offset_bytes &&
                      next.host_offset_bytes + next.size_bytes == run.host_offset_bytes;
  if (!behind && !before) {
    return false;
  }
  if (before) {
    run.device_offset_bytes = next.device_offset_bytes;
    run.host_offset_bytes = next.host_offset_bytes;
  }
  run.size_bytes += next.size_bytes;
  run.num_pairs = next.first_pair + 1 - run.first_pair;
  return true;
}

}  // namespace

void append_copy_runs(const KvLayout& layout, GroupIndex group, std::span<const BlockPair> pairs,
                      std::vector<PlannedRun>& runs) {
  HOSTKV_DCHECK(group.value() < layout.groups.size(), "group in range");
  const std::size_t first_run = runs.size();
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    HOSTKV_DCHECK(pairs[i].block != kNullBlock && pairs[i].block.value() < layout.num_blocks,
                  "block in range and not null");
    const std::size_t first_of_pair = runs.size();
    std::int64_t host_offset = pairs[i].host_offset_bytes;
    for (const KvBlockRange& range : layout.groups[group.value()]) {
      const std::int64_t block_offset = std::int64_t{pairs[i].block.value()} * range.block_stride_bytes;
      const PlannedRun next{.device_region = range.region,
                            .device_offset_bytes = range.offset_bytes + block_offset,
                            .host_offset_bytes = host_offset,
                            .size_bytes = range.size_bytes,
                            .first_pair = static_cast<std::uint32_t>(i),
                            .num_pairs = 1};
      host_offset += range.size_bytes;
      if (runs.size() == first_run || !merge(runs.back(), next)) {
        runs.push_back(next);
      }
    }
    // A block lies before the last run only as a whole.
    if (runs.size() == first_of_pair + 1 && first_of_pair > first_run && merge(runs[first_of_pair - 1], runs.back())) {
      runs.pop_back();
    }
  }
}

}  // namespace hostkv
