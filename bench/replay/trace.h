#ifndef HOSTKV_BENCH_REPLAY_TRACE_H_
#define HOSTKV_BENCH_REPLAY_TRACE_H_

// Traces of requests: who asked for which prefix blocks, in which order.
//
// Purpose: reads Mooncake traces (JSON Lines: `timestamp`, `input_length`, `output_length`, `hash_ids`; an id names a
// block of 512 tokens and everything before it). Thread-safety: values; a TraceReader belongs to one thread.
// Ownership: a reader owns its file. Cost: one line in memory at a time, and one map entry for each id seen.
// Failure: kInvalidArgument with file, line, value and what is allowed; kNotFound for a file that cannot be read.

#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hostkv/status.h"

namespace hostkv::bench {

struct TraceRequest {
  std::int64_t timestamp_ms = 0;
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::vector<std::int64_t> block_ids;  // >= 0; every id has one predecessor in all of the trace
};

struct Trace {
  std::string name;  // path or workload, for messages
  std::int64_t block_tokens = 512;
  std::vector<TraceRequest> requests;

  [[nodiscard]] std::int64_t num_block_refs() const;
  [[nodiscard]] std::int64_t longest_request_blocks() const;
};

class TraceReader {
 public:
  // Refuses folders, empty and compressed files and other formats by name.
  static Result<TraceReader> open(const std::string& path);

  // The next request; nullopt at the end. After an error the reader must not be used again.
  Result<std::optional<TraceRequest>> next();

 private:
  explicit TraceReader(std::string path) : path_(std::move(path)) {}
  tl::unexpected<Status> failure(const std::string& what) const;
  Status check_parents(const std::vector<std::int64_t>& ids);

  std::string path_;
  std::ifstream file_;
  std::int64_t line_ = 0;
  std::int64_t num_requests_ = 0;
  std::unordered_map<std::int64_t, std::int64_t> parents_;  // id -> id before it, -1 at the start of a prompt
};

// The whole file, or its first `max_requests`.
Result<Trace> read_trace(const std::string& path, std::int64_t max_requests = std::numeric_limits<std::int64_t>::max());

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_TRACE_H_
