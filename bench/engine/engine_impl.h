#ifndef HOSTKV_BENCH_ENGINE_ENGINE_IMPL_H_
#define HOSTKV_BENCH_ENGINE_ENGINE_IMPL_H_

// Internal: the class behind Engine, for engine.cc and for tests that look inside.

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "bench/engine/block_pool.h"
#include "bench/engine/connector_link.h"
#include "bench/engine/engine.h"
#include "bench/engine/model_runner.h"
#include "bench/engine/request.h"
#include "bench/engine/scheduler.h"

namespace hostkv::bench {

// The engine of engine.h. Members are destroyed in the order connector, runner, scheduler, pool: copies end first.
class EngineImpl final : public Engine {
 public:
  EngineImpl(EngineConfig config, Geometry geometry);
  Status connect();  // once, before anything else, when the config says offload

  Result<RequestId> add_request(RequestSpec spec) override { return scheduler_.add(std::move(spec)); }
  Status abort_request(RequestId id) override { return scheduler_.abort(id); }
  Status step() override;
  Status run_until_idle(std::int64_t max_steps = 1'000'000) override;
  [[nodiscard]] bool idle() const override;
  void evict_device_cache() override { pool_.evict_cached(); }
  bool reset_prefix_cache(bool reset_connector) override;
  std::vector<RequestReport> take_reports() override { return scheduler_.take_reports(); }
  [[nodiscard]] EngineStats stats() const override;
  [[nodiscard]] SchedulerMetrics scheduler_metrics() const override;
  [[nodiscard]] const Geometry& geometry() const override { return geometry_; }
  [[nodiscard]] Status check_conservation() const override;

  // For tests.
  [[nodiscard]] const Request* request(RequestId id) const;          // null: not alive
  [[nodiscard]] const StepPlan& last_plan() const { return plan_; }  // of the last step
  [[nodiscard]] const BlockPool& pool() const { return pool_; }
  [[nodiscard]] HostStream& compute_stream(RankIndex rank) { return runner_.compute_stream(rank); }
  void corrupt_device_byte(RankIndex rank, GroupIndex group, BlockId block, std::int64_t offset_bytes);

 private:
  // A step that was launched and whose results the scheduler does not have.
  struct StepInFlight {
    std::uint64_t number = 0;
    std::vector<LaunchedChunk> chunks;
    ModelRunner::LaunchedStep forward;
    bool has_reports = false;
    std::vector<JobResult> reports;  // of the ranks
  };

  void prepare_blocks();
  Status load_now();
  void launch_forward(StepInFlight& step);
  Status run_on_ranks(StepInFlight& step);
  Status take_reports_of(StepInFlight& step);
  Status settle_oldest_step();
  [[nodiscard]] bool is_checked(const Request& request) const;
  [[nodiscard]] Status check_owners() const;
  [[nodiscard]] Status check_steps_in_flight() const;

  EngineConfig config_;
  Geometry geometry_;
  BlockPool pool_;
  RequestMap requests_;
  Scheduler scheduler_;
  ModelRunner runner_;
  std::unique_ptr<ConnectorLink> link_;  // null without offload
  StepPlan plan_;
  std::size_t num_copied_ = 0;          // of the plan's copies
  std::size_t num_scrubbed_ = 0;        // of its load targets
  std::deque<StepInFlight> in_flight_;  // the oldest first
  std::int64_t num_steps_ = 0;
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_ENGINE_ENGINE_IMPL_H_
