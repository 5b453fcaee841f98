#ifndef HOSTKV_BENCH_CLI_REPLAY_CELLS_H_
#define HOSTKV_BENCH_CLI_REPLAY_CELLS_H_

// From the options of `replay` to its cells, their product.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cli/command_line.h"
#include "bench/models/model.h"
#include "bench/replay/replay.h"
#include "bench/replay/trace.h"
#include "hostkv/status.h"

namespace hostkv::bench {

inline constexpr std::string_view kDefaultModel = "one-group";  // full attention with the trace's own block

struct LabelledCell {
  std::string model;
  ReplayCell cell;
};

// The options as resolved.
struct ReplayPlan {
  std::optional<std::string> trace_path;  // one of the two
  std::optional<std::string> workload;
  std::unique_ptr<Trace> trace;             // the cells point to it
  std::vector<std::int64_t> device_blocks;  // as given; empty: from device_bytes
  std::vector<std::int64_t> host_blocks;
  std::vector<std::int64_t> device_bytes;
  std::vector<std::int64_t> host_bytes;
  std::vector<StoreMode> modes;
  std::vector<EvictionPolicyKind> policies;
  std::vector<CheckBytes> checks;
  std::vector<std::int64_t> dcps;  // empty: the model's own
  std::vector<std::int64_t> interleaves;
  std::int64_t payload_bytes = 1;
  std::int64_t jobs = 1;
  std::uint64_t seed = 1;
  std::vector<LabelledCell> cells;
};

std::string_view check_bytes_name(CheckBytes check);
Result<ReplayPlan> plan_replay(const CommandLine& line);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_CLI_REPLAY_CELLS_H_
