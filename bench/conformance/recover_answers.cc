// Kind recover: asked of one planner that knows all failures, and of one planner a rank that knows its own.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/conformance/vector_case.h"

namespace hostkv::bench {
namespace {

using Json = nlohmann::json;

VectorAnswer as_answer(std::int64_t boundary_tokens, const char* asked) {
  const Json answer = {{"boundary_tokens", boundary_tokens}};
  return {answer.dump(), Json{{"boundary_tokens", boundary_tokens}, {"asked", asked}}.dump()};
}

// The least byte of all ranks for each candidate, and then the largest safe one.
Result<std::int64_t> ask_ranks(RecoveryPlanner& planner, const HeldRequest& request, const VectorCase& question) {
  std::map<RankIndex, std::vector<FailedLoad>> by_rank;
  for (const FailedLoad& load : question.failed) {
    by_rank[load.rank].push_back(load);
  }
  const std::size_t num_candidates = planner.num_candidates(request);
  std::vector<std::uint8_t> least(num_candidates);
  if (Status status = planner.mark_safe(request, {}, least); !status.ok()) {  // a rank without failures
    return error(std::move(status));
  }
  std::vector<std::uint8_t> own(num_candidates);
  for (const auto& [rank, failed] : by_rank) {
    if (Status status = planner.mark_safe(request, failed, own); !status.ok()) {
      return error(std::move(status));
    }
    std::ranges::transform(least, own, least.begin(), [](std::uint8_t a, std::uint8_t b) { return std::min(a, b); });
  }
  const auto last = std::ranges::find(least.rbegin(), least.rend(), std::uint8_t{1});
  return (least.rend() - last - 1) * question.alignment_tokens;
}

}  // namespace

Result<VectorAnswer> answer_recover(const Geometry& geometry, const VectorCase& question) {
  if (question.alignment_tokens != geometry.hit_alignment_tokens()) {
    return error(StatusCode::kInvalidArgument,
                 fmt::format("input.alignment_tokens is {}; allowed: {}, the geometry's hit alignment",
                             question.alignment_tokens, geometry.hit_alignment_tokens()));
  }
  std::vector<HeldBlocks> groups;
  for (const HeldTable& held : question.held) {
    groups.push_back({held.table, held.state_tokens});
  }
  const HeldRequest request{.settled_tokens = question.settled_tokens, .groups = groups};
  RecoveryPlanner planner(geometry);
  const Result<std::int64_t> together = planner.safe_boundary(request, question.failed);
  if (!together) {
    return error(together.error());
  }
  VectorAnswer answer = as_answer(*together, "all failures at once");
  if (answer.text != question.expect) {
    return answer;
  }
  const Result<std::int64_t> by_rank = ask_ranks(planner, request, question);
  if (!by_rank) {
    return error(by_rank.error());
  }
  answer = as_answer(*by_rank, "each rank its own failures");
  answer.shown = answer.text == question.expect ? answer.text : answer.shown;
  return answer;
}

}  // namespace hostkv::bench
