#include "connector/worker_connector.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/log.h"
#include "connector/working_geometry.h"
#include "hostkv/host_backend.h"

namespace hostkv {
namespace {

constexpr std::size_t kResultsPerPoll = 64;

std::string named(JobId id) {
  return "job " + std::to_string(id.value());
}

std::chrono::steady_clock::time_point deadline_after(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Result<std::unique_ptr<WorkerConnector>> WorkerConnector::create(Geometry geometry, ConnectorOptions options,
                                                                 WorkerSpec spec,
                                                                 std::unique_ptr<TransferBackend> backend) {
  if (Status status = options.validate(); !status.ok()) {
    return error(std::move(status));
  }
  if (Status status = check_num_ranks(geometry, spec.num_ranks); !status.ok()) {
    return error(std::move(status));
  }
  if (spec.rank.value() >= spec.num_ranks) {
    return error(StatusCode::kInvalidArgument, "rank is " + std::to_string(spec.rank.value()) + "; 0 .. " +
                                                   std::to_string(spec.num_ranks - 1) + " are allowed");
  }
  if (!backend) {
    auto host = create_host_backend(HostBackendOptions{.copy_threads = options.copy_threads});
    if (!host) {
      return error(std::move(host.error()));
    }
    backend = std::move(*host);
  }
  Result<Geometry> working = working_geometry(geometry, options.boundaries);
  if (!working) {
    return error(std::move(working.error()));
  }
  return std::make_unique<WorkerConnectorImpl>(std::move(*working), std::move(options), spec, std::move(backend));
}

WorkerConnectorImpl::WorkerConnectorImpl(Geometry geometry, ConnectorOptions options, WorkerSpec spec,
                                         std::unique_ptr<TransferBackend> backend)
    : geometry_(std::move(geometry)),
      options_(std::move(options)),
      spec_(spec),
      backend_(std::move(backend)),
      polled_(kResultsPerPoll) {}

// The backend ends every job before the pool goes.
WorkerConnectorImpl::~WorkerConnectorImpl() {
  backend_.reset();
  checksums_.reset();
}

Status WorkerConnectorImpl::check_ready() const {
  if (shut_down_) {
    return {StatusCode::kUnavailable, "the worker was shut down"};
  }
  return registered_ ? Status()
                     : Status(StatusCode::kFailedPrecondition, "no layout is registered; register_layout comes first");
}

Status WorkerConnectorImpl::bind_step(std::span<const std::byte> metadata, StreamHandle compute) {
  if (Status status = check_ready(); !status.ok()) {
    return status;
  }
  if (step_bound_) {
    return {StatusCode::kFailedPrecondition, "a step is bound already; poll() ends it"};
  }
  Result<StepMetadata> decoded = decode_step_metadata(metadata);
  if (!decoded) {
    return std::move(decoded.error());
  }
  if (Status status = check_message(*decoded); !status.ok()) {
    return status;
  }
  for (StepJob& job : decoded->jobs) {
    const JobId id = job.id;
    waiting_[static_cast<std::size_t>(job.direction)].push_back(id);
    jobs_.emplace(id, Accepted{.job = std::move(job), .epoch = decoded->epoch, .runs = {}});
  }
  last_sequence_ = decoded->sequence;
  last_epoch_ = decoded->epoch;
  compute_ = compute;
  step_bound_ = true;
  return {};
}

Status WorkerConnectorImpl::start_loads() {
  if (Status status = check_ready(); !status.ok()) {
    return status;
  }
  if (!step_bound_) {
    return {StatusCode::kFailedPrecondition, "no step is bound; bind_step comes first"};
  }
  start(Direction::kLoad);
  return {};
}

Status WorkerConnectorImpl::start_stores() {
  if (Status status = check_ready(); !status.ok()) {
    return status;
  }
  if (!step_bound_) {
    return {StatusCode::kFailedPrecondition, "no step is bound; bind_step comes first"};
  }
  start_behind_forward();
  return {};
}

// What this step's forward may still write is read behind it. Device copies first: requests wait for them.
void WorkerConnectorImpl::start_behind_forward() {
  start(Direction::kDeviceCopy);
  start(Direction::kStore);
}

// What the backend has no room for stays in order and goes in a later step: deferred, not dropped. Its blocks are
// pinned as long.
void WorkerConnectorImpl::start(Direction direction) {
  std::deque<JobId>& waiting = waiting_[static_cast<std::size_t>(direction)];
  while (!waiting.empty() && submit(waiting.front())) {
    waiting.pop_front();
  }
}

bool WorkerConnectorImpl::submit(JobId id) {
  if (!on_device_) {
    refuse_job(id, StatusCode::kUnavailable);
    return true;
  }
  Accepted& accepted = jobs_.at(id);
  const Status status = backend_->submit(make_transfer(accepted));
  if (status.ok()) {
    verify_loaded(accepted);
    return true;
  }
  if (status.code() == StatusCode::kResourceExhausted) {
    return false;
  }
  log_line(LogLevel::kWarning, "op=submit " + named(id) + " status=\"" + status.to_string() + "\"");
  refuse_job(id, status.code());
  return true;
}

TransferJob WorkerConnectorImpl::make_transfer(Accepted& accepted) const {
  const StepJob& job = accepted.job;
  TransferJob transfer{.id = job.id,
                       .direction = job.direction,
                       .runs = {},
                       .after = compute_,
                       .deadline = deadline_after(options_.transfer_timeout_seconds)};
  accepted.runs.clear();
  for (std::size_t begin = 0; begin < job.blocks.size();) {
    std::size_t end = begin + 1;
    while (end < job.blocks.size() && job.blocks[end].group == job.blocks[begin].group) {
      ++end;
    }
    if (job.direction == Direction::kDeviceCopy) {
      append_device_runs(accepted, begin, end, transfer.runs);
    } else {
      append_host_runs(accepted, begin, end, transfer.runs);
    }
    begin = end;
  }
  return transfer;
}

void WorkerConnectorImpl::append_host_runs(Accepted& accepted, std::size_t begin, std::size_t end,
                                           std::vector<CopyRun>& runs) const {
  const std::vector<StepBlock>& blocks = accepted.job.blocks;
  const GroupIndex group = blocks[begin].group;
  const bool store = accepted.job.direction == Direction::kStore;
  std::vector<BlockPair> pairs;
  pairs.reserve(end - begin);
  for (std::size_t i = begin; i < end; ++i) {
    pairs.push_back(BlockPair{blocks[i].block, plan_.offset_bytes(group, blocks[i].slot)});
  }
  std::vector<PlannedRun> planned;
  append_copy_runs(layout_, group, pairs, planned);
  for (const PlannedRun& run : planned) {
    const RegionId device = device_regions_[run.device_region];
    runs.push_back(CopyRun{.src_region = store ? device : *pool_region_,
                           .src_offset_bytes = store ? run.device_offset_bytes : run.host_offset_bytes,
                           .dst_region = store ? *pool_region_ : device,
                           .dst_offset_bytes = store ? run.host_offset_bytes : run.device_offset_bytes,
                           .size_bytes = run.size_bytes});
    accepted.runs.push_back({static_cast<std::uint32_t>(begin) + run.first_pair, run.num_pairs});
  }
}

void WorkerConnectorImpl::append_device_runs(Accepted& accepted, std::size_t begin, std::size_t end,
                                             std::vector<CopyRun>& runs) const {
  const std::vector<StepBlock>& blocks = accepted.job.blocks;
  std::vector<DevicePair> pairs;
  pairs.reserve(end - begin);
  for (std::size_t i = begin; i < end; ++i) {
    pairs.push_back(DevicePair{blocks[i].source(), blocks[i].block});
  }
  std::vector<DeviceRun> planned;
  append_device_copy_runs(layout_, blocks[begin].group, pairs, planned);
  for (const DeviceRun& run : planned) {
    const RegionId device = device_regions_[run.device_region];
    runs.push_back(CopyRun{.src_region = device,
                           .src_offset_bytes = run.src_offset_bytes,
                           .dst_region = device,
                           .dst_offset_bytes = run.dst_offset_bytes,
                           .size_bytes = run.size_bytes});
    accepted.runs.push_back({static_cast<std::uint32_t>(begin) + run.first_pair, run.num_pairs});
  }
}

Result<std::vector<JobResult>> WorkerConnectorImpl::poll() {
  if (Status status = check_ready(); !status.ok()) {
    return error(std::move(status));
  }
  if (step_bound_) {
    start(Direction::kLoad);
    start_behind_forward();
  }
  step_bound_ = false;
  compute_ = StreamHandle{};  // the engine's again; what waits for room is ordered after the next step's
  collect();
  return std::exchange(results_, {});
}

void WorkerConnectorImpl::collect() {
  std::size_t count = 0;
  do {
    count = backend_->poll(polled_);
    for (std::size_t i = 0; i < count; ++i) {
      end_copy(polled_[i]);
    }
  } while (count == polled_.size());
  if (checksums_) {
    checked_.clear();
    checksums_->take(checked_);
    for (const BlockChecksums::Result& result : checked_) {
      end_check(result);
    }
  }
}

void WorkerConnectorImpl::end_copy(const TransferResult& result) {
  const auto at = jobs_.find(result.id);
  if (at == jobs_.end()) {
    log_line(LogLevel::kWarning, "op=poll " + named(result.id) + " status=unknown");
    return;
  }
  Accepted& accepted = at->second;
  accepted.copied =
      JobResult{.epoch = accepted.epoch, .job = result.id, .rank = spec_.rank, .status = result.status, .failed = {}};
  std::vector<bool> failed;  // empty: none
  if (result.status != StatusCode::kOk) {
    failed = failed_blocks(accepted, result.failed_runs);
    accepted.copied->failed = list_of(accepted, failed);
  }
  moved_bytes(accepted.job.direction) += result.bytes_moved;
  record_stored(accepted, failed);
  if (!accepted.in_check) {
    end_job(accepted);
  }
}

std::int64_t& WorkerConnectorImpl::moved_bytes(Direction direction) {
  switch (direction) {
    case Direction::kStore:
      return metrics_.stored_bytes;
    case Direction::kLoad:
      return metrics_.loaded_bytes;
    case Direction::kDeviceCopy:
      break;
  }
  return metrics_.device_copied_bytes;
}

// [blocks of the job], however many runs each has. All, where the backend names none.
std::vector<bool> WorkerConnectorImpl::failed_blocks(const Accepted& accepted,
                                                     std::span<const std::uint32_t> failed_runs) {
  std::vector<bool> failed(accepted.job.blocks.size(), failed_runs.empty());
  for (const std::uint32_t run : failed_runs) {
    const Accepted::RunBlocks blocks = run < accepted.runs.size() ? accepted.runs[run] : Accepted::RunBlocks{};
    std::fill_n(failed.begin() + blocks.first, blocks.count, true);
  }
  return failed;
}

// None where all have failed.
std::vector<FailedBlock> WorkerConnectorImpl::list_of(const Accepted& accepted, const std::vector<bool>& failed) {
  std::vector<FailedBlock> blocks;
  for (std::size_t b = 0; b < failed.size(); ++b) {
    if (failed[b]) {
      blocks.push_back(FailedBlock{accepted.job.blocks[b].group, accepted.job.blocks[b].block});
    }
  }
  return blocks.size() == failed.size() ? std::vector<FailedBlock>{} : blocks;
}

void WorkerConnectorImpl::refuse_job(JobId id, StatusCode status) {
  ++metrics_.failed_jobs;
  results_.push_back(
      JobResult{.epoch = jobs_.at(id).epoch, .job = id, .rank = spec_.rank, .status = status, .failed = {}});
  jobs_.erase(id);
}

Status WorkerConnectorImpl::wait_idle(std::chrono::nanoseconds timeout) {
  if (Status status = check_ready(); !status.ok()) {
    return status;
  }
  return drain(timeout);
}

WorkerMetrics WorkerConnectorImpl::metrics() const {
  WorkerMetrics metrics = metrics_;
  metrics.jobs_in_flight = static_cast<std::int64_t>(jobs_.size());
  metrics.pool_bytes = pool_ ? pool_->size_bytes() : 0;
  return metrics;
}

}  // namespace hostkv
