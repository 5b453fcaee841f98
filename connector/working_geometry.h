#ifndef HOSTKV_CONNECTOR_WORKING_GEOMETRY_H_
#define HOSTKV_CONNECTOR_WORKING_GEOMETRY_H_

#include "hostkv/geometry.h"
#include "hostkv/options.h"

namespace hostkv {

// False: some group holds what a resumed request needs and no host can bring back (not cacheable, never transferred, a
// recurrent state of mode none; scratch holds nothing that is needed). Nothing of such a model is stored, no lookup
// hits: half a hit would be wrong tokens.
bool host_can_serve(const Geometry& geometry);

// The geometry that both sides of the connector work with: the engine's, with boundaries on the scheduler block where
// the option says coarse. Both sides derive it from the engine's geometry. kInvalidArgument: blocks of a group end
// where no prefix hash does.
Result<Geometry> working_geometry(const Geometry& geometry, Boundaries boundaries);

// Attention over all tokens: every block of the prefix is needed.
inline bool is_full(const KvCacheGroup& group) {
  return group.kind == GroupKind::kFullAttention || group.kind == GroupKind::kMla;
}

// A recurrent state that the engine hands off at boundaries of its choice.
inline bool is_align_state(const KvCacheGroup& group) {
  return group.kind == GroupKind::kMamba && group.mamba_mode == MambaMode::kAlign;
}

// TP x PP x PCP must be the number of workers; DCP ranks are TP ranks. kInvalidArgument otherwise.
Status check_num_ranks(const Geometry& geometry, std::int64_t num_ranks);

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_WORKING_GEOMETRY_H_
