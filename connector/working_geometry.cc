#include "connector/working_geometry.h"

#include <string>
#include <utility>

namespace hostkv {
namespace {

// A block is known by the prefix hash at its end: there must be one. Recurrent states are known by the boundary alone.
Status check_blocks_end_at_hashes(const Geometry& geometry) {
  if (!host_can_serve(geometry)) {
    return {};  // nothing of such a model is stored or found
  }
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    const GroupIndex group{g};
    if (geometry.offloadable(group) && geometry.group(group).kind != GroupKind::kMamba &&
        geometry.span_tokens(group) % geometry.hash_block_tokens() != 0) {
      return {StatusCode::kInvalidArgument,
              geometry.group_label(group) + ": span " + std::to_string(geometry.span_tokens(group)) +
                  " is not a multiple of the hash block " + std::to_string(geometry.hash_block_tokens()) +
                  ", which is the scheduler block beside recurrent states of mode all; use mode align or blocks of " +
                  std::to_string(geometry.hash_block_tokens()) + " tokens"};
    }
  }
  return {};
}

}  // namespace

bool host_can_serve(const Geometry& geometry) {
  bool some_group_moves = false;
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    const GroupIndex group{g};
    if (geometry.group(group).kind == GroupKind::kScratch) {
      continue;
    }
    if (!geometry.offloadable(group)) {
      return false;
    }
    some_group_moves = true;
  }
  return some_group_moves;
}

Result<Geometry> working_geometry(const Geometry& geometry, Boundaries boundaries) {
  if (Status status = check_blocks_end_at_hashes(geometry); !status.ok()) {
    return error(std::move(status));
  }
  GeometrySpec spec = geometry.spec();
  spec.hash_block_tokens = geometry.hash_block_tokens();
  spec.fine_hits = geometry.fine_hits() && boundaries == Boundaries::kFine;
  Result<Geometry> working = Geometry::resolve(std::move(spec));
  if (!working && geometry.fine_hits()) {
    return error(working.error().code(), "boundaries is coarse: " + working.error().message());
  }
  return working;
}

Status check_num_ranks(const Geometry& geometry, std::int64_t num_ranks) {
  const ParallelLayout& parallel = geometry.spec().parallel;
  const std::int64_t workers = parallel.tp * parallel.pp * parallel.pcp;
  if (num_ranks == workers) {
    return {};
  }
  return {StatusCode::kInvalidArgument, "num_ranks is " + std::to_string(num_ranks) + "; the geometry has " +
                                            std::to_string(workers) + " workers (tp " + std::to_string(parallel.tp) +
                                            " x pp " + std::to_string(parallel.pp) + " x pcp " +
                                            std::to_string(parallel.pcp) + "; DCP ranks are TP ranks)"};
}

}  // namespace hostkv
