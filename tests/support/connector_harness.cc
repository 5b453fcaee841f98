#include "tests/support/connector_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

constexpr std::size_t kHashBytes = 32;

std::uint64_t fold(std::uint64_t state, std::uint64_t value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15ULL;
  return state ^ (state >> 29U);
}

}  // namespace

void FakeBlocks::pin(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    if (block == kNullBlock) {
      errors_.push_back("the null block was pinned");
    }
    if (block == kStaleBlock) {
      errors_.push_back("a table entry below first_block was read");
    }
    ++pins_[block];
  }
}

void FakeBlocks::unpin(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    const auto at = pins_.find(block);
    if (at == pins_.end()) {
      errors_.push_back("block " + std::to_string(block.value()) + " was unpinned, but nobody pins it");
    } else if (--at->second == 0) {
      pins_.erase(at);
    }
  }
}

GroupTable FakeBlocks::block_table(RequestId request, GroupIndex group, std::int64_t first_block) {
  const auto at = tables_.find(request);
  if (at == tables_.end()) {
    return {};
  }
  std::vector<BlockId>& shown = shown_[request][group];
  shown = at->second[group.value()];
  std::fill_n(shown.begin(), std::clamp<std::int64_t>(first_block, 0, std::ssize(shown)), kStaleBlock);
  return shown;
}

std::vector<std::vector<BlockId>>& FakeBlocks::give(RequestId request, std::uint32_t num_groups,
                                                    std::size_t num_blocks) {
  std::vector<std::vector<BlockId>>& table = tables_[request];
  table.assign(num_groups, {});
  for (std::vector<BlockId>& group : table) {
    for (std::size_t i = 0; i < num_blocks; ++i) {
      group.push_back(BlockId{++last_block_});
    }
  }
  return table;
}

std::vector<GroupTable> FakeBlocks::tables(RequestId request) const {
  std::vector<GroupTable> tables;
  for (const std::vector<BlockId>& group : tables_.at(request)) {
    tables.emplace_back(group);
  }
  return tables;
}

std::int64_t FakeBlocks::num_pins() const {
  std::int64_t count = 0;
  for (const auto& [block, pins] : pins_) {
    count += pins;
  }
  return count;
}

std::vector<std::byte> hashes_of(const std::string& text, std::int64_t num_blocks) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(num_blocks) * kHashBytes);
  std::uint64_t state = 1;
  for (std::size_t i = 0; i < static_cast<std::size_t>(num_blocks); ++i) {
    // One letter a block; the last one goes on for ever.
    state = fold(state, static_cast<unsigned char>(text[std::min(i, text.size() - 1)]));
    for (std::size_t word = 0; word < kHashBytes / sizeof(std::uint64_t); ++word) {
      const std::uint64_t value = fold(state, word);
      std::memcpy(bytes.data() + i * kHashBytes + word * sizeof(value), &value, sizeof(value));
    }
  }
  return bytes;
}

SchedulerRig::SchedulerRig(const Geometry& geometry, std::int64_t ranks, ConnectorOptions options, EngineTraits traits)
    : num_ranks(ranks) {
  auto made = SchedulerConnector::create(with_workers(geometry, ranks), std::move(options), ranks, engine, traits);
  EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().message());
  connector = std::move(*made);
}

WorkerCapacity SchedulerRig::capacity(std::uint32_t rank, std::uint64_t num_slabs) const {
  const Geometry& geometry = connector->geometry();
  WorkerCapacity capacity{.rank = RankIndex{rank},
                          .num_slabs = num_slabs,
                          .slab_bytes = 128,
                          .slots_per_slab = {},
                          .fingerprint = geometry.fingerprint()};
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    capacity.slots_per_slab.push_back(geometry.offloadable(GroupIndex{g}) ? 1 : 0);
  }
  return capacity;
}

void SchedulerRig::report_all(std::uint64_t num_slabs) {
  for (std::uint32_t rank = 0; rank < static_cast<std::uint32_t>(num_ranks); ++rank) {
    const Status status = connector->on_worker_capacity(capacity(rank, num_slabs));
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

void SchedulerRig::add(std::uint64_t id, const std::string& text, std::int64_t num_tokens) {
  EXPECT_EQ(connector->add_request({.id = RequestId{id}, .num_prompt_tokens = num_tokens}), Status());
  const std::vector<std::byte> hashes = hashes_of(text, num_tokens / connector->geometry().hash_block_tokens());
  EXPECT_EQ(connector->append_block_hashes(RequestId{id}, hashes, kHashBytes), Status());
}

std::int64_t SchedulerRig::match(std::uint64_t id, std::int64_t num_tokens, std::int64_t num_local_tokens) {
  const Result<MatchResult> result = connector->match_prefix(RequestId{id}, num_tokens, num_local_tokens);
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message());
  EXPECT_EQ(result->kind == MatchResult::Kind::kHit, result->num_external_tokens > 0);
  return result->num_external_tokens;
}

Status SchedulerRig::allocate(std::uint64_t id, std::int64_t num_tokens, std::int64_t num_external_tokens) {
  const Geometry& geometry = connector->geometry();
  std::int64_t span = num_tokens;
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    span = std::min(span, geometry.span_tokens(GroupIndex{g}));
  }
  engine.give(RequestId{id}, geometry.num_groups(), static_cast<std::size_t>((num_tokens + span - 1) / span));
  return connector->on_blocks_allocated(RequestId{id}, engine.tables(RequestId{id}), num_external_tokens);
}

StepMetadata SchedulerRig::step(const StepInput& input) {
  const Result<std::vector<std::byte>> bytes = connector->build_step_metadata(input);
  EXPECT_TRUE(bytes.has_value()) << (bytes ? "" : bytes.error().message());
  const Result<StepMetadata> decoded = decode_step_metadata(*bytes);
  EXPECT_TRUE(decoded.has_value());
  return *decoded;
}

StepMetadata SchedulerRig::step(std::uint64_t id, std::int64_t from, std::int64_t to) {
  const ScheduledRequest scheduled{RequestId{id}, from, to - from};
  return step(StepInput{.scheduled = {&scheduled, 1}, .hand_offs = {}, .preempted = {}});
}

StepMetadata SchedulerRig::run(std::uint64_t id, const std::string& text, std::int64_t num_tokens) {
  add(id, text, num_tokens);
  EXPECT_EQ(allocate(id, num_tokens), Status());
  StepMetadata planned = step(id, 0, num_tokens);
  finish(id, num_tokens);
  return planned;
}

void SchedulerRig::store(std::uint64_t id, const std::string& text, std::int64_t num_tokens) {
  answer_all(run(id, text, num_tokens));
}

void SchedulerRig::finish(std::uint64_t id, std::int64_t num_computed_tokens) {
  EXPECT_EQ(connector->request_finished(RequestId{id}, num_computed_tokens), Status());
  engine.forget(RequestId{id});
}

JobResult SchedulerRig::result(const StepMetadata& step, const StepJob& job, std::uint32_t rank, StatusCode status,
                               std::vector<FailedBlock> failed) {
  return {.epoch = step.epoch, .job = job.id, .rank = RankIndex{rank}, .status = status, .failed = std::move(failed)};
}

void SchedulerRig::answer_all(const StepMetadata& step, StatusCode status) {
  for (const StepJob& job : step.jobs) {
    for (std::uint32_t rank = 0; rank < static_cast<std::uint32_t>(num_ranks); ++rank) {
      answer(result(step, job, rank, status));
    }
  }
}

void SchedulerRig::expect_consistent() const {
  const Status status = connector->check_conservation();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(connector->metrics().pinned_device_blocks, engine.num_pins());
  for (const std::string& error : engine.errors()) {
    ADD_FAILURE() << error;
  }
}

void SchedulerRig::expect_idle() const {
  expect_consistent();
  EXPECT_EQ(engine.num_pins(), 0);
  EXPECT_EQ(connector->metrics().pinned_slots, 0);
  EXPECT_EQ(connector->metrics().jobs_in_flight, 0);
  EXPECT_FALSE(connector->has_pending_work());
}

// All fields are 64-bit numbers: there is no padding.
bool equal(const SchedulerMetrics& a, const SchedulerMetrics& b) {
  return std::memcmp(&a, &b, sizeof(SchedulerMetrics)) == 0;
}

}  // namespace hostkv::testing
