#include "bench/engine/connector_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "bench/engine/group_rules.h"
#include "bench/engine/planted_backend.h"
#include "hostkv/host_backend.h"

namespace hostkv::bench {
namespace {

constexpr std::chrono::seconds kShutdownTimeout{60};

CacheKey key_of(GroupIndex group, std::span<const std::byte> hash) {
  CacheKey key{{}, group};
  if (hash.size() == sizeof(key.hash)) std::memcpy(&key.hash, hash.data(), sizeof(key.hash));
  return key;
}

}  // namespace

GroupTable ConnectorBlocks::block_table(RequestId request, GroupIndex group, std::int64_t /*first_block*/) {
  const auto found = requests_.find(request);
  if (found == requests_.end() || group.value() >= found->second->tables.size()) return {};
  return found->second->tables[group.value()];
}

void ConnectorBlocks::find_cached(GroupIndex group, std::span<const std::byte> hashes, std::size_t hash_size_bytes,
                                  std::span<BlockId> blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i] = pool_.find(key_of(group, hashes.subspan(i * hash_size_bytes, hash_size_bytes))).value_or(kNullBlock);
    if (blocks[i] == kNullBlock) continue;
    if (may_be_written_over(group, blocks[i]) || (is_hidden_ && is_hidden_(blocks[i]))) blocks[i] = kNullBlock;
  }
}

// A running request's state whose key ends inside its block: the request goes on in that block.
bool ConnectorBlocks::may_be_written_over(GroupIndex group, BlockId block) const {
  return is_mamba(geometry_.group(group), MambaMode::kAlign) && !pool_.is_whole(block) && !pool_.is_free(block);
}

bool ConnectorBlocks::carries_key(BlockId block, GroupIndex group, std::span<const std::byte> hash) {
  return pool_.carries(block, key_of(group, hash));
}

void ConnectorBlocks::next_victims(std::size_t max_blocks, std::vector<CachedBlock>& victims) {
  pool_.visit_victims(max_blocks, [&](BlockId block, const CacheKey* key) {
    victims.push_back(key == nullptr ? CachedBlock{block, GroupIndex{}, {}}
                                     : CachedBlock{block, key->group, std::as_bytes(std::span(&key->hash, 1))});
  });
}

Result<std::unique_ptr<ConnectorLink>> ConnectorLink::create(const Geometry& geometry, const EngineConfig& config,
                                                             ModelRunner& runner, BlockPool& pool,
                                                             const RequestMap& requests) {
  std::unique_ptr<ConnectorLink> link(new ConnectorLink(geometry, runner, pool, requests));
  auto scheduler = SchedulerConnector::create(geometry, config.connector, runner.num_ranks(), link->blocks_);
  if (!scheduler) return error(scheduler.error());
  link->scheduler_ = std::move(*scheduler);
  if (Status status = link->add_workers(geometry, config); !status.ok()) return error(std::move(status));
  return link;
}

Status ConnectorLink::add_workers(const Geometry& geometry, const EngineConfig& config) {
  ConnectorOptions options = config.connector;
  if (config.plant != Plant::kNone) options.checksums = ChecksumMode::kOff;  // the engine is to find it by itself
  for (std::int64_t r = 0; r < runner_.num_ranks(); ++r) {
    const RankIndex rank{static_cast<std::uint32_t>(r)};
    auto backend = create_host_backend(HostBackendOptions{.copy_threads = config.connector.copy_threads});
    if (!backend) return backend.error();
    if (r == 0) *backend = plant_fault(std::move(*backend), config.plant);
    if (config.decorate_backend) *backend = config.decorate_backend(rank, std::move(*backend));
    auto worker =
        WorkerConnector::create(geometry, options, WorkerSpec{rank, runner_.num_ranks()}, std::move(*backend));
    if (!worker) return worker.error();
    const Result<WorkerCapacity> capacity = (*worker)->register_layout(runner_.connector_layout(rank));
    if (!capacity) return capacity.error();
    workers_.push_back(std::move(*worker));
    if (Status status = scheduler_->on_worker_capacity(*capacity); !status.ok()) return status;
  }
  return {};
}

ConnectorLink::~ConnectorLink() {
  for (const std::unique_ptr<WorkerConnector>& worker : workers_) {
    const Status status = worker->shutdown(kShutdownTimeout);
    if (!status.ok()) log_line(LogLevel::kError, "op=shutdown error=\"" + status.to_string() + "\"");
  }
  if (scheduler_) scheduler_->shutdown();
}

Status ConnectorLink::begin_step(const StepInput& step) {
  const Result<std::vector<std::byte>> metadata = scheduler_->build_step_metadata(step);
  if (!metadata) return metadata.error();
  for (std::size_t r = 0; r < workers_.size(); ++r) {
    const RankIndex rank{static_cast<std::uint32_t>(r)};
    if (Status status = workers_[r]->bind_step(*metadata, runner_.stream(rank)); !status.ok()) return status;
    if (Status status = workers_[r]->start_loads(); !status.ok()) return status;
  }
  return {};
}

Status ConnectorLink::start_stores() {
  for (const std::unique_ptr<WorkerConnector>& worker : workers_) {
    if (Status status = worker->start_stores(); !status.ok()) return status;
  }
  return {};
}

Result<std::vector<JobResult>> ConnectorLink::end_step() {
  std::vector<JobResult> results;
  for (const std::unique_ptr<WorkerConnector>& worker : workers_) {
    Result<std::vector<JobResult>> of_rank = worker->poll();
    if (!of_rank) return error(of_rank.error());
    results.insert(results.end(), std::make_move_iterator(of_rank->begin()), std::make_move_iterator(of_rank->end()));
  }
  std::ranges::stable_sort(results, {}, &JobResult::job);  // loads and stores end in any order
  return results;
}

std::vector<LoadOutcome> ConnectorLink::deliver(std::span<const JobResult> results) {
  scheduler_->on_worker_results(results);
  return scheduler_->take_load_outcomes();
}

Status ConnectorLink::wait_idle(std::chrono::nanoseconds timeout) {
  for (const std::unique_ptr<WorkerConnector>& worker : workers_) {
    if (Status status = worker->wait_idle(timeout); !status.ok()) return status;
  }
  return {};
}

}  // namespace hostkv::bench
