#ifndef HOSTKV_CONNECTOR_COARSE_GEOMETRY_H_
#define HOSTKV_CONNECTOR_COARSE_GEOMETRY_H_

#include <string>
#include <utility>

#include "hostkv/geometry.h"

namespace hostkv {

// A block is known by the prefix hash at its end: there must be one. Recurrent states are known by the boundary alone.
inline Status check_blocks_end_at_hashes(const Geometry& geometry) {
  for (std::uint32_t g = 0; g < geometry.num_groups(); ++g) {
    const GroupIndex group{g};
    if (geometry.group(group).kind == GroupKind::kMamba && geometry.group(group).mamba_mode == MambaMode::kNone) {
      return {};  // nothing of such a model is stored or found
    }
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

// The geometry that both sides of the connector work with: boundaries on the scheduler block, whatever finer ones the
// engine has. Both sides derive it from the engine's geometry, so that their fingerprints agree. kInvalidArgument:
// blocks of a group end where no prefix hash does.
inline Result<Geometry> coarse_geometry(const Geometry& geometry) {
  if (Status status = check_blocks_end_at_hashes(geometry); !status.ok()) {
    return error(std::move(status));
  }
  GeometrySpec spec = geometry.spec();
  spec.hash_block_tokens = geometry.hash_block_tokens();
  spec.fine_hits = false;
  return Geometry::resolve(std::move(spec));
}

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_COARSE_GEOMETRY_H_
