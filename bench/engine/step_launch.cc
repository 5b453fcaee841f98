#include "bench/engine/step_launch.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "bench/engine/group_rules.h"
#include "bench/engine/payload.h"

namespace hostkv::bench {
namespace {

// The outputs among the tokens [0, end) that the scheduler does not know yet.
void extend_states(const EngineConfig& config, Request& request, std::int64_t end_tokens) {
  std::vector<std::uint64_t>& states = request.on_device.states.reserve(end_tokens + 1);
  extend_prefix_states(config.seed, request.tokens, std::min(end_tokens, request.num_tokens()), states);
  std::vector<std::int32_t> outputs;
  for (std::int64_t i = std::ssize(states) - 1; i < end_tokens; ++i) {
    outputs.push_back(output_token(request.output_seed, i - request.num_prompt_tokens));
  }
  extend_prefix_states_by(outputs, states);
}

std::shared_ptr<const RequestView> view_of(const Request& request) {
  auto view = std::make_shared<RequestView>();
  view->id = request.id;
  view->tables = request.tables;
  view->state_blocks = request.on_device.state_blocks;
  view->running_column = request.running_column;
  view->states = request.on_device.states.share();
  view->own_start_tokens = request.own_start_tokens;
  return view;
}

}  // namespace

LaunchedChunk launch_chunk(const EngineConfig& config, const Geometry& geometry, const ChunkPlan& plan, bool views,
                           Request& request) {
  LaunchedChunk launched{.id = request.id,
                         .admission = request.report.num_preemptions,
                         .plan = plan,
                         .forward = {},
                         .running_column = request.running_column};
  ForwardChunk& forward = launched.forward;
  DeviceProgress& device = request.on_device;
  forward.begin_tokens = device.num_tokens;
  const std::int64_t known_end = device.num_tokens + plan.end_tokens - plan.begin_tokens;
  if (plan.num_drafts > 0) {
    const std::uint64_t drawn = draw(config.seed ^ request.output_seed, known_end);
    forward.num_accepted = static_cast<std::int64_t>(drawn % static_cast<std::uint64_t>(plan.num_drafts + 1));
  }
  forward.end_tokens = known_end + forward.num_accepted;
  forward.num_rejected = plan.num_drafts - forward.num_accepted;
  forward.checkpoint_tokens = plan.checkpoint_tokens;
  forward.replay_begin_tokens = forward.begin_tokens - (plan.begin_tokens - plan.replay_begin_tokens);
  if (views) {
    extend_states(config, request, forward.end_tokens);
    forward.request = view_of(request);
  }
  device.num_tokens = forward.end_tokens;
  for (std::uint32_t i = 0; i < geometry.num_groups(); ++i) {
    if (!is_mamba(geometry.group(GroupIndex{i}), MambaMode::kAlign)) continue;
    const auto column = static_cast<std::size_t>(request.running_column[i] + forward.num_accepted);
    device.state_blocks[i] = request.tables[i][column];
  }
  return launched;
}

}  // namespace hostkv::bench
