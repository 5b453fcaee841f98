#include "base/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

namespace hostkv {
namespace {

// The number in the file; "no limit" if there is no file or no number ("max").
std::int64_t limit_in_file(const char* path) {
  std::ifstream file(path);
  std::int64_t limit = 0;
  return file >> limit && limit > 0 ? limit : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

std::int64_t memory_limit_bytes() {
  const std::int64_t machine = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::min({machine, limit_in_file("/sys/fs/cgroup/memory.max"),
                   limit_in_file("/sys/fs/cgroup/memory/memory.limit_in_bytes")});
}

}  // namespace hostkv
