// The memory of a rank: its layout on the device, which may come and go, and its pool, which stays.

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "connector/worker_connector.h"
#include "connector/working_geometry.h"

namespace hostkv {

Result<WorkerCapacity> WorkerConnectorImpl::register_layout(const KvLayout& layout) {
  if (shut_down_ || on_device_) {
    return error(shut_down_ ? StatusCode::kUnavailable : StatusCode::kFailedPrecondition,
                 shut_down_ ? "the worker was shut down" : "a layout is registered already");
  }
  if (Status status = layout.validate(geometry_); !status.ok()) {
    return error(std::move(status));
  }
  std::vector<std::int64_t> block_bytes = block_bytes_of(layout);
  if (Status status = registered_ ? check_same_blocks(block_bytes) : make_pool(block_bytes); !status.ok()) {
    return error(std::move(status));
  }
  if (Status status = pool_ ? register_regions(layout) : Status(); !status.ok()) {
    if (!registered_) {
      checksums_.reset();
      pool_.reset();
    }
    return error(std::move(status));
  }
  layout_ = layout;
  block_bytes_ = std::move(block_bytes);
  registered_ = true;
  on_device_ = true;
  return WorkerCapacity{.rank = spec_.rank,
                        .num_slabs = plan_.num_slabs,
                        .slab_bytes = plan_.slab_bytes,
                        .slots_per_slab = plan_.slots_per_slab,
                        .fingerprint = geometry_.fingerprint()};
}

std::vector<std::int64_t> WorkerConnectorImpl::block_bytes_of(const KvLayout& layout) const {
  std::vector<std::int64_t> block_bytes;
  for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
    block_bytes.push_back(layout.block_bytes(GroupIndex{g}));
  }
  return block_bytes;
}

// What the pool holds was cut for the blocks of before.
Status WorkerConnectorImpl::check_same_blocks(std::span<const std::int64_t> block_bytes) const {
  for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
    if (block_bytes[g] != block_bytes_[g]) {
      return {StatusCode::kInvalidArgument, "the layout has blocks of " + std::to_string(block_bytes[g]) +
                                                " bytes for " + geometry_.group_label(GroupIndex{g}) +
                                                "; the pool holds blocks of " + std::to_string(block_bytes_[g]) +
                                                " bytes, which is what a layout must have again"};
    }
  }
  return {};
}

Status WorkerConnectorImpl::make_pool(std::span<const std::int64_t> block_bytes) {
  if (!host_can_serve(geometry_)) {
    plan_.slots_per_slab.assign(geometry_.num_groups(), 0);  // no pool for what is never stored
    return {};
  }
  Result<PoolPlan> plan = PoolPlan::make(geometry_, block_bytes, options_.bytes_per_rank(spec_.num_ranks));
  if (!plan) {
    return std::move(plan.error());
  }
  if (plan->num_slabs > 0) {
    Result<std::unique_ptr<HostPool>> pool =
        HostPool::create(HostPoolOptions{.size_bytes = plan->pool_bytes(), .numa_node = {}});
    if (!pool) {
      return std::move(pool.error());
    }
    pool_ = std::move(*pool);
  }
  plan_ = std::move(*plan);
  if (pool_ && options_.checksums != ChecksumMode::kOff) {
    places_per_slab_ = *std::ranges::max_element(plan_.slots_per_slab);
    checksums_ =
        std::make_unique<BlockChecksums>(options_.checksums, plan_.num_slabs * places_per_slab_, options_.copy_threads);
  }
  return {};
}

// All or nothing: what was registered before a failure is taken back.
Status WorkerConnectorImpl::register_regions(const KvLayout& layout) {
  std::vector<RegionId> done;
  const auto add = [&](const RegionDesc& region) -> Status {
    Result<RegionId> id = backend_->register_region(region);
    if (!id) {
      return id.error();
    }
    done.push_back(*id);
    return {};
  };
  Status status = pool_region_ ? Status() : add(RegionDesc{pool_->data(), plan_.pool_bytes(), Medium::kHost});
  for (std::size_t r = 0; status.ok() && r < layout.regions.size(); ++r) {
    status = add(RegionDesc{layout.regions[r].base, layout.regions[r].size_bytes, Medium::kDevice});
  }
  if (!status.ok()) {
    (void)unregister(done);
    return status;
  }
  pool_region_ = pool_region_ ? pool_region_ : done.front();
  device_regions_.assign(done.end() - std::ssize(layout.regions), done.end());
  return {};
}

// All of them; the first error, if there is one.
Status WorkerConnectorImpl::unregister(std::span<const RegionId> regions) {
  Status first;
  for (const RegionId region : regions) {
    if (Status status = backend_->unregister_region(region); !status.ok()) {
      log_line(LogLevel::kWarning, "op=unregister " + status.to_string());
      first = first.ok() ? std::move(status) : std::move(first);
    }
  }
  return first;
}

Status WorkerConnectorImpl::unregister_layout(std::chrono::nanoseconds timeout) {
  if (shut_down_) {
    return {StatusCode::kUnavailable, "the worker was shut down"};
  }
  if (!on_device_ || step_bound_) {
    return {StatusCode::kFailedPrecondition, on_device_ ? "a step is bound; poll() ends it before the layout goes"
                                                        : "no layout is registered; register_layout comes first"};
  }
  if (Status status = drain(timeout); !status.ok()) {
    return status;
  }
  on_device_ = false;
  for (std::deque<JobId>& waiting : waiting_) {  // found the backend's queue full
    for (const JobId id : std::exchange(waiting, {})) {
      refuse_job(id, StatusCode::kUnavailable);
    }
  }
  return unregister(std::exchange(device_regions_, {}));
}

Result<std::span<std::byte>> WorkerConnectorImpl::host_block(GroupIndex group, SlotId slot) {
  if (Status status = check_ready(); !status.ok()) {
    return error(std::move(status));
  }
  if (!plan_.contains(group, slot)) {
    const bool has_group = group.value() < geometry_.num_groups();
    return error(StatusCode::kInvalidArgument,
                 "place " + std::to_string(index_in_slab(slot)) + " of slab " + std::to_string(slab_of(slot)) +
                     " of group " + std::to_string(group.value()) + "; this rank has " +
                     std::to_string(plan_.num_slabs) + " slabs of " +
                     std::to_string(has_group ? plan_.slots_per_slab[group.value()] : 0) + " places for it");
  }
  return std::span(pool_->data() + plan_.offset_bytes(group, slot),
                   static_cast<std::size_t>(block_bytes_[group.value()]));
}

Status WorkerConnectorImpl::shutdown(std::chrono::nanoseconds timeout) {
  if (shut_down_) {
    return {};
  }
  if (Status status = drain(timeout); !status.ok()) {
    return status;
  }
  std::vector<RegionId> regions = std::exchange(device_regions_, {});
  if (pool_region_) {
    regions.push_back(*pool_region_);
    pool_region_.reset();
  }
  (void)unregister(regions);
  shut_down_ = true;
  on_device_ = false;
  checksums_.reset();
  pool_.reset();
  jobs_.clear();
  return {};
}

}  // namespace hostkv
