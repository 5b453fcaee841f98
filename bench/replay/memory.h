#ifndef HOSTKV_BENCH_REPLAY_MEMORY_H_
#define HOSTKV_BENCH_REPLAY_MEMORY_H_

// What the reference engine asks for, before it does. Doubles: the answer may be more than any number of bytes.
// Thread-safety: pure functions. REQUIRES: a geometry that resolves, payload_bytes > 0.

#include <cstdint>

#include "hostkv/geometry.h"
#include "hostkv/status.h"

namespace hostkv::bench {

// Device memory of all ranks together; it is written at once.
double device_bytes(const GeometrySpec& spec, std::int64_t payload_bytes, std::int64_t num_blocks);
// One rank's host pool.
double host_bytes(const GeometrySpec& spec, std::int64_t payload_bytes, std::int64_t num_blocks);
// The smallest device tier that the engine admits a prompt to, in blocks beside the null block; one token is generated.
Result<std::int64_t> least_device_blocks(const GeometrySpec& spec, std::int64_t prompt_tokens);
// The smallest host tier that holds what one hit needs, in blocks of the largest group. REQUIRES: a group that can be
// offloaded.
Result<std::int64_t> least_host_blocks(const GeometrySpec& spec, std::int64_t payload_bytes);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_MEMORY_H_
