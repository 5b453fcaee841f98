// Loads and stores that fail on some ranks (R11): what was not copied is never read, and everything still ends.

#include <gtest/gtest.h>

#include <utility>

#include "tests/support/engine_random.h"
#include "tests/support/fault_backend.h"

namespace hostkv::bench::testing {
namespace {

// Some jobs lose a run, whose target then holds garbage; some are refused at once.
class LosesCopies final : public TransferBackend {
 public:
  LosesCopies(std::unique_ptr<TransferBackend> inner, std::uint64_t seed, std::int64_t one_in)
      : faults_(std::move(inner)), random_(seed), one_in_(one_in) {}

  [[nodiscard]] BackendCapabilities capabilities() const override { return faults_.capabilities(); }
  Result<RegionId> register_region(const RegionDesc& region) override { return faults_.register_region(region); }
  Status unregister_region(RegionId region) override { return faults_.unregister_region(region); }
  Status submit(TransferJob job) override {
    const bool is_hit = hostkv::testing::one_in(random_, one_in_);
    if (is_hit && hostkv::testing::one_in(random_, 4)) {
      faults_.fail_next_submit(StatusCode::kDeviceError);
    } else if (is_hit && !job.runs.empty()) {
      const std::int64_t run = pick(random_, 0, std::ssize(job.runs) - 1);
      faults_.fail_run(job.id, static_cast<std::uint32_t>(run));
    }
    return faults_.submit(std::move(job));
  }
  std::size_t poll(std::span<TransferResult> results) override { return faults_.poll(results); }
  Status wait(JobId job, std::chrono::nanoseconds timeout) override { return faults_.wait(job, timeout); }
  Status cancel(JobId job) override { return faults_.cancel(job); }
  Status drain(std::chrono::nanoseconds timeout) override { return faults_.drain(timeout); }

 private:
  hostkv::testing::FaultBackend faults_;
  Random random_;
  std::int64_t one_in_;
};

struct Totals {
  std::int64_t engines = 0;
  std::int64_t host_hit_tokens = 0;
  std::int64_t failed_loads = 0;
};

class FailingRun {
 public:
  explicit FailingRun(std::uint64_t seed) : random_(seed) {
    config_.geometry = random_engine_spec(random_);
    config_.max_batched_tokens = pick(random_, 4, 100);
    config_.max_running_requests = pick(random_, 1, 6);
    config_.settle_copies = hostkv::testing::one_in(random_, 2);
    config_.seed = seed;
    draw_scheduling(config_, seed);
    requests_ = random_requests(random_, pick(random_, 2, 6), pick(random_, 2, 100), pick(random_, 1, 20));
    config_.num_device_blocks = smallest_pool(config_, requests_) * pick(random_, 1, 3);
    config_.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config_, pick(random_, 30, 200));
    const std::int64_t one_in = pick(random_, 2, 12);
    config_.decorate_backend = [seed, one_in](RankIndex rank, std::unique_ptr<TransferBackend> inner) {
      return std::make_unique<LosesCopies>(std::move(inner), seed * 100 + rank.value(), one_in);
    };
    engine_ = try_engine(config_);
  }

  void run(Totals& totals) {
    if (!engine_) return;
    ++totals.engines;
    for (int wave = 0; wave < 6 && !::testing::Test::HasFailure(); ++wave) {
      for (const RequestSpec& request : requests_) EXPECT_TRUE(engine_->add_request(request));
      for (std::int64_t i = pick(random_, 0, 5); i > 0; --i) step();
      if (hostkv::testing::one_in(random_, 2)) engine_->evict_device_cache();
      const Status status = engine_->run_until_idle(20'000);
      EXPECT_TRUE(status.ok()) << status.to_string();
      check_idle();
      engine_->evict_device_cache();
    }
    for (const RequestReport& report : engine_->take_reports()) {
      totals.host_hit_tokens += report.host_hit_tokens;
      totals.failed_loads += report.failed_loads;
    }
  }

 private:
  void step() {
    const Status status = engine_->step();
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(engine_->check_conservation().ok()) << engine_->check_conservation().to_string();
  }
  void check_idle() {
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.bytes_wrong, 0) << (stats.first_wrong ? stats.first_wrong->what : "");
    EXPECT_EQ(stats.pinned_device_blocks, 0);
    EXPECT_EQ(stats.free_device_blocks, config_.num_device_blocks);
    EXPECT_EQ(engine_->scheduler_metrics().pinned_slots, 0);
    EXPECT_TRUE(engine_->check_conservation().ok()) << engine_->check_conservation().to_string();
  }

  Random random_;
  EngineConfig config_;
  std::vector<RequestSpec> requests_;
  std::unique_ptr<EngineImpl> engine_;
};

TEST(EngineFailingCopiesProperty, NoWrongByteIsReadAndEveryRequestEndsWhenCopiesFail) {
  const std::uint64_t first_seed = first_test_seed();
  const std::uint64_t rounds = 4 * test_rounds(20);
  Totals totals;
  for (std::uint64_t seed = first_seed; seed < first_seed + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed));
    FailingRun(seed).run(totals);
  }
  RecordProperty("engines", std::to_string(totals.engines));
  RecordProperty("host_hit_tokens", std::to_string(totals.host_hit_tokens));
  RecordProperty("failed_loads", std::to_string(totals.failed_loads));
  if (rounds < 40 || HasFailure()) return;
  EXPECT_GT(totals.host_hit_tokens, 0);
  EXPECT_GT(totals.failed_loads, 0);
}

}  // namespace
}  // namespace hostkv::bench::testing
