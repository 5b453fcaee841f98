#include "offload/region_table.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "base/check.h"

namespace hostkv {
namespace {

bool overlap(const CopySpan& span) {
  const auto src = reinterpret_cast<std::uintptr_t>(span.src);
  const auto dst = reinterpret_cast<std::uintptr_t>(span.dst);
  const auto size = static_cast<std::uintptr_t>(span.size_bytes);
  return src < dst ? dst - src < size : src - dst < size;
}

std::string run_name(std::size_t index) {
  return "run " + std::to_string(index) + ": ";
}

}  // namespace

Result<RegionId> RegionTable::add(const RegionDesc& region) {
  if (region.base == nullptr) {
    return error(StatusCode::kInvalidArgument, "region base is null; it must be the address of its first byte");
  }
  if (region.size_bytes <= 0) {
    return error(StatusCode::kInvalidArgument,
                 "region size_bytes is " + std::to_string(region.size_bytes) + "; it must be > 0");
  }
  const std::lock_guard lock(mutex_);
  const RegionId id{next_id_++};
  entries_.emplace(id, Entry{static_cast<std::byte*>(region.base), region.size_bytes, 0});
  return id;
}

Status RegionTable::remove(RegionId region) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(region);
  if (found == entries_.end()) {
    return {StatusCode::kNotFound, "region " + std::to_string(region.value()) + " is unknown; " + known_ids()};
  }
  if (found->second.num_jobs > 0) {
    return {StatusCode::kFailedPrecondition, "region " + std::to_string(region.value()) + " is named by " +
                                                 std::to_string(found->second.num_jobs) +
                                                 " job(s) in flight; wait for them first"};
  }
  entries_.erase(found);
  return {};
}

Result<ResolvedRuns> RegionTable::resolve_and_hold(std::span<const CopyRun> runs) {
  if (runs.empty()) {
    return error(StatusCode::kInvalidArgument, "a job needs at least one run; it has none");
  }
  const std::lock_guard lock(mutex_);
  Result<ResolvedRuns> resolved = resolve(runs);
  if (resolved.has_value()) {
    for (const RegionId region : resolved->regions) {
      ++entries_.at(region).num_jobs;
    }
  }
  return resolved;
}

void RegionTable::release(std::span<const RegionId> regions) {
  const std::lock_guard lock(mutex_);
  for (const RegionId region : regions) {
    Entry& entry = entries_.at(region);
    HOSTKV_CHECK(entry.num_jobs > 0, "R13: a region is released once per job");
    --entry.num_jobs;
  }
}

Result<ResolvedRuns> RegionTable::resolve(std::span<const CopyRun> runs) const {
  ResolvedRuns resolved;
  resolved.spans.reserve(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const CopyRun& run = runs[i];
    const auto src = resolve_side(run.src_region, run.src_offset_bytes, run.size_bytes);
    if (!src.has_value()) {
      return error(src.error().code(), run_name(i) + "source " + src.error().message());
    }
    const auto dst = resolve_side(run.dst_region, run.dst_offset_bytes, run.size_bytes);
    if (!dst.has_value()) {
      return error(dst.error().code(), run_name(i) + "target " + dst.error().message());
    }
    resolved.spans.push_back({*src, *dst, run.size_bytes});
    if (overlap(resolved.spans.back())) {
      return error(StatusCode::kInvalidArgument, run_name(i) + "source and target overlap");
    }
    if (run.size_bytes > INT64_MAX - resolved.size_bytes) {
      return error(StatusCode::kInvalidArgument, run_name(i) + "the job's runs sum up to more than 2^63 - 1 bytes");
    }
    resolved.size_bytes += run.size_bytes;
    for (const RegionId region : {run.src_region, run.dst_region}) {
      const auto place = std::lower_bound(resolved.regions.begin(), resolved.regions.end(), region);
      if (place == resolved.regions.end() || *place != region) {
        resolved.regions.insert(place, region);
      }
    }
  }
  return resolved;
}

Result<std::byte*> RegionTable::resolve_side(RegionId region, std::int64_t offset_bytes,
                                             std::int64_t size_bytes) const {
  const auto found = entries_.find(region);
  if (found == entries_.end()) {
    return error(StatusCode::kInvalidArgument,
                 "region " + std::to_string(region.value()) + " is unknown; " + known_ids());
  }
  const Entry& entry = found->second;
  if (size_bytes <= 0) {
    return error(StatusCode::kInvalidArgument, "size_bytes is " + std::to_string(size_bytes) + "; it must be > 0");
  }
  if (offset_bytes < 0 || size_bytes > entry.size_bytes || offset_bytes > entry.size_bytes - size_bytes) {
    return error(StatusCode::kInvalidArgument, "offset_bytes " + std::to_string(offset_bytes) + " and size_bytes " +
                                                   std::to_string(size_bytes) + " leave region " +
                                                   std::to_string(region.value()) + " of " +
                                                   std::to_string(entry.size_bytes) + " bytes");
  }
  return entry.base + offset_bytes;
}

std::string RegionTable::known_ids() const {
  if (entries_.empty()) {
    return "none is registered";
  }
  return std::to_string(entries_.size()) + " registered, ids given out so far: 1 to " + std::to_string(next_id_ - 1);
}

}  // namespace hostkv
