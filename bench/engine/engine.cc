#include "bench/engine/engine.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/memory_limit.h"
#include "bench/engine/device_memory.h"
#include "bench/engine/engine_impl.h"
#include "bench/engine/group_rules.h"
#include "bench/engine/payload.h"

namespace hostkv::bench {
namespace {

constexpr std::chrono::milliseconds kIdleWait{20};
constexpr std::chrono::seconds kSettleTimeout{60};
constexpr std::int64_t kSlotAlignmentBytes = 128;
constexpr std::uint64_t kSampleOneIn = 16;

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
  return {};
}

bool EngineImpl::is_checked(const Request& request) const {
  if (config_.check == CheckBytes::kSampled) return request.id.value() % kSampleOneIn == 1;
  return config_.check == CheckBytes::kAll;
}

void EngineImpl::launch_forward() {
  if (config_.check == CheckBytes::kOff) return;
  std::vector<ForwardChunk> chunks;
  for (std::size_t i = 0; i < plan_.chunks.size(); ++i) {
    const ChunkPlan& planned = plan_.chunks[i];
    Request& request = *requests_.at(plan_.scheduled[i].id);
    const std::int64_t end = planned.end_tokens + planned.num_accepted;
    std::vector<std::int32_t> accepted;
    for (std::int64_t k = 0; k < planned.num_accepted; ++k) {
      accepted.push_back(output_token(request.output_seed, request.num_output_tokens() + k));
    }
    extend_prefix_states(config_.seed, request.tokens, planned.end_tokens, request.states);
    extend_prefix_states_by(accepted, request.states);
    chunks.push_back(ForwardChunk{.request = &request,
                                  .begin_tokens = planned.begin_tokens,
                                  .end_tokens = end,
                                  .num_accepted = planned.num_accepted,
                                  .check = is_checked(request),
                                  .num_rejected = planned.num_drafts - planned.num_accepted,
                                  .checkpoint_tokens = planned.checkpoint_tokens,
                                  .replay_begin_tokens = planned.replay_begin_tokens});
  }
  runner_.launch(std::move(chunks));
}

Status EngineImpl::run_on_ranks() {
  if (config_.check != CheckBytes::kOff) runner_.copy(plan_.copies);
  if (!link_) {
    launch_forward();
    return {};
  }
  // A load that brings nothing must not find old bytes that happen to be right.
  if (config_.check != CheckBytes::kOff) runner_.scrub(plan_.load_targets);
  const StepInput input{plan_.scheduled, plan_.hand_offs, plan_.preempted};
  if (Status status = link_->begin_step(input); !status.ok()) return status;
  if (config_.plant == Plant::kStoreBeforeCompute) {
    if (Status status = link_->start_stores(); !status.ok()) return status;
    if (Status status = link_->wait_idle(std::chrono::seconds(30)); !status.ok()) return status;
    launch_forward();
    return {};
  }
  launch_forward();
  return link_->start_stores();
}

Status EngineImpl::step() {
  Result<StepPlan> plan = scheduler_.plan_step();
  if (!plan) return plan.error();
  plan_ = std::move(*plan);
  ++num_steps_;
  const Status ran = run_on_ranks();
  runner_.synchronize();
  if (!ran.ok()) return ran;
  if (link_) {
    if (config_.settle_copies || (kSettlesInnerCopies && geometry_.fine_hits())) {
      if (Status status = link_->wait_idle(kSettleTimeout); !status.ok()) return status;
    }
    const Result<std::vector<LoadOutcome>> outcomes = link_->end_step();
    if (!outcomes) return outcomes.error();
    if (Status status = scheduler_.apply_load_outcomes(*outcomes); !status.ok()) return status;
  }
  return scheduler_.complete_step(plan_);
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
  return !scheduler_.has_requests() && !(link_ && link_->scheduler().has_pending_work());
}

bool EngineImpl::reset_prefix_cache(bool reset_connector) {
  const bool is_free = pool_.num_free() == pool_.num_usable();
  if (is_free) pool_.evict_cached();
  const bool is_connector_reset = !reset_connector || !link_ || link_->scheduler().reset();
  return is_free && is_connector_reset;
}

EngineStats EngineImpl::stats() const {
  CheckCounts counts = runner_.counts();
  return EngineStats{.steps = num_steps_,
                     .bytes_checked = counts.bytes_checked,
                     .bytes_wrong = counts.bytes_wrong,
                     .first_wrong = std::move(counts.first_wrong),
                     .computed_tokens = scheduler_.num_computed_tokens(),
                     .preemptions = scheduler_.num_preemptions(),
                     .free_device_blocks = pool_.num_free(),
                     .pinned_device_blocks = pool_.num_pinned()};
}

SchedulerMetrics EngineImpl::scheduler_metrics() const {
  return link_ ? link_->scheduler().metrics() : SchedulerMetrics{};
}

Status EngineImpl::check_conservation() const {
  std::vector<std::int32_t> owners(static_cast<std::size_t>(pool_.num_usable()) + 1, 0);
  for (const auto& entry : requests_) {
    for (const std::vector<BlockId>& table : entry.second->tables) {
      for (const BlockId block : table) {
        if (block != kNullBlock) ++owners[block.value()];
      }
    }
    for (const BlockId block : entry.second->copied_states) ++owners[block.value()];
  }
  if (Status status = pool_.check_conservation(owners); !status.ok()) return status;
  return link_ ? link_->scheduler().check_conservation() : Status();
}

const Request* EngineImpl::request(RequestId id) const {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second.get();
}

void EngineImpl::corrupt_device_byte(RankIndex rank, GroupIndex group, BlockId block, std::int64_t offset_bytes) {
  *runner_.byte_at(rank, group, block, offset_bytes) ^= std::byte{0xFF};
}

}  // namespace hostkv::bench
