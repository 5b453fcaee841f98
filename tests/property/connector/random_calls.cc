#include "tests/property/connector/random_calls.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace hostkv::testing {
namespace {

constexpr std::int64_t kRanks = 2;
constexpr std::int64_t kBlocks = 7;   // of a table
constexpr std::int64_t kTokens = 25;  // of a request
constexpr std::size_t kNumHashes = 6;
constexpr std::int64_t kDeviceBlocks = 12;  // half of them may be loading before others wait

Status expect_code(Status status, StatusCode code) {
  EXPECT_EQ(status.code(), code) << status.to_string();
  return status;
}

}  // namespace

RandomCalls::RandomCalls(const Geometry& geometry, std::uint64_t seed)
    : rig_(geometry, kRanks, {}, {.damages_fine_hits = false, .record_events = true}), random_(seed) {
  rig_.report_all(14);
  rig_.engine.num_device_blocks = kDeviceBlocks;
}

RandomCalls::Request* RandomCalls::find(RequestId id) {
  const auto at = requests_.find(id);
  return at == requests_.end() ? nullptr : &at->second;
}

void RandomCalls::run(std::uint64_t num_calls) {
  for (std::uint64_t i = 0; i < num_calls && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("call " + std::to_string(i));
    const SchedulerMetrics before = rig_.connector->metrics();
    const auto pins = rig_.engine.pins();
    if (const Status status = one_call(); !status.ok()) {
      EXPECT_TRUE(equal(before, rig_.connector->metrics())) << status.message();
      EXPECT_EQ(pins, rig_.engine.pins()) << status.message();
      ++refusals_;
    }
    rig_.expect_consistent();
    check_pins();
    check_events();
  }
  wind_up();
}

Status RandomCalls::one_call() {
  switch (draw(14)) {
    case 0:
      return add();
    case 1:
    case 2:
      return match();
    case 3:
    case 4:
      return allocate();
    case 5:
      return draw(3) == 0 ? cancel() : outcomes();
    case 6:
    case 7:
    case 8:
      return step();
    case 9:
    case 10:
    case 11:
      return results();
    case 12:
      return draw(2) == 0 ? finish() : outcomes();
    default:
      return draw(8) == 0 ? reset() : outcomes();
  }
}

Status RandomCalls::add() {
  const RequestId id = any_id();
  const bool loads = std::ranges::any_of(unsent_loads_, [&](const Load& load) { return load.request == id; }) ||
                     std::ranges::any_of(sent_, [&](const Sent& sent) { return sent.load_of == id; });
  const bool told = std::ranges::none_of(outcomes_, [&](const auto& outcome) { return outcome.first == id.value(); });
  const bool free = find(id) == nullptr && !loads && told;
  Status status = expect_code(rig_.connector->add_request({.id = id, .num_prompt_tokens = kTokens}),
                              free ? StatusCode::kOk : StatusCode::kFailedPrecondition);
  if (status.ok()) {
    requests_[id] = {};
    std::string text;
    for (std::size_t i = 0; i < kNumHashes; ++i) {
      text.push_back(draw(6) == 0 ? 'b' : 'a');
    }
    const auto hashes = hashes_of(text, kNumHashes);
    EXPECT_EQ(rig_.connector->append_block_hashes(id, hashes, hashes.size() / kNumHashes), Status());
  }
  return status;
}

Status RandomCalls::match() {
  const RequestId id = any_id();
  const auto local = static_cast<std::int64_t>(draw(3) == 0 ? 4 * draw(3) : 0);
  const Result<MatchResult> result = rig_.connector->match_prefix(id, kTokens, local);
  Request* request = find(id);
  if (request == nullptr || request->loading) {
    return expect_code(result ? Status() : result.error(),
                       request == nullptr ? StatusCode::kNotFound : StatusCode::kFailedPrecondition);
  }
  EXPECT_TRUE(result.has_value());
  rig_.engine.forget(id);
  request->admitted = false;
  request->local = local;
  request->promised = result->num_external_tokens;
  const bool is_full = loading_blocks() > kDeviceBlocks / 2;
  EXPECT_TRUE(is_full || result->kind != MatchResult::Kind::kRetry) << "only loads in flight make a request wait";
  EXPECT_TRUE(!is_full || result->kind != MatchResult::Kind::kHit);
  retries_ += result->kind == MatchResult::Kind::kRetry ? 1 : 0;
  EXPECT_LE(local + request->promised, kTokens - 1) << "R3";
  return {};
}

Status RandomCalls::allocate() {
  const RequestId id = any_id();
  Request* request = find(id);
  const std::int64_t promised = request == nullptr ? 0 : request->promised;
  const std::int64_t external = draw(4) == 0 ? static_cast<std::int64_t>(4 * draw(3)) : promised;
  const std::vector<BlockId> blocks(static_cast<std::size_t>(kBlocks), BlockId{0xFFFF});
  std::vector<GroupTable> tables(rig_.connector->geometry().num_groups(), GroupTable(blocks));
  if (request == nullptr) {
    return expect_code(rig_.connector->on_blocks_allocated(id, tables, external), StatusCode::kNotFound);
  }
  if (request->loading) {
    return expect_code(rig_.connector->on_blocks_allocated(id, tables, external), StatusCode::kFailedPrecondition);
  }
  if (external > promised) {
    return expect_code(rig_.connector->on_blocks_allocated(id, tables, external), StatusCode::kInvalidArgument);
  }
  if (!request->admitted) {
    rig_.engine.give(id, rig_.connector->geometry().num_groups(), static_cast<std::size_t>(kBlocks));
    request->computed = request->local;
    request->admitted_step = steps_;
  }
  const std::int64_t planned = rig_.connector->metrics().planned_load_blocks;
  Status status =
      expect_code(rig_.connector->on_blocks_allocated(id, rig_.engine.tables(id), external), StatusCode::kOk);
  const bool is_planned = rig_.connector->metrics().planned_load_blocks > planned;
  EXPECT_TRUE(is_planned || external == 0 || external < promised) << "R4: what was promised can be loaded";
  request->admitted = is_planned || external == 0;
  request->promised = 0;
  if (is_planned) {
    plan_load(id, external);
  } else if (external > 0) {  // fewer tokens, at a boundary that some window lacks
    outcomes_.emplace_back(id.value(), StatusCode::kUnavailable);
  }
  return status;
}

void RandomCalls::plan_load(RequestId id, std::int64_t num_external_tokens) {
  const Geometry& geometry = rig_.connector->geometry();
  Request& request = requests_.at(id);
  request.loading = true;
  request.computed = request.local + num_external_tokens;
  ++hits_;
  Load& load = unsent_loads_.emplace_back();
  load.request = id;
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    const BlockIndexRange needed = geometry.needs(GroupIndex{g}, request.computed);
    const std::int64_t first = std::max(needed.first_block, request.local / geometry.span_tokens(GroupIndex{g}));
    for (std::int64_t i = first; i < needed.end_block; ++i) {
      load.targets.push_back(rig_.engine.table(id)[g][static_cast<std::size_t>(i)]);
    }
  }
}

Status RandomCalls::cancel() {
  const RequestId id = any_id();
  Request* request = find(id);
  if (request != nullptr) {
    request->promised = 0;
  }
  return expect_code(rig_.connector->cancel_match(id), request == nullptr ? StatusCode::kNotFound : StatusCode::kOk);
}

Status RandomCalls::step() {
  std::vector<ScheduledRequest> scheduled;
  StatusCode code = StatusCode::kOk;
  for (std::uint64_t i = draw(4); i > 0; --i) {
    const RequestId id = any_id();
    const Request* request = find(id);
    const bool fits = request != nullptr && request->admitted && !request->loading;
    if (!fits && draw(8) != 0) {
      continue;
    }
    if (!fits && code == StatusCode::kOk) {
      code = request == nullptr ? StatusCode::kNotFound : StatusCode::kFailedPrecondition;
    }
    scheduled.push_back({id, request == nullptr ? 0 : request->computed, static_cast<std::int64_t>(draw(12))});
  }
  std::vector<RequestId> preempted;
  if (const RequestId id = any_id();
      draw(4) == 0 && std::ranges::find(scheduled, id, &ScheduledRequest::id) == scheduled.end()) {
    preempted.push_back(id);
  }
  std::vector<BoundaryHandOff> hand_offs;
  if (draw(4) == 0) {
    hand_offs.push_back({any_id(), GroupIndex{static_cast<std::uint32_t>(draw(3))}, BlockId{3}, 4});
  }
  const auto bytes =
      rig_.connector->build_step_metadata({.scheduled = scheduled, .hand_offs = hand_offs, .preempted = preempted});
  if (!bytes || code != StatusCode::kOk) {
    return expect_code(bytes ? Status() : bytes.error(), code);
  }
  for (const ScheduledRequest& run : scheduled) {
    Request& request = requests_.at(run.id);
    request.computed = std::min(run.num_computed_tokens + run.num_scheduled_tokens, 4 * kBlocks);
  }
  for (const RequestId id : preempted) {
    if (Request* request = find(id); request != nullptr && request->admitted_step != steps_) {
      request->admitted = false;
    }
  }
  ++steps_;
  take_step(*bytes);
  return {};
}

void RandomCalls::take_step(const std::vector<std::byte>& bytes) {
  const Result<StepMetadata> decoded = decode_step_metadata(bytes);
  ASSERT_TRUE(decoded.has_value());
  std::size_t num_loads = 0;
  for (const StepJob& job : decoded->jobs) {
    Sent& sent = sent_.emplace_back();
    sent.step = {decoded->epoch, decoded->sequence, {job}};
    sent.answered.assign(kRanks, false);
    if (job.direction == Direction::kLoad) {
      ASSERT_LT(num_loads, unsent_loads_.size());
      const Load& load = unsent_loads_[num_loads++];
      sent.load_of = load.request;
      std::vector<BlockId> targets;
      std::ranges::transform(job.blocks, std::back_inserter(targets), &StepBlock::block);
      EXPECT_EQ(targets, load.targets);
    }
  }
  EXPECT_EQ(num_loads, unsent_loads_.size()) << "every planned load goes with the next step";
  unsent_loads_.clear();
  stores_queued_ = false;
}

Status RandomCalls::results() {
  const std::int64_t before = rig_.connector->metrics().ignored_results;
  std::int64_t useless = 0;
  for (std::uint64_t i = draw(4); i > 0; --i) {
    useless += one_result() ? 0 : 1;
    end_sent();
  }
  EXPECT_EQ(rig_.connector->metrics().ignored_results, before + useless);
  return {};
}

// False: it fits nothing.
bool RandomCalls::one_result() {
  if (sent_.empty() || draw(8) == 0) {
    rig_.answer({.epoch = draw(5), .job = JobId{1'000'000 + draw(9)}, .rank = RankIndex{0}, .failed = {}});
    return false;
  }
  Sent& sent = sent_[draw(sent_.size())];
  const StepJob& job = sent.step.jobs[0];
  const auto rank = static_cast<std::uint32_t>(draw(kRanks + 1));
  const StatusCode status = draw(8) == 0 ? StatusCode::kDeviceError : StatusCode::kOk;
  std::vector<FailedBlock> failed;
  if (status != StatusCode::kOk && draw(2) == 0) {
    const StepBlock& block = job.blocks[draw(job.blocks.size())];
    failed.push_back({block.group, block.block});
  }
  rig_.answer(SchedulerRig::result(sent.step, job, rank, status, failed));
  if (rank >= kRanks || sent.answered[rank]) {
    return false;
  }
  sent.answered[rank] = true;
  sent.status = sent.status == StatusCode::kOk ? status : sent.status;
  return true;
}

void RandomCalls::end_sent() {
  for (const Sent& sent : sent_) {
    if (sent.load_of && std::ranges::find(sent.answered, false) == sent.answered.end()) {
      end_load(*sent.load_of, sent.step.epoch == rig_.connector->epoch() ? sent.status : StatusCode::kCanceled);
    }
  }
  std::erase_if(sent_, [](const Sent& sent) { return std::ranges::find(sent.answered, false) == sent.answered.end(); });
}

void RandomCalls::end_load(RequestId id, StatusCode status) {
  outcomes_.emplace_back(id.value(), status);
  failed_loads_ += status == StatusCode::kOk ? 0 : 1;
  if (Request* request = find(id); request != nullptr) {
    request->loading = false;
    request->admitted = request->admitted && status == StatusCode::kOk;
  }
}

Status RandomCalls::outcomes() {
  std::vector<std::pair<std::uint64_t, StatusCode>> taken;
  for (const LoadOutcome& outcome : rig_.connector->take_load_outcomes()) {
    taken.emplace_back(outcome.request.value(), outcome.status);
  }
  EXPECT_EQ(taken, outcomes_) << "R10";
  outcomes_.clear();
  return {};
}

Status RandomCalls::finish() {
  const RequestId id = any_id();
  const Request* request = find(id);
  stores_queued_ = stores_queued_ || (request != nullptr && request->admitted && !request->loading);
  Status status =
      expect_code(rig_.connector->request_finished(id, request == nullptr ? 8 : request->computed), StatusCode::kOk);
  requests_.erase(id);
  rig_.engine.forget(id);
  return status;
}

Status RandomCalls::reset() {
  EXPECT_EQ(rig_.connector->reset(), sent_.empty());
  for (const Load& load : unsent_loads_) {
    end_load(load.request, StatusCode::kCanceled);
  }
  unsent_loads_.clear();
  stores_queued_ = false;
  for (auto& [id, request] : requests_) {
    request.promised = 0;
  }
  EXPECT_EQ(rig_.connector->metrics().stored_keys, 0);
  return {};
}

std::int64_t RandomCalls::loading_blocks() const {
  std::int64_t count = 0;
  for (const Load& load : unsent_loads_) {
    count += std::ssize(load.targets);
  }
  for (const Sent& sent : sent_) {
    count += sent.load_of ? std::ssize(sent.step.jobs[0].blocks) : 0;
  }
  return count;
}

void RandomCalls::check_pins() {
  Pins expected;
  for (const Load& load : unsent_loads_) {
    for (const BlockId block : load.targets) {
      ++expected[block];
    }
  }
  for (const Sent& sent : sent_) {
    for (const StepBlock& block : sent.step.jobs[0].blocks) {
      ++expected[block.block];
    }
  }
  if (!stores_queued_) {
    EXPECT_EQ(rig_.engine.pins(), expected);
    EXPECT_EQ(rig_.connector->has_pending_work(), !unsent_loads_.empty() || !sent_.empty() || !outcomes_.empty());
    return;
  }
  for (const auto& [block, pins] : expected) {
    const auto at = rig_.engine.pins().find(block);
    EXPECT_TRUE(at != rig_.engine.pins().end() && at->second >= pins) << "block " << block.value();
  }
}

// The events alone give the keys that are stored, and those that are being stored.
void RandomCalls::check_events() {
  ledger_.replay(rig_.connector->take_cache_events());
  const SchedulerMetrics metrics = rig_.connector->metrics();
  EXPECT_EQ(std::ssize(ledger_.stored), metrics.stored_keys);
  std::int64_t stores = 0;
  for (const Sent& sent : sent_) {
    const bool is_store = sent.step.jobs[0].direction == Direction::kStore;
    stores += is_store && sent.step.epoch == rig_.connector->epoch() ? std::ssize(sent.step.jobs[0].blocks) : 0;
  }
  EXPECT_GE(std::ssize(ledger_.planned), stores);
  EXPECT_TRUE(stores_queued_ || std::ssize(ledger_.planned) == stores);
}

void RandomCalls::wind_up() {
  for (std::uint64_t id = 1; id <= 5; ++id) {
    EXPECT_EQ(rig_.connector->request_finished(RequestId{id}, 0), Status());
  }
  requests_.clear();
  take_step(*rig_.connector->build_step_metadata({}));
  for (Sent& sent : sent_) {
    rig_.answer_all(sent.step);
    sent.answered.assign(kRanks, true);
  }
  end_sent();
  EXPECT_EQ(outcomes(), Status());
  rig_.expect_idle();
  check_events();
}

}  // namespace hostkv::testing
