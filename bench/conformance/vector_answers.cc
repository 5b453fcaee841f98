#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/conformance/vector_case.h"

namespace hostkv::bench {
namespace {

using Json = nlohmann::json;

VectorAnswer as_answer(const Json& value) {
  return {value.dump(), value.dump()};
}

VectorAnswer refusal(const Status& why) {
  return {Json{{"error", true}}.dump(), Json{{"error", true}, {"why", why.message()}}.dump()};
}

Json answer_resolve(const Geometry& geometry) {
  Json spans = Json::array();
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    spans.push_back(geometry.span_tokens(GroupIndex{g}));
  }
  return {{"span_tokens", spans},
          {"scheduler_block_tokens", geometry.scheduler_block_tokens()},
          {"hash_block_tokens", geometry.hash_block_tokens()},
          {"hit_alignment_tokens", geometry.hit_alignment_tokens()},
          {"fine", geometry.fine_hits()}};
}

Json answer_needs(const Geometry& geometry, const VectorCase& question) {
  const GroupIndex g = question.group;
  const BlockIndexRange needed = geometry.needs(g, question.boundary_tokens);
  Json out = {{"skipped_tokens", geometry.skipped_tokens(g, question.boundary_tokens)},
              {"first_block", needed.first_block},
              {"end_block", needed.end_block}};
  if (geometry.group(g).kind == GroupKind::kSlidingWindow) {
    out["lookup_run_blocks"] = geometry.lookup_run_blocks(g);
  }
  // Zero is what is left when no lookup answers: it is no answer of one.
  const auto lookup = geometry.lookup_need(g, question.boundary_tokens);
  if (lookup && question.boundary_tokens > 0) {
    out["lookup"] = {{"first_block", lookup->blocks.first_block},
                     {"end_block", lookup->blocks.end_block},
                     {"tail_boundary_tokens", lookup->tail_boundary_tokens}};
  }
  return out;
}

Result<Json> answer_slots(const Geometry& geometry, const VectorCase& question) {
  const GroupIndex g = question.group;
  Json ranks = Json::array();
  Json slots = Json::array();
  for (const std::int64_t position : question.positions) {
    const TokenPlace place = geometry.place_of_token(g, position);
    if (place.block_index >= std::int64_t(question.table.size())) {
      return error(StatusCode::kInvalidArgument,
                   fmt::format("input.positions holds {}, which is in block {} of the group; input.table has {} blocks",
                               position, place.block_index, question.table.size()));
    }
    const std::int64_t block = question.table[static_cast<std::size_t>(place.block_index)];
    const std::int64_t rows = geometry.group(g).block_tokens;
    std::int64_t slot = 0;
    if (__builtin_mul_overflow(block, rows, &slot) || __builtin_add_overflow(slot, place.slot_in_block, &slot)) {
      return error(StatusCode::kInvalidArgument,
                   fmt::format("input.table: block {} x block_tokens {} is over 64 bits", block, rows));
    }
    ranks.push_back(place.rank);
    slots.push_back(slot);
  }
  Json lengths = Json::array();
  for (const std::int64_t length : question.lengths) {
    Json per_rank = Json::array();
    for (std::int64_t rank = 0; rank < geometry.spec().parallel.dcp; ++rank) {
      per_rank.push_back(geometry.local_length_tokens(g, length, rank));
    }
    lengths.push_back(std::move(per_rank));
  }
  return Json{{"rank", ranks}, {"slot", slots}, {"local_lengths", lengths}};
}

}  // namespace

Result<VectorAnswer> answer_case(const VectorCase& question) {
  const Result<Geometry> geometry = Geometry::resolve(question.spec);
  if (!geometry) {
    return refusal(geometry.error());
  }
  switch (question.kind) {
    case VectorKind::kResolve:
      return as_answer(answer_resolve(*geometry));
    case VectorKind::kNeeds:
      return as_answer(answer_needs(*geometry, question));
    case VectorKind::kSlots: {
      const Result<Json> slots = answer_slots(*geometry, question);
      if (!slots) {
        return error(slots.error());
      }
      return as_answer(*slots);
    }
    case VectorKind::kHit:
      return answer_hit(*geometry, question);
    case VectorKind::kRecover:
      return answer_recover(*geometry, question);
  }
  return error(StatusCode::kInternal, "a vector kind without an answer");
}

}  // namespace hostkv::bench
