#ifndef HOSTKV_GEOMETRY_FINGERPRINT_H_
#define HOSTKV_GEOMETRY_FINGERPRINT_H_

#include <cstdint>

#include "hostkv/geometry.h"

namespace hostkv::detail {

// One number for everything that makes bytes of two caches interchangeable (R23): groups without their names, parallel
// layout, hash block. The same on every machine: fixed order, 64-bit little-endian.
std::uint64_t fingerprint_of(const GeometrySpec& spec, std::int64_t hash_block_tokens);

}  // namespace hostkv::detail

#endif  // HOSTKV_GEOMETRY_FINGERPRINT_H_
