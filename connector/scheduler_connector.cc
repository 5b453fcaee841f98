#include "connector/scheduler_connector.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "connector/working_geometry.h"
#include "offload/lru_policy.h"
#include "offload/pool_plan.h"

namespace hostkv {
namespace {

constexpr std::uint64_t kMaxPlaces = std::uint64_t{1} << 31U;  // an EntryId numbers them
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40U;
constexpr std::int64_t kMaxSlabBytes = std::int64_t{1} << 50U;

std::string named(RequestId id) {
  return "request " + std::to_string(id.value());
}

Status unknown_request(RequestId id) {
  return {StatusCode::kNotFound, named(id) + " is unknown (finished, or never added)"};
}

// Slabs kept free for sets with a recurrent state: two of the smallest, and at most a sixteenth of the pool.
std::uint64_t slabs_for_states(const Geometry& geometry, const std::vector<std::uint32_t>& slots_per_slab,
                               std::uint64_t num_slabs) {
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    if (geometry.offloadable(GroupIndex{g}) && is_align_state(geometry.group(GroupIndex{g}))) {
      return std::min(2 * slabs_of_boundary_set(geometry, slots_per_slab), num_slabs / 16);
    }
  }
  return 0;
}

// Groups may share slabs when their slots have one size on every rank: equal counts everywhere.
std::vector<std::uint32_t> classes_of_groups(const std::vector<std::optional<WorkerCapacity>>& capacities,
                                             std::uint32_t num_groups, std::vector<std::uint32_t>& slots_per_slab) {
  std::map<std::vector<std::uint32_t>, std::uint32_t> class_of_counts;
  std::vector<std::uint32_t> class_of_group(num_groups, SlotAllocator::kNoClass);
  for (std::uint32_t g = 0; g < num_groups; ++g) {
    std::vector<std::uint32_t> counts;
    for (const auto& capacity : capacities) {
      counts.push_back(capacity->slots_per_slab[g]);
    }
    if (counts.front() == 0) {
      continue;
    }
    const auto [at, added] = class_of_counts.try_emplace(counts, static_cast<std::uint32_t>(slots_per_slab.size()));
    if (added) {
      slots_per_slab.push_back(*std::ranges::min_element(counts));
    }
    class_of_group[g] = at->second;
  }
  return class_of_group;
}

}  // namespace

Result<std::unique_ptr<SchedulerConnector>> SchedulerConnector::create(Geometry geometry, ConnectorOptions options,
                                                                       std::int64_t num_ranks, EngineBlocks& blocks,
                                                                       EngineTraits traits) {
  if (Status status = options.validate(); !status.ok()) {
    return error(std::move(status));
  }
  if (Status status = check_num_ranks(geometry, num_ranks); !status.ok()) {
    return error(std::move(status));
  }
  Result<Geometry> working = working_geometry(geometry, options.boundaries);
  if (!working) {
    return error(std::move(working.error()));
  }
  if (options.store_mode == StoreMode::kLazy && !blocks.shows_cache()) {
    return error(StatusCode::kInvalidArgument,
                 "store_mode is lazy, but the engine does not show its block pool (EngineBlocks::shows_cache); allowed "
                 "with this engine: eager");
  }
  return std::make_unique<SchedulerConnectorImpl>(std::move(*working), std::move(options), num_ranks, blocks, traits);
}

SchedulerConnectorImpl::SchedulerConnectorImpl(Geometry geometry, ConnectorOptions options, std::int64_t num_ranks,
                                               EngineBlocks& engine, EngineTraits traits)
    : geometry_(std::move(geometry)),
      options_(std::move(options)),
      num_ranks_(num_ranks),
      engine_(engine),
      traits_(traits),
      capacities_(static_cast<std::size_t>(num_ranks)),
      lost_tokens_(geometry_.num_groups(), 0) {
  namespace_fingerprint_ =
      make_namespace_fingerprint(geometry_.fingerprint(), std::as_bytes(std::span(options_.cache_namespace)));
  if (traits_.damages_fine_hits) {
    damaged_.emplace(geometry_);
  }
}

SchedulerConnectorImpl::~SchedulerConnectorImpl() {
  shutdown();  // no pin of ours outlives us
}

SchedulerConnectorImpl::Pool::Pool(OffloadCache made,
                                   const std::function<StorePlanner::Context(OffloadCache&)>& context_of)
    : cache(std::move(made)),
      search(context_of(cache).geometry, cache,
             context_of(cache).engine.shows_cache() ? &context_of(cache).engine : nullptr,
             context_of(cache).namespace_fingerprint),
      planner(context_of(cache)),
      victims(context_of(cache)) {}

Status SchedulerConnectorImpl::check_alive() const {
  return shut_down_ ? Status(StatusCode::kUnavailable, "the connector was shut down") : Status();
}

RequestState* SchedulerConnectorImpl::find_request(RequestId id) {
  const auto at = requests_.find(id);
  return at == requests_.end() ? nullptr : &at->second;
}

Status SchedulerConnectorImpl::check_capacity(const WorkerCapacity& capacity) const {
  const std::size_t rank = capacity.rank.value();
  const std::string who = "rank " + std::to_string(rank);
  if (rank >= capacities_.size()) {
    return {StatusCode::kInvalidArgument,
            who + " reported its capacity; ranks 0 .. " + std::to_string(num_ranks_ - 1) + " exist"};
  }
  if (capacities_[rank]) {
    return {StatusCode::kFailedPrecondition, who + " has reported its capacity already"};
  }
  if (capacity.fingerprint != geometry_.fingerprint() || capacity.slots_per_slab.size() != geometry_.num_groups()) {
    return {StatusCode::kInvalidArgument,
            who + " runs another geometry (fingerprint " + std::to_string(capacity.fingerprint) + ", " +
                std::to_string(capacity.slots_per_slab.size()) + " groups; here " +
                std::to_string(geometry_.fingerprint()) + ", " + std::to_string(geometry_.num_groups()) + " groups)"};
  }
  const bool can_serve = host_can_serve(geometry_);
  for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
    const bool offloadable = can_serve && geometry_.offloadable(GroupIndex{g});
    if ((capacity.slots_per_slab[g] > 0) != offloadable || capacity.slots_per_slab[g] > 65536) {
      return {StatusCode::kInvalidArgument, who + ": " + geometry_.group_label(GroupIndex{g}) + " has " +
                                                std::to_string(capacity.slots_per_slab[g]) + " slots a slab; " +
                                                (offloadable ? "1 .. 65536 are allowed" : "it is not offloadable: 0")};
    }
  }
  if (capacity.num_slabs > 0 && (capacity.slab_bytes < 1 || capacity.slab_bytes > kMaxSlabBytes)) {
    return {StatusCode::kInvalidArgument, who + " has slabs of " + std::to_string(capacity.slab_bytes) +
                                              " bytes; 1 .. " + std::to_string(kMaxSlabBytes) + " are allowed"};
  }
  const std::uint32_t widest = *std::ranges::max_element(capacity.slots_per_slab);
  if (capacity.num_slabs > kMaxPlaces / std::max(widest, 1U)) {
    return {StatusCode::kInvalidArgument, who + " has a host pool of " + std::to_string(capacity.num_slabs) +
                                              " slabs of up to " + std::to_string(widest) + " places; at most " +
                                              std::to_string(kMaxPlaces) + " places can be numbered"};
  }
  if (const std::uint64_t needed = slabs_of_boundary_set(geometry_, capacity.slots_per_slab);
      capacity.num_slabs < needed) {
    return {StatusCode::kInvalidArgument,
            who + " has a host pool of " + std::to_string(capacity.num_slabs) + " slabs of " +
                std::to_string(capacity.slab_bytes) + " bytes; one boundary set of " +
                std::to_string(geometry_.scheduler_block_tokens()) + " tokens needs " + std::to_string(needed)};
  }
  return {};
}

Status SchedulerConnectorImpl::on_worker_capacity(const WorkerCapacity& capacity) {
  if (Status status = check_alive(); !status.ok()) {
    return status;
  }
  if (Status status = check_capacity(capacity); !status.ok()) {
    return status;
  }
  capacities_[capacity.rank.value()] = capacity;
  if (std::ranges::all_of(capacities_, [](const auto& known) { return known.has_value(); })) {
    make_pool();
  }
  return {};
}

void SchedulerConnectorImpl::make_pool() {
  std::vector<std::uint32_t> slots_per_slab;
  std::vector<std::uint32_t> class_of_group = classes_of_groups(capacities_, geometry_.num_groups(), slots_per_slab);
  if (slots_per_slab.empty()) {
    log_line(LogLevel::kWarning,
             "op=start host_hits=never reason=\"a group of this model keeps what no host can bring back\"");
    return;
  }
  const auto smallest = std::ranges::min_element(
      capacities_, {}, [](const std::optional<WorkerCapacity>& capacity) { return capacity->num_slabs; });
  const std::uint64_t num_slabs = (*smallest)->num_slabs;
  auto policy = std::make_unique<LruPolicy>(static_cast<std::uint32_t>(slots_per_slab.size()));
  OffloadCache cache(std::move(slots_per_slab), num_slabs, std::move(policy));
  cache.set_reserved_slabs(slabs_for_states(geometry_, (*smallest)->slots_per_slab, num_slabs));
  if (options_.store_mode == StoreMode::kLazy) {
    withheld_.emplace(geometry_);
  }
  // The searcher and the planners keep references into the pool: it is built where it stays.
  pool_.emplace(std::move(cache), [&](OffloadCache& of_pool) {
    return StorePlanner::Context{.geometry = geometry_,
                                 .cache = of_pool,
                                 .engine = engine_,
                                 .metrics = metrics_,
                                 .namespace_fingerprint = namespace_fingerprint_,
                                 .class_of_group = class_of_group,
                                 .withheld = withheld_ ? &*withheld_ : nullptr,
                                 .damaged = damaged_ ? &*damaged_ : nullptr,
                                 .events = traits_.record_events ? &events_ : nullptr};
  });
  if (traits_.record_events) {
    pool_->cache.record_events(events_);
  }
  trust_device(true);
  pool_->slab_bytes = (*smallest)->slab_bytes;
  pool_->num_slabs = num_slabs;
  log_line(LogLevel::kInfo, "op=start min_reusable_tokens=" + std::to_string(geometry_.min_reusable_tokens()) +
                                " slabs=" + std::to_string(num_slabs) + " slab_bytes=" +
                                std::to_string(pool_->slab_bytes) + " ranks=" + std::to_string(num_ranks_));
}

Status SchedulerConnectorImpl::add_request(const RequestInfo& request) {
  if (Status status = check_alive(); !status.ok()) {
    return status;
  }
  if (request.num_prompt_tokens < 1) {
    return {StatusCode::kInvalidArgument, named(request.id) + ": num_prompt_tokens is " +
                                              std::to_string(request.num_prompt_tokens) + "; at least 1 is needed"};
  }
  if (request.max_offload_tokens.value_or(0) < 0) {
    return {StatusCode::kInvalidArgument, named(request.id) + ": max_offload_tokens is " +
                                              std::to_string(*request.max_offload_tokens) + "; 0 or more is needed"};
  }
  if (loads_.contains(request.id)) {
    return {StatusCode::kFailedPrecondition,
            named(request.id) + " ended, but its load has not: its id is not free yet"};
  }
  if (std::ranges::find(outcomes_, request.id, &LoadOutcome::request) != outcomes_.end()) {
    return {StatusCode::kFailedPrecondition,
            named(request.id) + " ended, but the outcome of its load was not taken: its id is not free yet"};
  }
  const auto [at, added] = requests_.try_emplace(request.id);
  if (!added) {
    return {StatusCode::kFailedPrecondition, named(request.id) + " is alive already"};
  }
  RequestState& state = at->second;
  state.id = request.id;
  state.num_prompt_tokens = request.num_prompt_tokens;
  state.skip_reading_cache = request.skip_reading_cache;
  state.max_offload_tokens = request.max_offload_tokens.value_or(kNoOffloadLimit);
  state.hashes.hash_block_tokens = geometry_.hash_block_tokens();
  return {};
}

Status SchedulerConnectorImpl::append_block_hashes(RequestId id, std::span<const std::byte> hashes,
                                                   std::size_t hash_size_bytes) {
  if (Status status = check_alive(); !status.ok()) {
    return status;
  }
  RequestState* request = find_request(id);
  if (request == nullptr) {
    return unknown_request(id);
  }
  if (hash_size_bytes == 0 || hash_size_bytes > kMaxHashSizeBytes || hashes.size() % hash_size_bytes != 0) {
    return {StatusCode::kInvalidArgument, named(id) + ": " + std::to_string(hashes.size()) + " bytes of hashes of " +
                                              std::to_string(hash_size_bytes) + " bytes each; whole hashes of 1 .. " +
                                              std::to_string(kMaxHashSizeBytes) + " bytes are needed"};
  }
  if (hashes.empty()) {
    return {};
  }
  HashChain& chain = request->hashes;
  if (chain.hash_size_bytes != 0 && chain.hash_size_bytes != hash_size_bytes) {
    return {StatusCode::kInvalidArgument, named(id) + ": hashes of " + std::to_string(hash_size_bytes) +
                                              " bytes behind hashes of " + std::to_string(chain.hash_size_bytes) +
                                              " bytes"};
  }
  chain.hash_size_bytes = hash_size_bytes;
  chain.bytes.insert(chain.bytes.end(), hashes.begin(), hashes.end());
  return {};
}

Status SchedulerConnectorImpl::truncate_block_hashes(RequestId id, std::int64_t num_hashes) {
  if (Status status = check_alive(); !status.ok()) {
    return status;
  }
  RequestState* request = find_request(id);
  if (request == nullptr) {
    return unknown_request(id);
  }
  if (num_hashes < 0) {
    return {StatusCode::kInvalidArgument,
            named(id) + ": num_hashes is " + std::to_string(num_hashes) + "; 0 or more is needed"};
  }
  request->hashes.truncate(num_hashes);
  const std::int64_t hashed_tokens = request->hashes.hashed_tokens();
  request->stores.go_back_to(hashed_tokens);
  request->judged_tokens = std::min(request->judged_tokens, hashed_tokens);
  request->damaged_tokens = std::min(request->damaged_tokens, hashed_tokens);
  if (request->promise && request->promise->boundary_tokens > hashed_tokens) {
    drop_promise(*request);  // its last tokens are others now
  }
  return {};
}

void SchedulerConnectorImpl::lose_blocks(RequestState& request) {
  request.load_failed = false;
  if (request.admitted) {
    request.admitted = false;
    end_chain(request.chain);
  }
}

Status SchedulerConnectorImpl::request_finished(RequestId id, std::int64_t num_computed_tokens,
                                                std::span<const BoundaryHandOff> hand_offs) {
  if (Status status = check_alive(); !status.ok()) {
    return status;
  }
  RequestState* request = find_request(id);
  if (request == nullptr) {
    return {};  // idempotent: an engine may tell it twice (R14)
  }
  if (num_computed_tokens < 0) {
    return {StatusCode::kInvalidArgument,
            named(id) + ": num_computed_tokens is " + std::to_string(num_computed_tokens) + "; 0 or more is needed"};
  }
  drop_promise(*request);
  for (const BoundaryHandOff& hand_off : hand_offs) {
    const bool is_usable = hand_off.id == id && usable(hand_off);
    metrics_.ignored_hand_offs += is_usable ? 0 : 1;
    if (is_usable) {
      request->hand_offs.push_back(hand_off);
    }
  }
  if (request->admitted && !request->loading) {
    plan_stores(*request, num_computed_tokens, StorePlanner::Moment::kEnd);
    note_damage(*request, num_computed_tokens);
    if (withheld_) {
      judge_offload_limit(*request, num_computed_tokens);
    }
  }
  end_chain(request->chain);
  requests_.erase(id);
  return {};
}

bool SchedulerConnectorImpl::reset() {
  ++epoch_;
  drop_unsent_jobs(StatusCode::kCanceled);
  for (auto& [id, request] : requests_) {
    drop_promise(request);
    request.tainted = request.admitted;
    request.load_failed = false;
  }
  trust_device(engine_is_clean());
  for (std::optional<WithheldHashes>* hashes : {&withheld_, &damaged_}) {
    if (*hashes && trusts_device_) {
      (*hashes)->clear();
    }
  }
  if (pool_) {
    pool_->cache.clear();
  }
  chains_.clear();
  whole_chains_.clear();
  return jobs_.empty();
}

// Nothing in the engine's own cache is from before, nor will be.
bool SchedulerConnectorImpl::engine_is_clean() {
  const bool owns_blocks = std::ranges::any_of(requests_, [](const auto& request) { return request.second.admitted; });
  if (owns_blocks || !engine_.shows_cache()) {
    return !owns_blocks;
  }
  if (!jobs_.empty()) {
    return false;  // the blocks that they pin are in no queue now, and come back with their keys
  }
  if (engine_.num_free_blocks() < engine_.num_blocks()) {
    return false;  // so do those that the engine keeps for its steps in flight
  }
  std::vector<CachedBlock> cached;
  engine_.next_victims(static_cast<std::size_t>(std::max<std::int64_t>(0, engine_.num_free_blocks())), cached);
  return std::ranges::all_of(cached, [](const CachedBlock& block) { return block.hash.empty(); });
}

// What the device holds may be copied, and left to it, only while all of it is of this epoch.
void SchedulerConnectorImpl::trust_device(bool trust) {
  if (pool_ && trusts_device_ && !trust && engine_.shows_cache()) {
    log_line(LogLevel::kWarning,
             "op=reset device_cache=not_empty effect='no block of the device is stored lazily or copied until a reset "
             "finds its cache empty; what is computed from now on is stored as in mode eager'");
  }
  trusts_device_ = trust;
  if (pool_) {
    pool_->planner.leave_to_device(trust && options_.store_mode == StoreMode::kLazy);
  }
}

bool SchedulerConnectorImpl::has_pending_work() const {
  const bool saves_victims = pool_ && options_.store_mode == StoreMode::kLazy && trusts_device_;
  return !jobs_.empty() || !outcomes_.empty() || (saves_victims && pool_->victims.is_due());
}

void SchedulerConnectorImpl::shutdown() {
  if (shut_down_) {
    return;
  }
  trusts_device_ = false;  // there is nothing to warn of any more
  reset();
  for (auto& [id, job] : jobs_) {
    abandon_job(job, StatusCode::kCanceled);
  }
  jobs_.clear();
  started_loads_.clear();
  outcomes_.clear();
  loads_.clear();
  for (const auto& [id, request] : requests_) {
    end_chain(request.chain);
  }
  requests_.clear();
  shut_down_ = true;
}

SchedulerMetrics SchedulerConnectorImpl::metrics() const {
  SchedulerMetrics metrics = metrics_;
  metrics.jobs_in_flight = static_cast<std::int64_t>(jobs_.size());
  metrics.pinned_device_blocks = pinned_device_blocks_;
  if (pool_) {
    metrics.capacity_bytes = pool_->slab_bytes * static_cast<std::int64_t>(pool_->num_slabs);
    metrics.used_bytes = pool_->slab_bytes * static_cast<std::int64_t>(pool_->cache.num_used_slabs());
    metrics.stored_keys = static_cast<std::int64_t>(pool_->cache.num_ready());
    metrics.pinned_slots = static_cast<std::int64_t>(pool_->cache.num_pinned());
    metrics.evicted_blocks = static_cast<std::int64_t>(pool_->cache.num_evictions());
  }
  return metrics;
}

}  // namespace hostkv
