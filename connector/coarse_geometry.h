#ifndef HOSTKV_CONNECTOR_COARSE_GEOMETRY_H_
#define HOSTKV_CONNECTOR_COARSE_GEOMETRY_H_

#include <utility>

#include "hostkv/geometry.h"

namespace hostkv {

// The geometry that both sides of the connector work with: boundaries on the scheduler block, whatever finer ones the
// engine has. Both sides derive it from the engine's geometry, so that their fingerprints agree.
inline Result<Geometry> coarse_geometry(const Geometry& geometry) {
  GeometrySpec spec = geometry.spec();
  spec.hash_block_tokens = geometry.hash_block_tokens();
  spec.fine_hits = false;
  return Geometry::resolve(std::move(spec));
}

}  // namespace hostkv

#endif  // HOSTKV_CONNECTOR_COARSE_GEOMETRY_H_
