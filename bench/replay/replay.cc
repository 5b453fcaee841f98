#include "bench/replay/replay.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "bench/replay/boundary_history.h"
#include "bench/replay/expected_hit.h"
#include "bench/replay/one_request.h"
#include "bench/replay/theory.h"
#include "bench/replay/tokens.h"

namespace hostkv::bench {
namespace {

EngineConfig engine_config(const ReplayCell& cell) {
  EngineConfig config;
  config.geometry = cell.geometry;
  config.num_device_blocks = cell.device_blocks;
  config.payload_bytes = cell.payload_bytes;
  config.check = cell.check;
  config.seed = cell.seed;
  config.settle_copies = true;  // the same trace gives the same figures
  config.offload = cell.host_blocks > 0;
  config.connector = cell.connector;
  if (config.offload) config.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config, cell.host_blocks);
  return config;
}

class Replayer {
 public:
  Replayer(Engine& engine, const ReplayCell& cell, std::int64_t step_tokens)
      : engine_(engine), cell_(cell), history_(engine.geometry(), step_tokens) {}

  Status replay(const TraceRequest& request, ReplayResult& result) {
    const std::int64_t block = cell_.trace->block_tokens;
    const std::int64_t shared_tokens = seen_.visit(request.block_ids) * block;
    const Result<RequestReport> report = run_one(engine_, prompt_tokens(request.block_ids, block));
    if (!report) return report.error();
    const auto num_blocks = static_cast<std::int64_t>(request.block_ids.size());
    result.requests += 1;
    result.blocks += num_blocks;
    result.prompt_tokens += report->prompt_tokens;
    result.reusable_tokens += num_blocks * block;
    result.theoretical_tokens += shared_tokens;
    return book(request, *report, shared_tokens, result.ledger);
  }

 private:
  Status book(const TraceRequest& request, const RequestReport& report, std::int64_t shared_tokens, Ledger& ledger) {
    const std::int64_t aligned_tokens = largest_boundary(cell_.geometry, shared_tokens, shared_tokens);
    const std::int64_t hit = report.device_hit_tokens + report.host_hit_tokens;
    const std::int64_t missed = aligned_tokens - hit;
    if (missed < 0 || hit + report.computed_tokens != report.prompt_tokens) {
      return Status(StatusCode::kInternal, "R24: a prompt of " + std::to_string(report.prompt_tokens) + " tokens hit " +
                                               std::to_string(hit) + " and computed " +
                                               std::to_string(report.computed_tokens) + ", of which " +
                                               std::to_string(shared_tokens) + " were seen before");
    }
    const std::int64_t kept = std::max(
        hit, history_.visit(request.block_ids, cell_.trace->block_tokens, aligned_tokens, hit, report.prompt_tokens));
    ledger.device_hit += report.device_hit_tokens;
    ledger.host_hit += report.host_hit_tokens;
    ledger.last_token += 1;
    ledger.cold += report.prompt_tokens - 1 - shared_tokens;
    ledger.alignment += shared_tokens - aligned_tokens;
    ledger.boundary += aligned_tokens - kept;
    (report.failed_loads > 0 ? ledger.load_failed : ledger.capacity) += kept - hit;
    return {};
  }

  Engine& engine_;
  const ReplayCell& cell_;
  SeenBlocks seen_;
  BoundaryHistory history_;
};

void take_counters(const Engine& engine, ReplayResult& result) {
  const EngineStats stats = engine.stats();
  const SchedulerMetrics metrics = engine.scheduler_metrics();
  result.stored_blocks = metrics.stored_blocks;
  result.loaded_blocks = metrics.loaded_blocks;
  result.bytes_checked = stats.bytes_checked;
  result.bytes_wrong = stats.bytes_wrong;
  result.first_wrong = stats.first_wrong;
}

}  // namespace

GeometrySpec trace_geometry(const Trace& trace, std::int64_t dcp, std::int64_t interleave_tokens) {
  GeometrySpec spec;
  KvCacheGroup group;
  group.name = "one-group";
  group.kind = GroupKind::kFullAttention;
  group.block_tokens = trace.block_tokens;
  group.sharded = true;
  spec.groups.push_back(group);
  spec.parallel.tp = dcp;
  spec.parallel.dcp = dcp;
  spec.parallel.interleave_tokens = interleave_tokens;
  spec.fine_hits = false;
  return spec;
}

Result<ReplayResult> run_replay(const ReplayCell& cell, const std::function<void(std::int64_t)>& on_request) {
  const auto start = std::chrono::steady_clock::now();
  const EngineConfig config = engine_config(cell);
  const std::int64_t step_tokens = config.max_batched_tokens;
  Result<std::unique_ptr<Engine>> engine = Engine::create(config);
  if (!engine) return error(engine.error());
  ReplayResult result;
  Replayer replayer(**engine, cell, step_tokens);
  for (const TraceRequest& request : cell.trace->requests) {
    if (Status status = replayer.replay(request, result); !status.ok()) {
      return error(status.code(),
                   "request " + std::to_string(result.requests) + " of " + cell.trace->name + ": " + status.message());
    }
    on_request(result.requests);
  }
  if (Status status = (*engine)->check_conservation(); !status.ok()) return error(std::move(status));
  if (result.ledger.sum() != result.prompt_tokens) {
    return error(StatusCode::kInternal, "the ledger books " + std::to_string(result.ledger.sum()) + " of " +
                                            std::to_string(result.prompt_tokens) + " prompt tokens");
  }
  take_counters(**engine, result);
  result.wall_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace hostkv::bench
