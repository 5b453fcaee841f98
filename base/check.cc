#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace hostkv::detail {

void check_failed(const char* file, int line, const char* condition, const char* text) {
  std::fprintf(stderr, "hostkv: broken invariant: %s (%s) at %s:%d\n", text, condition, file, line);
  std::abort();
}

}  // namespace hostkv::detail
