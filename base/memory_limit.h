#ifndef HOSTKV_BASE_MEMORY_LIMIT_H_
#define HOSTKV_BASE_MEMORY_LIMIT_H_

#include <cstdint>

namespace hostkv {

// What this process can have resident at most: the machine's memory or, if smaller, the limit of its control group
// (version 1 or 2). Asking for more ends in the out-of-memory killer, not in an error. Reads small files; thread-safe.
std::int64_t memory_limit_bytes();

}  // namespace hostkv

#endif  // HOSTKV_BASE_MEMORY_LIMIT_H_
