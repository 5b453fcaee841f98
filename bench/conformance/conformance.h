#ifndef HOSTKV_BENCH_CONFORMANCE_CONFORMANCE_H_
#define HOSTKV_BENCH_CONFORMANCE_CONFORMANCE_H_

// Runs conformance vectors against the library, so that the author of another engine sees whether his geometry agrees.
//
// Purpose: read JSON Lines of kinds resolve, needs, slots, hit and recover, ask the library each question, compare with
// `expect`. Thread-safety: pure function. Ownership: the report owns its text. Cost: one pass over the files; blocks on
// file reads. Failure: kInvalidArgument for an unknown kind, a broken line, a missing or unknown key or a value of the
// wrong type, with file, line and the nearest right name; kNotFound for a file that cannot be read. A case that differs
// is not a failure: it is in the report.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hostkv/status.h"

namespace hostkv::bench {

struct ConformanceRequest {
  std::vector<std::string> files{};     // at least one
  std::optional<std::string> kind{};    // only cases of this kind; others are skipped
  std::optional<std::int64_t> first{};  // at most so many cases, > 0, over all files in their order
};

struct ConformanceDifference {
  std::string id;
  std::string got;       // JSON text, keys in the order of the alphabet
  std::string expected;  // JSON text
};

struct ConformanceReport {
  std::int64_t cases = 0;
  std::int64_t agreed = 0;
  std::vector<ConformanceDifference> differed;
};

Result<ConformanceReport> run_conformance(const ConformanceRequest& request);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_CONFORMANCE_CONFORMANCE_H_
