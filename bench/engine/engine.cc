#include "bench/engine/engine.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/memory_limit.h"
#include "bench/engine/device_memory.h"
#include "bench/engine/engine_impl.h"
#include "bench/engine/group_rules.h"
#include "bench/engine/step_launch.h"

namespace hostkv::bench {
namespace {

constexpr std::chrono::milliseconds kIdleWait{20};
constexpr std::chrono::seconds kSettleTimeout{60};
constexpr std::int64_t kSlotAlignmentBytes = 128;
constexpr std::uint64_t kSampleOneIn = 16;
constexpr int kLoadRounds = 1000;

// A half filled block is copied while its request appends rows behind the boundary that the copy is for. Nobody reads
// those rows under that key; ThreadSanitizer cannot know it.
#if defined(__SANITIZE_THREAD__)
constexpr bool kSettlesInnerCopies = true;
#else
constexpr bool kSettlesInnerCopies = false;
#endif

Status out_of_range(const std::string& name, std::int64_t value, const std::string& range) {
  return Status(StatusCode::kInvalidArgument, name + " is " + std::to_string(value) + ", allowed is " + range);
}

Status validate(const EngineConfig& config) {
  constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 31;
  if (config.num_device_blocks < 1 || config.num_device_blocks > kMaxBlocks) {
    return out_of_range("num_device_blocks", config.num_device_blocks, "1 .. " + std::to_string(kMaxBlocks));
  }
  if (config.max_batched_tokens < 1) return out_of_range("max_batched_tokens", config.max_batched_tokens, "1 ..");
  if (config.max_running_requests < 1) return out_of_range("max_running_requests", config.max_running_requests, "1 ..");
  if (config.payload_bytes < 1 || config.payload_bytes > 4096) {
    return out_of_range("payload_bytes", config.payload_bytes, "1 .. 4096");
  }
  if (config.num_speculative_tokens < 0 || config.num_speculative_tokens > 64) {
    return out_of_range("num_speculative_tokens", config.num_speculative_tokens, "0 .. 64");
  }
  if (config.steps_in_flight < 1 || config.steps_in_flight > 2) {
    return out_of_range("steps_in_flight", config.steps_in_flight, "1 .. 2");
  }
  if (config.replay_tokens < 0) return out_of_range("replay_tokens", config.replay_tokens, "0 ..");
  if (config.retention_interval_tokens && *config.retention_interval_tokens < 0) {
    return out_of_range("retention_interval_tokens", *config.retention_interval_tokens, "0 .., or unset");
  }
  if (config.geometry.parallel.pcp > 1) return out_of_range("pcp", config.geometry.parallel.pcp, "1");
  if (config.geometry.parallel.pp > 1) return out_of_range("pp", config.geometry.parallel.pp, "1");
  return {};
}

// A block is known by the prefix hash at its end: there must be one. States closer than hashes are kept where one is.
Status check_blocks_end_at_hashes(const Geometry& geometry) {
  if (!geometry.spec().prefix_caching || !has_findable_prefixes(geometry)) return {};
  const std::int64_t hash_tokens = geometry.hash_block_tokens();
  for (std::uint32_t i = 0; i < geometry.num_groups(); ++i) {
    const GroupIndex g{i};
    const bool is_known_by_hashes = is_cached_group(geometry, g) && geometry.group(g).kind != GroupKind::kMamba;
    if (!is_known_by_hashes || geometry.span_tokens(g) % hash_tokens == 0) continue;
    return Status(StatusCode::kInvalidArgument,
                  geometry.group_label(g) + ": span " + std::to_string(geometry.span_tokens(g)) +
                      " is not a multiple of the hash block " + std::to_string(hash_tokens) +
                      ", which is the scheduler block beside recurrent states of mode all; use mode align or blocks "
                      "of " +
                      std::to_string(hash_tokens) + " tokens");
  }
  return {};
}

Status no_memory(const EngineConfig& config, std::int64_t rank_bytes, const std::string& why) {
  return Status(StatusCode::kResourceExhausted, "num_device_blocks " + std::to_string(config.num_device_blocks) +
                                                    " with payload_bytes " + std::to_string(config.payload_bytes) +
                                                    " needs " + std::to_string(rank_bytes) + " bytes on each of " +
                                                    std::to_string(config.geometry.parallel.dcp) + " ranks, " + why);
}

Status check_memory(const EngineConfig& config, std::int64_t rank_bytes) {
  const std::int64_t limit_bytes = memory_limit_bytes();
  if (rank_bytes <= limit_bytes / config.geometry.parallel.dcp) return {};
  return no_memory(config, rank_bytes, "this process may have " + std::to_string(limit_bytes) + " in all");
}

}  // namespace

std::vector<std::int64_t> payload_block_bytes(const EngineConfig& config) {
  std::vector<std::int64_t> sizes;
  for (const KvCacheGroup& group : config.geometry.groups) {
    sizes.push_back(group_block_bytes(group, config.payload_bytes));
  }
  return sizes;
}

std::int64_t host_bytes_for_blocks(const EngineConfig& config, std::int64_t num_blocks) {
  std::int64_t largest = 0;
  for (const KvCacheGroup& group : config.geometry.groups) {
    const bool is_offloadable = group.cacheable && group.transferable && !has_one_block(group);
    if (is_offloadable) largest = std::max(largest, group_block_bytes(group, config.payload_bytes));
  }
  return num_blocks * cdiv(largest, kSlotAlignmentBytes) * kSlotAlignmentBytes;
}

Result<std::unique_ptr<Engine>> Engine::create(EngineConfig config) {
  if (Status status = validate(config); !status.ok()) return error(std::move(status));
  const std::vector<std::int64_t> sizes = payload_block_bytes(config);
  for (std::size_t g = 0; g < sizes.size(); ++g) config.geometry.groups[g].page_bytes = sizes[g];
  // The ranks are those of DCP; tensor-parallel ones beside them would only repeat what these do.
  if (config.geometry.parallel.tp == 1) config.geometry.parallel.tp = config.geometry.parallel.dcp;
  Result<Geometry> geometry = Geometry::resolve(config.geometry);
  if (!geometry) return error(geometry.error());
  if (Status status = check_blocks_end_at_hashes(*geometry); !status.ok()) return error(std::move(status));
  const std::int64_t rank_bytes = device_memory_bytes(*geometry, config.payload_bytes, config.num_device_blocks + 1);
  if (Status status = check_memory(config, rank_bytes); !status.ok()) return error(std::move(status));
  try {
    const bool offload = config.offload;
    auto engine = std::make_unique<EngineImpl>(config, std::move(*geometry));
    if (offload) {
      if (Status status = engine->connect(); !status.ok()) return error(std::move(status));
    }
    return engine;
  } catch (const std::bad_alloc&) {
    return error(no_memory(config, rank_bytes, "which cannot be had"));
  }
}

EngineImpl::EngineImpl(EngineConfig config, Geometry geometry)
    : config_(std::move(config)),
      geometry_(std::move(geometry)),
      pool_(config_.num_device_blocks),
      scheduler_(config_, geometry_, pool_, requests_),
      runner_(geometry_, config_) {}

Status EngineImpl::connect() {
  auto link = ConnectorLink::create(geometry_, config_, runner_, pool_, requests_);
  if (!link) return link.error();
  link_ = std::move(*link);
  scheduler_.set_connector(&link_->scheduler());
  // Then loads, and the device copies among them, run before the step's forward, not behind it.
  if (config_.load_mode == LoadMode::kSynchronous) {
    link_->blocks().set_hidden([this](BlockId block) { return scheduler_.is_keyed_in_this_pass(block); });
  }
  return {};
}

bool EngineImpl::is_checked(const Request& request) const {
  if (config_.check == CheckBytes::kSampled) return request.id.value() % kSampleOneIn == 1;
  return config_.check == CheckBytes::kAll;
}

void EngineImpl::launch_forward(StepInFlight& step) {
  const bool runs = config_.check != CheckBytes::kOff;
  std::vector<ForwardChunk> forwards;
  for (std::size_t i = 0; i < plan_.chunks.size(); ++i) {
    Request& request = *requests_.at(plan_.scheduled[i].id);
    step.chunks.push_back(launch_chunk(config_, geometry_, plan_.chunks[i], runs, request));
    step.chunks.back().forward.check = is_checked(request);
    if (runs) forwards.push_back(step.chunks.back().forward);
  }
  step.forward = runner_.launch(std::move(forwards));
}

// Copies first: what they read may be a load's target in the same step. A load that brings nothing must not find old
// bytes that happen to be right.
void EngineImpl::prepare_blocks() {
  if (config_.check == CheckBytes::kOff) return;
  runner_.copy(std::span(plan_.copies).subspan(std::exchange(num_copied_, plan_.copies.size())));
  runner_.scrub(std::span(plan_.load_targets).subspan(std::exchange(num_scrubbed_, plan_.load_targets.size())));
}

// What the backend has no room for goes in a later round. Who is still loading after the last one waits for a later
// step.
Status EngineImpl::load_now() {
  prepare_blocks();
  for (int round = 0; round < kLoadRounds && scheduler_.is_loading(); ++round) {
    if (Status status = link_->begin_step({}); !status.ok()) return status;
    if (Status status = link_->start_stores(); !status.ok()) return status;
    if (Status status = link_->wait_idle(kSettleTimeout); !status.ok()) return status;
    const Result<std::vector<JobResult>> reports = link_->end_step();
    if (!reports) return reports.error();
    const std::vector<LoadOutcome> outcomes = link_->deliver(*reports);
    if (Status status = scheduler_.apply_load_outcomes(outcomes); !status.ok()) return status;
  }
  return scheduler_.admit_loads(plan_);
}

Status EngineImpl::run_on_ranks(StepInFlight& step) {
  prepare_blocks();
  if (!link_) {
    launch_forward(step);
    return {};
  }
  const StepInput input{plan_.scheduled, plan_.hand_offs, plan_.preempted};
  if (Status status = link_->begin_step(input); !status.ok()) return status;
  if (config_.plant == Plant::kStoreBeforeCompute) {
    if (Status status = link_->start_stores(); !status.ok()) return status;
    if (Status status = link_->wait_idle(std::chrono::seconds(30)); !status.ok()) return status;
    launch_forward(step);
    return {};
  }
  launch_forward(step);
  return link_->start_stores();
}

Status EngineImpl::take_reports_of(StepInFlight& step) {
  if (!link_ || step.has_reports) return {};
  if (config_.settle_copies || (kSettlesInnerCopies && geometry_.fine_hits())) {
    if (Status status = link_->wait_idle(kSettleTimeout); !status.ok()) return status;
  }
  Result<std::vector<JobResult>> reports = link_->end_step();
  if (!reports) return reports.error();
  step.reports = std::move(*reports);
  step.has_reports = true;
  return {};
}

Status EngineImpl::step() {
  Result<StepPlan> plan = scheduler_.plan_step();
  if (!plan) return plan.error();
  plan_ = std::move(*plan);
  num_copied_ = num_scrubbed_ = 0;
  ++num_steps_;
  // The workers end one step before they begin the next.
  if (!in_flight_.empty()) {
    if (Status status = take_reports_of(in_flight_.back()); !status.ok()) return status;
  }
  if (config_.load_mode == LoadMode::kSynchronous && scheduler_.is_loading()) {
    if (Status status = load_now(); !status.ok()) return status;
  }
  StepInFlight& launched = in_flight_.emplace_back();
  launched.number = plan_.number;
  if (Status status = run_on_ranks(launched); !status.ok()) {
    runner_.synchronize();
    in_flight_.pop_back();
    return status;
  }
  while (std::ssize(in_flight_) > config_.steps_ahead()) {
    if (Status status = settle_oldest_step(); !status.ok()) return status;
  }
  return {};
}

Status EngineImpl::settle_oldest_step() {
  StepInFlight& step = in_flight_.front();
  runner_.settle(step.forward);
  if (Status status = take_reports_of(step); !status.ok()) return status;
  if (link_) {
    const std::vector<LoadOutcome> outcomes = link_->deliver(step.reports);
    if (Status status = scheduler_.apply_load_outcomes(outcomes); !status.ok()) return status;
  }
  const Status status = scheduler_.complete_step(step.number, step.chunks);
  in_flight_.pop_front();
  return status;
}

Status EngineImpl::run_until_idle(std::int64_t max_steps) {
  std::int64_t num_stalled = 0;
  while (!idle()) {
    const std::int64_t progress = scheduler_.num_progress();
    if (Status status = step(); !status.ok()) return status;
    num_stalled = scheduler_.num_progress() == progress ? num_stalled + 1 : 0;
    if (num_stalled == 0 || idle()) continue;
    if (num_stalled >= max_steps) {
      return Status(StatusCode::kDeadlineExceeded,
                    "no progress in " + std::to_string(num_stalled) + " steps: " + scheduler_.describe_requests());
    }
    // Nobody ran: only copies can bring the next step forward; one that takes longer is no reason to stop.
    if (link_ && plan_.scheduled.empty()) static_cast<void>(link_->wait_idle(kIdleWait));
  }
  return {};
}

bool EngineImpl::idle() const {
  // Steps in flight whose requests have all ended still use blocks of theirs.
  const bool has_work = scheduler_.has_requests() || !scheduler_.deferred_frees().empty();
  return !has_work && !(link_ && link_->scheduler().has_pending_work());
}

bool EngineImpl::reset_prefix_cache(bool reset_connector) {
  const bool is_free = pool_.num_free() == pool_.num_usable();
  if (is_free) pool_.evict_cached();
  const bool is_connector_reset = !reset_connector || !link_ || link_->scheduler().reset();
  return is_free && is_connector_reset;
}

EngineStats EngineImpl::stats() const {
  const CheckCounts& counts = runner_.counts();
  return EngineStats{.steps = num_steps_,
                     .bytes_checked = counts.bytes_checked,
                     .bytes_wrong = counts.bytes_wrong,
                     .first_wrong = counts.first_wrong,
                     .computed_tokens = scheduler_.num_computed_tokens(),
                     .preemptions = scheduler_.num_preemptions(),
                     .free_device_blocks = pool_.num_free(),
                     .pinned_device_blocks = pool_.num_pinned()};
}

SchedulerMetrics EngineImpl::scheduler_metrics() const {
  return link_ ? link_->scheduler().metrics() : SchedulerMetrics{};
}

const Request* EngineImpl::request(RequestId id) const {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second.get();
}

void EngineImpl::corrupt_device_byte(RankIndex rank, GroupIndex group, BlockId block, std::int64_t offset_bytes) {
  runner_.synchronize();
  *runner_.byte_at(rank, group, block, offset_bytes) ^= std::byte{0xFF};
}

}  // namespace hostkv::bench
