#include "bench/plan/plan_rig.h"

#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>

#include "connector/step_metadata.h"

namespace hostkv::bench {
namespace {

constexpr std::int64_t kBlockTokens = 16;
constexpr std::int64_t kHandOffTokens = 8192;

Geometry geometry_of(Model model) {
  GeometrySpec spec;
  spec.parallel = {.tp = model.dcp, .dcp = model.dcp};
  spec.groups.push_back(
      {.name = "full", .kind = GroupKind::kFullAttention, .block_tokens = kBlockTokens, .sharded = true});
  if (model.num_groups >= 2) {
    spec.groups.push_back(
        {.name = "window", .kind = GroupKind::kSlidingWindow, .block_tokens = kBlockTokens, .window_tokens = 1024});
  }
  if (model.num_groups == 3) {
    spec.groups.push_back({.name = "state", .kind = GroupKind::kMamba, .block_tokens = kBlockTokens * model.dcp});
  }
  return must(Geometry::resolve(std::move(spec)));
}

}  // namespace

void give_up(const std::string& why) {
  std::cerr << "bench_plan: " << why << '\n';
  std::exit(1);
}
void must(const Status& status) {
  if (!status.ok()) {
    give_up(status.to_string());
  }
}

CountedBlocks::CountedBlocks(const Geometry& geometry) {
  std::uint32_t next_block = 1;
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    std::vector<BlockId>& table = tables_.emplace_back();
    for (std::int64_t i = 0; i < kRequestTokens / geometry.span_tokens(GroupIndex{g}); ++i) {
      table.emplace_back(next_block++);
    }
  }
  views_.assign(tables_.begin(), tables_.end());
}

PlanRig::PlanRig(Model model, std::int64_t host_blocks, std::int64_t prompt_tokens)
    : prompt_tokens_(prompt_tokens),
      geometry_(geometry_of(model)),
      blocks_(geometry_),
      connector_(must(SchedulerConnector::create(geometry_, ConnectorOptions{}, model.dcp, blocks_))) {
  for (std::uint32_t rank = 0; rank < model.dcp; ++rank) {
    must(connector_->on_worker_capacity(
        {.rank = RankIndex{rank},
         .num_slabs = static_cast<std::uint64_t>(host_blocks),
         .slab_bytes = 1,
         .slots_per_slab = std::vector<std::uint32_t>(static_cast<std::size_t>(model.num_groups), 1),
         .fingerprint = connector_->geometry().fingerprint()}));
  }
  for (std::int64_t stored = 0; stored < host_blocks;) {
    last_stored_ = fresh_hashes();
    const RequestId id = admit(last_stored_);
    stored += answer(plan(id));
    finish(id);
  }
}

std::vector<std::byte> PlanRig::fresh_hashes() {
  const std::int64_t num_hashes = prompt_tokens_ / geometry_.hash_block_tokens();
  std::vector<std::byte> hashes(static_cast<std::size_t>(num_hashes) * kHashBytes);
  for (std::byte& byte : hashes) {
    byte = static_cast<std::byte>(random_());
  }
  return hashes;
}

RequestId PlanRig::add(const std::vector<std::byte>& hashes) {
  const RequestId id{++last_id_};
  must(connector_->add_request({.id = id, .num_prompt_tokens = prompt_tokens_ + 1, .skip_reading_cache = false}));
  must(connector_->append_block_hashes(id, hashes, kHashBytes));
  return id;
}

void PlanRig::allocate(RequestId id, std::int64_t num_external_tokens) {
  must(connector_->on_blocks_allocated(id, blocks_.all(), num_external_tokens));
}

RequestId PlanRig::admit(const std::vector<std::byte>& hashes) {
  const RequestId id = add(hashes);
  allocate(id, 0);
  make_hand_offs(id);
  return id;
}

void PlanRig::make_hand_offs(RequestId id) {
  hand_offs_.clear();
  const GroupIndex state{2};
  if (geometry_.num_groups() <= state.value()) {
    return;
  }
  const GroupTable table = blocks_.block_table(id, state, 0);
  for (std::int64_t boundary = kHandOffTokens; boundary <= prompt_tokens_; boundary += kHandOffTokens) {
    const std::int64_t index = boundary / geometry_.span_tokens(state) - 1;
    hand_offs_.push_back({id, state, table[static_cast<std::size_t>(index)], boundary});
  }
}

std::vector<std::byte> PlanRig::plan(RequestId id) {
  const ScheduledRequest scheduled{id, 0, prompt_tokens_};
  return must(
      connector_->build_step_metadata({.scheduled = {&scheduled, 1}, .hand_offs = hand_offs_, .preempted = {}}));
}

void PlanRig::store_by_turns(std::int64_t num_requests) {
  std::vector<ScheduledRequest> scheduled;
  for (std::int64_t i = 0; i < num_requests; ++i) {
    last_stored_ = fresh_hashes();
    scheduled.push_back({admit(last_stored_), 0, geometry_.span_tokens(GroupIndex{0})});
  }
  while (scheduled.front().num_computed_tokens < prompt_tokens_) {
    answer(must(connector_->build_step_metadata({.scheduled = scheduled, .hand_offs = {}, .preempted = {}})));
    for (ScheduledRequest& request : scheduled) {
      request.num_computed_tokens += request.num_scheduled_tokens;
    }
  }
  for (const ScheduledRequest& request : scheduled) {
    finish(request.id);
  }
}

std::int64_t PlanRig::answer(const std::vector<std::byte>& metadata) {
  const StepMetadata step = must(decode_step_metadata(metadata));
  std::int64_t num_blocks = 0;
  for (const StepJob& job : step.jobs) {
    num_blocks += std::ssize(job.blocks);
    for (std::uint32_t rank = 0; rank < geometry_.spec().parallel.tp; ++rank) {
      const JobResult result{
          .epoch = step.epoch, .job = job.id, .rank = RankIndex{rank}, .status = StatusCode::kOk, .failed = {}};
      connector_->on_worker_results({&result, 1});
    }
  }
  return num_blocks;
}

void PlanRig::finish(RequestId id) {
  must(connector_->request_finished(id, prompt_tokens_));
  connector_->take_load_outcomes();
}

}  // namespace hostkv::bench
