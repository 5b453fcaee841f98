#ifndef HOSTKV_TESTS_PROPERTY_ENGINE_FAULTY_RUN_H_
#define HOSTKV_TESTS_PROPERTY_ENGINE_FAULTY_RUN_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/engine_random.h"

namespace hostkv::bench::testing {

struct Totals {
  std::int64_t engines = 0;
  std::int64_t host_hit_tokens = 0;
  std::int64_t failed_loads = 0;
  std::int64_t bytes_wrong = 0;
};

// Random requests over a random model with a small host pool and faults of the test's choice, in waves: what the host
// has is asked for again and again. Nothing wrong may be read, everything must end, nothing may leak.
class FaultyRun {
 public:
  // Sets what the test needs in the config: backends, checksums. Called last.
  using Prepare = std::function<void(EngineConfig&, Random&)>;
  // Between the waves, when no request and no copy is left.
  using Between = std::function<void(Random&)>;

  FaultyRun(std::uint64_t seed, const Prepare& prepare, Between between = {})
      : random_(seed), between_(std::move(between)) {
    config_.geometry = random_engine_spec(random_);
    config_.max_batched_tokens = pick(random_, 4, 100);
    config_.max_running_requests = pick(random_, 1, 6);
    config_.settle_copies = hostkv::testing::one_in(random_, 2);
    config_.seed = seed;
    draw_scheduling(config_, seed);
    requests_ = random_requests(random_, pick(random_, 2, 6), pick(random_, 2, 100), pick(random_, 1, 20));
    config_.num_device_blocks = smallest_pool(config_, requests_) * pick(random_, 1, 3);
    config_.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config_, pick(random_, 30, 200));
    prepare(config_, random_);
    engine_ = try_engine(config_);
  }

  // For a control run, which shows that the faults are seen.
  void expect_wrong_bytes() { expects_wrong_bytes_ = true; }

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
      if (between_) between_(random_);
    }
    totals.bytes_wrong += engine_->stats().bytes_wrong;
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
    if (!expects_wrong_bytes_) {
      EXPECT_EQ(stats.bytes_wrong, 0) << (stats.first_wrong ? stats.first_wrong->what : "");
    }
    EXPECT_EQ(stats.pinned_device_blocks, 0);
    EXPECT_EQ(stats.free_device_blocks, config_.num_device_blocks);
    EXPECT_EQ(engine_->scheduler_metrics().pinned_slots, 0);
    EXPECT_TRUE(engine_->check_conservation().ok()) << engine_->check_conservation().to_string();
  }

  Random random_;
  Between between_;
  bool expects_wrong_bytes_ = false;
  EngineConfig config_;
  std::vector<RequestSpec> requests_;
  std::unique_ptr<EngineImpl> engine_;
};

}  // namespace hostkv::bench::testing

#endif  // HOSTKV_TESTS_PROPERTY_ENGINE_FAULTY_RUN_H_
