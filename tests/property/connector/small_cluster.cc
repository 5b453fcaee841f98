#include "tests/property/connector/small_cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/support/connector_harness.h"
#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

constexpr std::int64_t kLayerBytes = 24;
constexpr std::int64_t kRowBytes = 3 * kLayerBytes;
constexpr unsigned char kGarbage = 0xDD;

}  // namespace

DeviceBlocks::DeviceBlocks(std::uint32_t num_blocks) : owners_(num_blocks, 0), pins_(num_blocks, 0) {
  for (std::uint32_t block = 1; block < num_blocks; ++block) {
    free_.push_back(BlockId{block});
  }
}

void DeviceBlocks::pin(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    misused = misused || block == kNullBlock || owners_[block.value()] + pins_[block.value()] == 0;
    ++pins_[block.value()];
  }
}

void DeviceBlocks::unpin(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    misused = misused || pins_[block.value()] == 0;
    --pins_[block.value()];
    free_if_unused(block);
  }
}

GroupTable DeviceBlocks::block_table(RequestId request, GroupIndex group, std::int64_t /*first_block*/) {
  const auto at = tables.find(request);
  return at == tables.end() ? GroupTable{} : GroupTable{at->second[group.value()]};
}

BlockId DeviceBlocks::take() {
  const BlockId block = free_.front();
  free_.pop_front();
  ++owners_[block.value()];
  return block;
}

void DeviceBlocks::give_back(BlockId& block) {
  if (block != kNullBlock) {
    --owners_[block.value()];
    free_if_unused(block);
    block = kNullBlock;
  }
}

void DeviceBlocks::free_if_unused(BlockId block) {
  if (owners_[block.value()] == 0 && pins_[block.value()] == 0) {
    free_.push_back(block);
    freed_.push_back(block);
  }
}

SmallCluster::SmallCluster(const Geometry& geometry, Limits limits, std::uint64_t seed)
    : geometry_(with_workers(geometry, limits.num_ranks)),
      limits_(limits),
      random_(seed),
      blocks_(limits.num_device_blocks) {
  ConnectorOptions options;
  options.cpu_bytes_to_use_per_rank = limits.num_host_slots * 128;
  auto scheduler = SchedulerConnector::create(geometry_, options, limits.num_ranks, blocks_);
  EXPECT_TRUE(scheduler.has_value());
  scheduler_ = std::move(*scheduler);
  ranks_.resize(static_cast<std::size_t>(limits.num_ranks));
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    add_rank(rank, limits);
  }
}

// Group 0 has two ranges that are apart, the others one each; all overlay each other.
void SmallCluster::add_rank(std::uint32_t rank, const Limits& limits) {
  Rank& added = ranks_[rank];
  const std::int64_t num_blocks = limits.num_device_blocks;
  added.device.layout.num_blocks = num_blocks;
  added.device.add_region(kRowBytes * num_blocks);
  for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
    auto& ranges = added.device.layout.groups.emplace_back();
    ranges.push_back({0, 0, kRowBytes, kLayerBytes});
    if (g == 0) {
      ranges.push_back({0, 2 * kLayerBytes, kRowBytes, kLayerBytes});
    }
  }
  auto backend = std::make_unique<StepBackend>();
  added.backend = backend.get();
  ConnectorOptions options;
  options.checksums = ChecksumMode::kOff;  // taken on threads; here every order is chosen
  options.cpu_bytes_to_use_per_rank = limits.num_host_slots * 128;
  auto worker = WorkerConnector::create(geometry_, options, {RankIndex{rank}, limits.num_ranks}, std::move(backend));
  EXPECT_TRUE(worker.has_value());
  added.worker = std::move(*worker);
  const auto capacity = added.worker->register_layout(added.device.layout);
  EXPECT_TRUE(capacity.has_value()) << (capacity ? "" : capacity.error().message());
  const Status status = scheduler_->on_worker_capacity(*capacity);
  EXPECT_TRUE(status.ok()) << status.message();
}

void SmallCluster::step() {
  add_requests();
  for (auto& [id, request] : requests_) {
    if ((request.phase == Phase::kWaiting || request.phase == Phase::kPromised) && chance(70)) {
      admit(id, request);
    }
  }
  run_step();
  move_bytes();
  deliver(!with_faults_);
  take_outcomes();
  if (with_faults_) {
    disturb();
  }
  scribble_freed();
  const Status status = scheduler_->check_conservation();
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_FALSE(blocks_.misused) << "a block of nobody was pinned, or unpinned once too often";
}

void SmallCluster::add_requests() {
  while (with_faults_ && requests_.size() < limits_.max_requests && chance(50)) {
    const RequestId id{++last_request_};
    Request& request = requests_[id];
    const std::int64_t hash_block = scheduler_->geometry().hash_block_tokens();
    const auto num_letters = static_cast<std::int64_t>(1 + random_() % 8);
    for (std::int64_t i = 0; i < num_letters; ++i) {
      request.text.push_back(chance(80) ? 'a' : 'b');
    }
    request.num_tokens = num_letters * hash_block + static_cast<std::int64_t>(random_() % 3);
    ASSERT_TRUE(scheduler_->add_request({.id = id, .num_prompt_tokens = request.num_tokens}).ok());
    ASSERT_TRUE(scheduler_->append_block_hashes(id, hashes_of(request.text, num_letters), 32).ok());
  }
}

void SmallCluster::admit(RequestId id, Request& request) {
  if (request.phase == Phase::kWaiting) {
    const std::int64_t block = scheduler_->geometry().scheduler_block_tokens();
    request.num_local = chance(30) ? request.num_tokens / 2 / block * block : 0;
    const Result<MatchResult> match = scheduler_->match_prefix(id, request.num_tokens, request.num_local);
    ASSERT_TRUE(match.has_value()) << match.error().message();
    request.num_external = match->num_external_tokens;
    ASSERT_LE(request.num_local + request.num_external, request.num_tokens - 1);
    request.phase = Phase::kPromised;
  }
  if (with_faults_ && chance(15)) {
    return;  // the promise waits for a later step
  }
  if (!give_blocks(id, request)) {
    ASSERT_TRUE(scheduler_->cancel_match(id).ok());
    request.phase = Phase::kWaiting;
    return;
  }
  const std::int64_t external = with_faults_ && chance(10) ? 0 : request.num_external;
  std::vector<GroupTable> tables;
  for (const auto& table : blocks_.tables.at(id)) {
    tables.emplace_back(table);
  }
  const Status status = scheduler_->on_blocks_allocated(id, tables, external);
  ASSERT_TRUE(status.ok()) << status.message();
  request.num_external = external;
  request.num_computed = request.num_local;
  request.phase = external > 0 ? Phase::kLoading : Phase::kRunning;
}

// Complete tables; what is on the device already has its bytes.
bool SmallCluster::give_blocks(RequestId id, const Request& request) {
  std::vector<std::size_t> counts;
  std::size_t wanted = 0;
  for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
    const std::int64_t span = geometry_.span_tokens(GroupIndex{g});
    counts.push_back(static_cast<std::size_t>((request.num_tokens + span - 1) / span));
    wanted += counts.back();
  }
  if (wanted > blocks_.num_free()) {
    return false;
  }
  auto& tables = blocks_.tables[id];
  tables.assign(geometry_.num_groups(), {});
  for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
    const GroupIndex group{g};
    for (std::size_t i = 0; i < counts[g]; ++i) {
      tables[g].push_back(blocks_.take());
      const auto end = static_cast<std::int64_t>(i + 1) * geometry_.span_tokens(group);
      if (is_state(group) ? end == request.num_local : end <= request.num_local) {
        write(id, request, group, static_cast<std::int64_t>(i));
      }
    }
  }
  return true;
}

void SmallCluster::release_blocks(RequestId id) {
  const auto at = blocks_.tables.find(id);
  if (at == blocks_.tables.end()) {
    return;
  }
  for (auto& table : at->second) {
    for (BlockId& block : table) {
      blocks_.give_back(block);
    }
  }
  blocks_.tables.erase(at);
}

void SmallCluster::run_step() {
  std::vector<ScheduledRequest> scheduled;
  std::vector<BoundaryHandOff> hand_offs;
  for (auto& [id, request] : requests_) {
    if (request.phase != Phase::kRunning || request.num_computed >= request.num_tokens || !chance(80)) {
      continue;
    }
    // What the window has left goes back before the step.
    for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
      const std::int64_t skipped =
          geometry_.skipped_tokens(GroupIndex{g}, request.num_computed) / geometry_.span_tokens(GroupIndex{g});
      for (std::int64_t i = 0; i < skipped && !is_state(GroupIndex{g}); ++i) {
        blocks_.give_back(blocks_.tables.at(id)[g][static_cast<std::size_t>(i)]);
      }
    }
    scribble_freed();
    const std::int64_t block = scheduler_->geometry().scheduler_block_tokens();
    std::int64_t count = static_cast<std::int64_t>(1 + random_() % static_cast<std::uint64_t>(3 * block));
    if (chance(60)) {  // up to a boundary
      count = (request.num_computed / block + 1) * block - request.num_computed;
    }
    count = std::min(count, request.num_tokens - request.num_computed);
    scheduled.push_back({id, request.num_computed, count});
    for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
      const std::int64_t end = request.num_computed + count;
      if (is_state(GroupIndex{g}) && end % block == 0) {
        const auto index = static_cast<std::size_t>(end / geometry_.span_tokens(GroupIndex{g}) - 1);
        hand_offs.push_back({id, GroupIndex{g}, blocks_.tables.at(id)[g][index], end});
      }
    }
  }
  const auto metadata =
      scheduler_->build_step_metadata({.scheduled = scheduled, .hand_offs = hand_offs, .preempted = preempted_});
  ASSERT_TRUE(metadata.has_value()) << metadata.error().message();
  preempted_.clear();
  for (Rank& rank : ranks_) {
    const Status bound = rank.worker->bind_step(*metadata, {});
    ASSERT_TRUE(bound.ok()) << bound.message();
    ASSERT_TRUE(rank.worker->start_loads().ok());
  }
  for (const ScheduledRequest& run : scheduled) {
    Request& request = requests_.at(run.id);
    compute(run.id, request, run.num_computed_tokens + run.num_scheduled_tokens);
    request.num_computed += run.num_scheduled_tokens;
  }
  for (Rank& rank : ranks_) {
    if (chance(70)) {
      ASSERT_TRUE(rank.worker->start_stores().ok());
    }
    Result<std::vector<JobResult>> results = rank.worker->poll();
    ASSERT_TRUE(results.has_value());
    std::ranges::move(*results, std::back_inserter(results_));
  }
}

void SmallCluster::compute(RequestId id, const Request& request, std::int64_t end_tokens) {
  const auto num_hashed = static_cast<std::int64_t>(request.text.size()) * scheduler_->geometry().hash_block_tokens();
  for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
    const GroupIndex group{g};
    const std::int64_t span = geometry_.span_tokens(group);
    for (std::int64_t i = request.num_computed / span; (i + 1) * span <= std::min(end_tokens, num_hashed); ++i) {
      if (!is_state(group) || (i + 1) * span == end_tokens) {
        write(id, request, group, i);
      }
    }
  }
}

void SmallCluster::move_bytes() {
  for (Rank& rank : ranks_) {
    for (const JobId job : rank.backend->in_flight()) {
      const std::uint64_t draw = with_faults_ ? random_() % 100 : 0;
      if (draw < 55) {
        EXPECT_TRUE(rank.backend->complete(job).ok());
      } else if (draw < 58) {
        EXPECT_TRUE(rank.backend->fail(job, StatusCode::kDeviceError, {0}).ok());
      } else if (draw < 60) {
        EXPECT_TRUE(rank.backend->expire(job).ok());
      }
    }
  }
}

void SmallCluster::deliver(bool all) {
  std::ranges::shuffle(results_, random_);
  std::vector<JobResult> now;
  std::vector<JobResult> later;
  for (JobResult& result : results_) {
    if (!all && chance(10)) {
      later.push_back(result);  // late, and sometimes twice
    }
    if (later.empty() || later.back().job != result.job || later.back().rank != result.rank || chance(30)) {
      now.push_back(std::move(result));
    }
  }
  results_ = std::move(later);
  scheduler_->on_worker_results(now);
}

void SmallCluster::take_outcomes() {
  for (const LoadOutcome& outcome : scheduler_->take_load_outcomes()) {
    const auto at = requests_.find(outcome.request);
    if (at == requests_.end()) {
      continue;  // aborted meanwhile
    }
    Request& request = at->second;
    ASSERT_EQ(request.phase, Phase::kLoading) << "one outcome a load";
    if (outcome.status != StatusCode::kOk) {
      ++failed_loads_;
      release_blocks(outcome.request);
      request.phase = Phase::kWaiting;
      continue;
    }
    request.num_computed = request.num_local + request.num_external;
    check_load(outcome.request, request);
    request.phase = Phase::kRunning;
    ++good_loads_;
  }
}

void SmallCluster::check_load(RequestId id, const Request& request) {
  for (std::uint32_t g = 0; g < geometry_.num_groups(); ++g) {
    const GroupIndex group{g};
    const BlockIndexRange needed = geometry_.needs(group, request.num_computed);
    for (std::int64_t i = needed.first_block; i < needed.end_block; ++i) {
      const BlockId block = blocks_.tables.at(id)[g][static_cast<std::size_t>(i)];
      const std::int64_t end = (i + 1) * geometry_.span_tokens(group);
      for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
        ASSERT_EQ(read(rank, group, block), content(rank, group, request, end))
            << "request " << id.value() << " \"" << request.text << "\" rank " << rank << " group " << g << " block "
            << i << " of a load from " << request.num_local << " to " << request.num_computed;
      }
    }
  }
}

void SmallCluster::disturb() {
  for (auto at = requests_.begin(); at != requests_.end();) {
    const RequestId id = at->first;
    Request& request = at->second;
    ++at;
    const bool done = request.phase == Phase::kRunning && request.num_computed >= request.num_tokens;
    if (done || chance(3)) {
      end(id);
    } else if (request.phase == Phase::kRunning && chance(5)) {
      preempted_.push_back(id);
      release_blocks(id);
      request.phase = Phase::kWaiting;
    }
  }
  if (chance(1)) {
    scheduler_->reset();
    for (auto& [id, request] : requests_) {
      request.phase = request.phase == Phase::kPromised ? Phase::kWaiting : request.phase;
    }
  }
}

void SmallCluster::end(RequestId id) {
  ASSERT_TRUE(scheduler_->request_finished(id, requests_.at(id).num_computed).ok());
  release_blocks(id);
  requests_.erase(id);
}

void SmallCluster::finish() {
  with_faults_ = false;
  while (!requests_.empty()) {
    end(requests_.begin()->first);
  }
  preempted_.clear();
  for (int i = 0; i < 100 && scheduler_->has_pending_work(); ++i) {
    step();
  }
  EXPECT_FALSE(scheduler_->has_pending_work());
  EXPECT_EQ(metrics().pinned_device_blocks, 0);
  EXPECT_EQ(metrics().pinned_slots, 0);
  EXPECT_EQ(metrics().jobs_in_flight, 0);
  EXPECT_EQ(blocks_.num_free(), limits_.num_device_blocks - 1U);
  EXPECT_TRUE(scheduler_->reset());
  EXPECT_EQ(metrics().used_bytes, 0);
  for (Rank& rank : ranks_) {
    EXPECT_EQ(rank.worker->metrics().jobs_in_flight, 0);
    EXPECT_TRUE(rank.worker->shutdown(std::chrono::seconds(0)).ok());
  }
}

void SmallCluster::scribble_freed() {
  for (const BlockId block : blocks_.take_freed()) {
    for (Rank& rank : ranks_) {
      std::memset(rank.device.memory[0].get() + std::int64_t{block.value()} * kRowBytes, kGarbage,
                  static_cast<std::size_t>(kRowBytes));
    }
  }
}

std::vector<unsigned char> SmallCluster::content(std::uint32_t rank, GroupIndex group, const Request& request,
                                                 std::int64_t end_tokens) const {
  const std::int64_t num_letters = end_tokens / scheduler_->geometry().hash_block_tokens();
  std::uint64_t state = 0x9E3779B97F4A7C15ULL * (rank * 16 + group.value() + 1);
  for (std::int64_t i = 0; i < num_letters; ++i) {
    state = (state ^ static_cast<unsigned char>(request.text[static_cast<std::size_t>(i)])) * 0xD1B54A32D192ED03ULL;
    state ^= state >> 31U;
  }
  std::vector<unsigned char> bytes(static_cast<std::size_t>(ranks_[rank].device.layout.block_bytes(group)));
  for (unsigned char& byte : bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<unsigned char>(state >> 56U);
  }
  return bytes;
}

void SmallCluster::write(RequestId id, const Request& request, GroupIndex group, std::int64_t block_index) {
  const BlockId block = blocks_.tables.at(id)[group.value()].at(static_cast<std::size_t>(block_index));
  for (std::uint32_t rank = 0; block != kNullBlock && rank < ranks_.size(); ++rank) {
    fill(rank, group, block, content(rank, group, request, (block_index + 1) * geometry_.span_tokens(group)));
  }
}

void SmallCluster::fill(std::uint32_t rank, GroupIndex group, BlockId block, const std::vector<unsigned char>& bytes) {
  OwnedLayout& device = ranks_[rank].device;
  std::size_t at = 0;
  for (const KvBlockRange& range : device.layout.groups[group.value()]) {
    const auto size = static_cast<std::size_t>(range.size_bytes);
    std::memcpy(device.memory[range.region].get() + range.offset_bytes + block.value() * range.block_stride_bytes,
                bytes.data() + at, size);
    at += size;
  }
}

std::vector<unsigned char> SmallCluster::read(std::uint32_t rank, GroupIndex group, BlockId block) const {
  const OwnedLayout& device = ranks_[rank].device;
  std::vector<unsigned char> bytes;
  for (const KvBlockRange& range : device.layout.groups[group.value()]) {
    const unsigned char* from =
        device.memory[range.region].get() + range.offset_bytes + block.value() * range.block_stride_bytes;
    bytes.insert(bytes.end(), from, from + range.size_bytes);
  }
  return bytes;
}

}  // namespace hostkv::testing
