#ifndef HOSTKV_BENCH_CLI_MEMORY_CHECK_H_
#define HOSTKV_BENCH_CLI_MEMORY_CHECK_H_

#include <string>
#include <string_view>

#include "hostkv/status.h"

namespace hostkv::bench {

// Whether this process may have so many bytes of memory for a tier ("device", "host"); `option` is what asks for them.
Status check_memory(const std::string& option, std::string_view tier, double bytes);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_CLI_MEMORY_CHECK_H_
