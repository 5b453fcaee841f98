// What a step's message may ask of this rank. Everything is checked before anything is taken.

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "connector/worker_connector.h"

namespace hostkv {
namespace {

std::string named(JobId id) {
  return "job " + std::to_string(id.value());
}

Status refused(const std::string& what) {
  return {StatusCode::kInvalidArgument, "step metadata refused: " + what};
}

}  // namespace

Status WorkerConnectorImpl::check_message(const StepMetadata& metadata) const {
  if (metadata.sequence <= last_sequence_ || metadata.epoch < last_epoch_) {
    return refused("step " + std::to_string(metadata.sequence) + " of epoch " + std::to_string(metadata.epoch) +
                   " behind step " + std::to_string(last_sequence_) + " of epoch " + std::to_string(last_epoch_));
  }
  std::unordered_set<JobId> seen;
  for (const StepJob& job : metadata.jobs) {
    if (jobs_.contains(job.id) || !seen.insert(job.id).second) {
      return refused(named(job.id) + " is in flight already");
    }
    if (Status status = check_job(job); !status.ok()) {
      return status;
    }
  }
  return {};
}

Status WorkerConnectorImpl::check_job(const StepJob& job) const {
  if (job.blocks.empty()) {
    return refused(named(job.id) + " has no block");
  }
  if (job.direction == Direction::kDeviceCopy && !pool_region_) {
    return refused(named(job.id) + " copies on the device; this rank has no pool, nothing is ever found for it");
  }
  for (const StepBlock& block : job.blocks) {
    if (Status status = check_block(job, block); !status.ok()) {
      return status;
    }
  }
  return job.direction == Direction::kDeviceCopy ? check_targets(job) : Status();
}

Status WorkerConnectorImpl::check_block(const StepJob& job, const StepBlock& block) const {
  if (block.group.value() >= geometry_.num_groups() || !geometry_.offloadable(block.group)) {
    return refused(named(job.id) + " names group " + std::to_string(block.group.value()) +
                   "; offloadable groups of 0 .. " + std::to_string(geometry_.num_groups() - 1) + " are allowed");
  }
  if (Status status = check_device_block(job, block.block.value()); !status.ok()) {
    return status;
  }
  return job.direction == Direction::kDeviceCopy ? check_device_block(job, block.slot.value()) : check_slot(job, block);
}

Status WorkerConnectorImpl::check_device_block(const StepJob& job, std::uint64_t block) const {
  if (block == kNullBlock.value() || block >= static_cast<std::uint64_t>(layout_.num_blocks)) {
    return refused(named(job.id) + " names block " + std::to_string(block) + "; 1 .. " +
                   std::to_string(layout_.num_blocks - 1) + " are allowed");
  }
  return {};
}

Status WorkerConnectorImpl::check_slot(const StepJob& job, const StepBlock& block) const {
  if (!plan_.contains(block.group, block.slot)) {
    return refused(named(job.id) + " names place " + std::to_string(index_in_slab(block.slot)) + " of slab " +
                   std::to_string(slab_of(block.slot)) + "; this rank has " + std::to_string(plan_.num_slabs) +
                   " slabs of " + std::to_string(plan_.slots_per_slab[block.group.value()]) + " places for " +
                   geometry_.group_label(block.group));
  }
  return {};
}

// The runs of a job have no order between them: a block that is written must be neither read nor written by another.
Status WorkerConnectorImpl::check_targets(const StepJob& job) {
  std::vector<BlockId> targets;
  targets.reserve(job.blocks.size());
  for (const StepBlock& block : job.blocks) {
    targets.push_back(block.block);
  }
  std::ranges::sort(targets);
  if (const auto twice = std::ranges::adjacent_find(targets); twice != targets.end()) {
    return refused(named(job.id) + " has block " + std::to_string(twice->value()) + " twice as a target");
  }
  for (const StepBlock& block : job.blocks) {
    if (std::ranges::binary_search(targets, block.source())) {
      return refused(named(job.id) + " has block " + std::to_string(block.slot.value()) +
                     " as a source and as a target");
    }
  }
  return {};
}

}  // namespace hostkv
