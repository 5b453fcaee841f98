// The part of a rank that holds what it loads against what it has stored.

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "connector/worker_connector.h"
#include "offload/deadline.h"

namespace hostkv {

std::size_t WorkerConnectorImpl::place_of(const StepBlock& block) const {
  return static_cast<std::size_t>(slab_of(block.slot)) * places_per_slab_ + index_in_slab(block.slot);
}

// Those blocks of a store that have arrived; also of a job that failed in part, whose other sets are published.
// `failed`: [blocks of the job], or empty: none.
void WorkerConnectorImpl::record_stored(Accepted& accepted, const std::vector<bool>& failed) {
  if (checksums_ && accepted.job.direction == Direction::kStore) {
    accepted.in_check = checksums_->record(accepted.job.id, blocks_to_check(accepted, failed));
  }
}

// Beside the copy: both read the same bytes, which nobody writes while the load is in flight.
void WorkerConnectorImpl::verify_loaded(Accepted& accepted) {
  if (checksums_ && accepted.job.direction == Direction::kLoad) {
    accepted.in_check = checksums_->verify(accepted.job.id, blocks_to_check(accepted, {}));
  }
}

// `left_out`: [blocks of the job], or empty: none.
std::vector<BlockChecksums::Block> WorkerConnectorImpl::blocks_to_check(Accepted& accepted,
                                                                        const std::vector<bool>& left_out) const {
  std::vector<BlockChecksums::Block> blocks;
  accepted.checked.clear();
  for (std::size_t i = 0; i < accepted.job.blocks.size(); ++i) {
    const StepBlock& block = accepted.job.blocks[i];
    if ((!left_out.empty() && left_out[i]) || !checksums_->covers(place_of(block))) {
      continue;
    }
    const std::byte* first = pool_->data() + plan_.offset_bytes(block.group, block.slot);
    blocks.push_back({place_of(block), {first, static_cast<std::size_t>(block_bytes_[block.group.value()])}});
    accepted.checked.push_back(static_cast<std::uint32_t>(i));
  }
  return blocks;
}

void WorkerConnectorImpl::end_check(const BlockChecksums::Result& result) {
  Accepted& accepted = jobs_.at(result.job);
  accepted.in_check = false;
  if (accepted.job.direction == Direction::kLoad) {
    metrics_.checked_blocks += std::ssize(accepted.checked);
    metrics_.changed_blocks += std::ssize(result.changed);
  }
  accepted.changed.clear();
  for (const std::uint32_t changed : result.changed) {
    accepted.changed.push_back(accepted.checked[changed]);
  }
  if (accepted.copied) {
    end_job(accepted);
  }
}

// Copy and check have ended. A block fails by either.
void WorkerConnectorImpl::end_job(const Accepted& accepted) {
  JobResult result = *accepted.copied;
  if (!accepted.changed.empty()) {
    log_changed(accepted);
    result.failed = failed_by_either(accepted);
    result.status = result.status == StatusCode::kOk ? StatusCode::kDataCorruption : result.status;
  }
  metrics_.failed_jobs += result.status == StatusCode::kOk ? 0 : 1;
  const JobId id = result.job;
  results_.push_back(std::move(result));
  jobs_.erase(id);
}

std::vector<FailedBlock> WorkerConnectorImpl::failed_by_either(const Accepted& accepted) {
  const JobResult& copied = *accepted.copied;
  std::vector<FailedBlock> by_copy = copied.failed;
  std::ranges::sort(by_copy);
  const bool all_by_copy = copied.status != StatusCode::kOk && by_copy.empty();
  std::vector<bool> failed(accepted.job.blocks.size(), all_by_copy);
  for (std::size_t i = 0; i < failed.size(); ++i) {
    const StepBlock& block = accepted.job.blocks[i];
    failed[i] = failed[i] || std::ranges::binary_search(by_copy, FailedBlock{block.group, block.block});
  }
  for (const std::uint32_t changed : accepted.changed) {
    failed[changed] = true;
  }
  return list_of(accepted, failed);
}

void WorkerConnectorImpl::log_changed(const Accepted& accepted) const {
  const StepBlock& first = accepted.job.blocks[accepted.changed.front()];
  log_line(LogLevel::kError, "op=verify rank=" + std::to_string(spec_.rank.value()) +
                                 " changed_blocks=" + std::to_string(accepted.changed.size()) +
                                 " first_group=" + std::to_string(first.group.value()) +
                                 " first_slot=" + std::to_string(first.slot.value()) +
                                 " error=\"bytes changed in host memory after they were stored; they are computed "
                                 "again. Test the machine's memory\"");
}

Status WorkerConnectorImpl::drain(std::chrono::nanoseconds timeout) {
  const auto deadline = deadline_after(timeout);
  if (Status status = backend_->drain(timeout); !status.ok()) {
    return status;
  }
  if (!checksums_) {
    return {};
  }
  collect();  // what was stored is checked from here on
  const auto left = std::max(deadline - std::chrono::steady_clock::now(), std::chrono::steady_clock::duration::zero());
  return checksums_->drain(left) ? Status()
                                 : Status(StatusCode::kDeadlineExceeded, "checksums of copied blocks are still taken");
}

}  // namespace hostkv
