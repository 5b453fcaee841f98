#include "bench/cli/memory_check.h"

#include "base/memory_limit.h"
#include "bench/cli/report.h"

namespace hostkv::bench {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

}  // namespace

Status check_memory(const std::string& option, std::string_view tier, double bytes) {
  const auto limit = static_cast<double>(memory_limit_bytes());
  if (bytes <= limit) return {};
  return Status(StatusCode::kResourceExhausted,
                option + " asks for " + fixed(bytes / kGiB, 1) + " GiB of memory for the " + std::string(tier) +
                    " tier" + (tier == "host" ? " of each rank" : "") + "; this process may have " +
                    fixed(limit / kGiB, 1) + " GiB (the machine's memory, or the limit of its control group)");
}

}  // namespace hostkv::bench
