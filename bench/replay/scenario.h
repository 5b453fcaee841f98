#ifndef HOSTKV_BENCH_REPLAY_SCENARIO_H_
#define HOSTKV_BENCH_REPLAY_SCENARIO_H_

// The scenario cold-hot-evict-replay: one prompt computed, hit on the device, pressed out of it by other prompts, and
// hit in the host tier, every byte checked on every rank.
//
// Thread-safety: a run owns its engine; runs on several threads do not meet. Cost: about (3 + fillers) prompts of work.
// Failure: kInvalidArgument from the geometry or the engine; wrong bytes and missed hits are results (`ok`).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "bench/engine/engine.h"
#include "bench/models/model.h"

namespace hostkv::bench {

inline constexpr std::int64_t kMaxScenarioPromptTokens = 1'048'576;

struct ScenarioCell {
  std::string model;
  GeometrySpec geometry;
  std::int64_t prompt_tokens = 60950;
  std::int64_t payload_bytes = 8;
  ConnectorOptions connector;  // host size is set by the scenario: it holds all prompts
  Plant plant = Plant::kNone;
  std::uint64_t seed = 1;
};

struct ScenarioResult {
  std::int64_t expected_hit_tokens = 0;  // on the device (expected_hit.h)
  std::int64_t expected_host_hit_tokens = 0;
  std::int64_t cold_hit_tokens = 0;  // device and host; must be 0
  std::int64_t hot_device_hit_tokens = 0;
  std::int64_t replay_device_hit_tokens = 0;
  std::int64_t replay_host_hit_tokens = 0;
  std::int64_t device_blocks = 0;
  std::int64_t filler_prompts = 0;
  std::int64_t bytes_checked = 0;
  std::int64_t bytes_wrong = 0;
  std::optional<WrongByte> first_wrong;
  double wall_seconds = 0;
  bool ok = false;  // all as expected; never with a plant
};

// What a cell will ask for (memory.h).
struct ScenarioMemory {
  double device_bytes = 0;
  double host_bytes = 0;
};
ScenarioMemory scenario_memory(const ScenarioCell& cell);

// `on_phase` hears "cold", "hot", "evict", "replay" as they begin.
Result<ScenarioResult> run_scenario(const ScenarioCell& cell, const std::function<void(const char*)>& on_phase);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_REPLAY_SCENARIO_H_
