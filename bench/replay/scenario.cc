#include "bench/replay/scenario.h"

#include <algorithm>

#include "bench/engine/group_rules.h"
#include "bench/replay/expected_hit.h"
#include "bench/replay/memory.h"
#include "bench/replay/one_request.h"
#include "bench/replay/random.h"
#include "bench/replay/tokens.h"

namespace hostkv::bench {
namespace {

constexpr std::int64_t kSpareDeviceBlocks = 8;
// A lazy store comes some steps before the device drops a block: the device must be larger than what they hand out.
constexpr std::int64_t kLazySteps = 6;
// Blocks that are being copied when their turn comes have it later: some more prompts, and what is left after them has
// been stored and is dropped.
constexpr std::int64_t kLazyFillers = 2;
constexpr std::int64_t kSpareBlocksOfAGroup = 2;  // a tail that ends inside a block is kept beside the block

// Sizes that make the scenario mean what it says: the device holds one prompt, the fillers press it out for certain,
// the host holds all of them.
struct Sizes {
  std::int64_t device_blocks = 0;
  std::int64_t filler_tokens = 0;
  std::int64_t filler_prompts = 0;
  std::int64_t host_blocks = 0;
};

bool is_cached(const KvCacheGroup& group) {
  const bool keeps_nothing = group.kind == GroupKind::kMamba && group.mamba_mode == MambaMode::kNone;
  return group.cacheable && group.kind != GroupKind::kScratch && !keeps_nothing;
}

// Blocks of a prompt that stay in the prefix cache whatever the engine skips: at most one recurrent state a step.
std::int64_t least_cached_blocks(const GeometrySpec& spec, std::int64_t tokens, std::int64_t step_tokens) {
  std::int64_t blocks = 0;
  for (const KvCacheGroup& group : spec.groups) {
    if (!is_cached(group)) continue;
    const bool sparse = group.kind == GroupKind::kMamba;
    blocks += tokens / (sparse ? std::max(step_tokens, span_of(group, spec.parallel)) : span_of(group, spec.parallel));
  }
  return std::max<std::int64_t>(blocks, 1);
}

std::int64_t most_blocks(const GeometrySpec& spec, std::int64_t tokens) {
  std::int64_t blocks = 0;
  for (const KvCacheGroup& group : spec.groups) {
    blocks +=
        group.kind == GroupKind::kScratch ? 1 : cdiv(tokens + 1, span_of(group, spec.parallel)) + kSpareBlocksOfAGroup;
  }
  return blocks;
}

Sizes choose_sizes(const ScenarioCell& cell, std::int64_t step_tokens) {
  std::int64_t longest_span = step_tokens;
  for (const KvCacheGroup& group : cell.geometry.groups) {
    longest_span = std::max(longest_span, span_of(group, cell.geometry.parallel));
  }
  Sizes sizes;
  sizes.filler_tokens = std::max(cell.prompt_tokens, 2 * longest_span + 1);
  sizes.device_blocks = most_blocks(cell.geometry, sizes.filler_tokens) + kSpareDeviceBlocks;
  if (cell.connector.store_mode == StoreMode::kLazy) {
    sizes.device_blocks += kLazySteps * most_blocks(cell.geometry, step_tokens);
  }
  const std::int64_t pressed_out = least_cached_blocks(cell.geometry, sizes.filler_tokens, step_tokens);
  sizes.filler_prompts = cdiv(sizes.device_blocks, pressed_out) + 1;
  if (cell.connector.store_mode == StoreMode::kLazy) sizes.filler_prompts += kLazyFillers;
  sizes.host_blocks = (sizes.filler_prompts + 2) * most_blocks(cell.geometry, sizes.filler_tokens);
  return sizes;
}

class ScenarioRun {
 public:
  ScenarioRun(Engine& engine, const ScenarioCell& cell, const Sizes& sizes)
      : engine_(engine), cell_(cell), sizes_(sizes) {}

  Status run(const std::function<void(const char*)>& on_phase, ScenarioResult& result) {
    const auto prompt_seed = mix64(cell_.seed);
    RequestReport report;
    on_phase("cold");
    if (Status s = prompt(prompt_seed, cell_.prompt_tokens, report); !s.ok()) return s;
    result.cold_hit_tokens = report.device_hit_tokens + report.host_hit_tokens;
    on_phase("hot");
    if (Status s = prompt(prompt_seed, cell_.prompt_tokens, report); !s.ok()) return s;
    result.hot_device_hit_tokens = report.device_hit_tokens;
    on_phase("evict");
    for (std::int64_t i = 1; i <= sizes_.filler_prompts; ++i) {
      const std::uint64_t seed = mix64(cell_.seed + static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15ULL);
      if (Status s = prompt(seed, sizes_.filler_tokens, report); !s.ok()) return s;
    }
    if (cell_.connector.store_mode == StoreMode::kLazy) engine_.evict_device_cache();
    on_phase("replay");
    if (Status s = prompt(prompt_seed, cell_.prompt_tokens, report); !s.ok()) return s;
    result.replay_device_hit_tokens = report.device_hit_tokens;
    result.replay_host_hit_tokens = report.host_hit_tokens;
    return engine_.check_conservation();
  }

 private:
  Status prompt(std::uint64_t seed, std::int64_t num_tokens, RequestReport& report) {
    Result<RequestReport> done = run_one(engine_, random_prompt(seed, num_tokens));
    if (!done) return done.error();
    report = *std::move(done);
    return {};
  }

  Engine& engine_;
  const ScenarioCell& cell_;
  const Sizes& sizes_;
};

bool as_expected(const ScenarioResult& r) {
  const bool hits = r.cold_hit_tokens == 0 && r.hot_device_hit_tokens == r.expected_hit_tokens &&
                    r.replay_device_hit_tokens == 0 && r.replay_host_hit_tokens == r.expected_host_hit_tokens;
  return hits && r.bytes_wrong == 0 && (r.bytes_checked > 0 || r.expected_hit_tokens == 0);
}

EngineConfig engine_config(const ScenarioCell& cell, Sizes& sizes) {
  EngineConfig config;
  config.geometry = cell.geometry;
  config.payload_bytes = cell.payload_bytes;
  config.connector = cell.connector;
  // The engine's steps take no time: a lazy store would run behind by many of them, and what it is late for is dropped.
  config.settle_copies = cell.connector.store_mode == StoreMode::kLazy;
  config.check = CheckBytes::kAll;
  config.plant = cell.plant;
  config.seed = cell.seed;
  sizes = choose_sizes(cell, config.max_batched_tokens);
  config.num_device_blocks = sizes.device_blocks;
  config.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config, sizes.host_blocks);
  return config;
}

}  // namespace

ScenarioMemory scenario_memory(const ScenarioCell& cell) {
  const Sizes sizes = choose_sizes(cell, EngineConfig().max_batched_tokens);
  return {device_bytes(cell.geometry, cell.payload_bytes, sizes.device_blocks),
          host_bytes(cell.geometry, cell.payload_bytes, sizes.host_blocks)};
}

Result<ScenarioResult> run_scenario(const ScenarioCell& cell, const std::function<void(const char*)>& on_phase) {
  const auto start = std::chrono::steady_clock::now();
  Sizes sizes;
  Result<std::unique_ptr<Engine>> engine = Engine::create(engine_config(cell, sizes));
  if (!engine) return error(engine.error());
  ScenarioResult result;
  const ExpectedHits expected = expected_hits(cell.geometry, cell.prompt_tokens);
  result.expected_hit_tokens = expected.device_tokens;
  result.expected_host_hit_tokens = expected.host_tokens;
  result.device_blocks = sizes.device_blocks;
  result.filler_prompts = sizes.filler_prompts;
  ScenarioRun run(**engine, cell, sizes);
  if (Status status = run.run(on_phase, result); !status.ok()) return error(std::move(status));
  const EngineStats stats = (*engine)->stats();
  result.bytes_checked = stats.bytes_checked;
  result.bytes_wrong = stats.bytes_wrong;
  result.first_wrong = stats.first_wrong;
  result.ok = as_expected(result) && cell.plant == Plant::kNone;
  result.wall_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace hostkv::bench
