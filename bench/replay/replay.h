#ifndef HOSTKV_BENCH_REPLAY_REPLAY_H_
#define HOSTKV_BENCH_REPLAY_REPLAY_H_

// Replays a trace through the reference engine and counts where every prompt token came from.
//
// Counting rule: requests one after the other in the order of the trace, each run to its end, its stores included,
// before the next is added. A prompt is ids x block + 1 tokens (tokens.h), one token is generated, no output is
// inserted. Rates are tokens hit over tokens that can be hit (all but the last of each prompt); for one full-attention
// group with the trace's block that is blocks hit over blocks referenced.
// Thread-safety: a run owns its engine and only reads the trace; runs on several threads do not meet. Cost: every
// prompt is generated and hashed, memory is one prompt beside the engine's. Failure: kInvalidArgument from geometry or
// engine, or a request that does not fit into the device; wrong bytes are results.

#include <cstdint>
#include <functional>
#include <optional>

#include "bench/engine/engine.h"
#include "bench/replay/trace.h"

namespace hostkv::bench {

struct ReplayCell {
  const Trace* trace = nullptr;  // outlives the run
  GeometrySpec geometry;
  std::int64_t device_blocks = 0;  // usable blocks beside the null block
  std::int64_t host_blocks = 0;    // slots of the largest group; 0: no host tier
  CheckBytes check = CheckBytes::kSampled;
  std::int64_t payload_bytes = 1;
  ConnectorOptions connector;  // host size is set from host_blocks
  std::uint64_t seed = 1;
};

// Every prompt token once, by where it came from or why it was computed.
struct Ledger {
  std::int64_t device_hit = 0;
  std::int64_t host_hit = 0;
  std::int64_t cold = 0;         // behind the longest prefix that any earlier request shared
  std::int64_t capacity = 0;     // was cached, is gone
  std::int64_t alignment = 0;    // shared, but behind the last boundary that a hit can end at
  std::int64_t boundary = 0;     // shared, but no recurrent state was ever kept at a boundary so far behind
  std::int64_t load_failed = 0;  // found, not loaded
  std::int64_t last_token = 0;   // a prompt's last token is always computed

  [[nodiscard]] std::int64_t sum() const {
    return device_hit + host_hit + cold + capacity + alignment + boundary + load_failed + last_token;
  }
};

struct ReplayResult {
  std::int64_t requests = 0;
  std::int64_t blocks = 0;  // block references of the trace
  std::int64_t prompt_tokens = 0;
  std::int64_t reusable_tokens = 0;     // all but the last token of each prompt
  std::int64_t theoretical_tokens = 0;  // hit by a cache without limit
  Ledger ledger;
  std::int64_t stored_blocks = 0;
  std::int64_t loaded_blocks = 0;
  std::int64_t bytes_checked = 0;
  std::int64_t bytes_wrong = 0;
  std::optional<WrongByte> first_wrong;
  double wall_seconds = 0;

  [[nodiscard]] double device_hit_rate() const { return rate(ledger.device_hit); }
  [[nodiscard]] double host_hit_rate() const { return rate(ledger.host_hit); }
  [[nodiscard]] double theoretical_hit_rate() const { return rate(theoretical_tokens); }

 private:
  [[nodiscard]] double rate(std::int64_t tokens) const {
    return reusable_tokens == 0 ? 0.0 : static_cast<double>(tokens) / static_cast<double>(reusable_tokens);
  }
};

// One full-attention group whose block is the trace's, dealt out over `dcp` ranks.
GeometrySpec trace_geometry(const Trace& trace, std::int64_t dcp, std::int64_t interleave_tokens);

// `on_request` hears the number of requests done, after each.
Result<ReplayResult> run_replay(const ReplayCell& cell, const std::function<void(std::int64_t)>& on_request);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_REPLAY_H_
