// R18 on pools that are just large enough for the largest request: whatever is loaded, preempted and computed again,
// every request ends, and within a bound.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/engine_random.h"

namespace hostkv::bench::testing {
namespace {

struct Work {
  std::int64_t num_requests = 0;
  std::int64_t total_tokens = 0;  // that all requests write in the end
};

Work work_of(const std::vector<RequestSpec>& requests) {
  Work work;
  for (const RequestSpec& request : requests) {
    ++work.num_requests;
    work.total_tokens += std::ssize(request.prompt_tokens) + request.max_new_tokens - 1;
  }
  return work;
}

// Copies end in their step here, so the oldest request that runs gets on in each step in which one runs. The oldest of
// all is never preempted once it runs; until then those that run end, one after the other, and none is admitted before
// it. So each of n requests waits for at most the total work, and then does its own: (n + 1) x total. Each also may
// spend steps on a load and on giving up one. An engine that plans `steps_ahead` steps before it has the results learns
// as much later of each end.
std::int64_t most_steps(const Work& work, std::int64_t steps_ahead) {
  return (steps_ahead + 1) * (work.num_requests + 1) * (work.total_tokens + 4);
}

// Not proven but observed: the worst of some thousand runs stays within half of it.
std::int64_t most_computed_tokens(const Work& work) {
  return 2 * work.num_requests * work.total_tokens;
}

class TightPool {
 public:
  explicit TightPool(std::uint64_t seed) : random_(seed) {
    config_.geometry = random_engine_spec(random_);
    config_.max_batched_tokens = pick(random_, 1, 60);
    config_.max_running_requests = pick(random_, 1, 6);
    config_.payload_bytes = pick(random_, 1, 9);
    config_.settle_copies = true;
    config_.seed = seed;
    draw_scheduling(config_, seed);
    requests_ = random_requests(random_, pick(random_, 2, 6), pick(random_, 2, 120), pick(random_, 1, 40));
    config_.num_device_blocks = smallest_pool(config_, requests_) + pick(random_, 0, 3) * pick(random_, 0, 4);
    config_.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config_, 300);
    engine_ = try_engine(config_);
  }

  [[nodiscard]] bool is_possible() const { return engine_ != nullptr; }
  [[nodiscard]] std::int64_t num_loaded() const { return engine_->scheduler_metrics().loaded_blocks; }
  [[nodiscard]] std::int64_t num_preemptions() const { return engine_->stats().preemptions; }

  // Fills the host, then asks for all of it at once.
  void run() {
    for (const RequestSpec& request : requests_) finish_all({request});
    engine_->evict_device_cache();
    finish_all(requests_);
    EXPECT_EQ(engine_->stats().bytes_wrong, 0);
    EXPECT_EQ(engine_->stats().free_device_blocks, config_.num_device_blocks);
    EXPECT_TRUE(engine_->check_conservation().ok()) << engine_->check_conservation().to_string();
  }

 private:
  void finish_all(const std::vector<RequestSpec>& requests) {
    if (::testing::Test::HasFailure()) return;
    for (const RequestSpec& request : requests) {
      const Result<RequestId> id = engine_->add_request(request);
      ASSERT_TRUE(id) << id.error().to_string();
    }
    const Work work = work_of(requests);
    const EngineStats before = engine_->stats();
    while (!engine_->idle() && engine_->stats().steps - before.steps <= most_steps(work, config_.steps_ahead())) {
      const Status status = engine_->step();
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    const EngineStats after = engine_->stats();
    EXPECT_TRUE(engine_->idle()) << "after " << after.steps - before.steps << " steps for " << work.total_tokens
                                 << " tokens of " << work.num_requests << " requests";
    EXPECT_LE(after.computed_tokens - before.computed_tokens, most_computed_tokens(work));
    EXPECT_EQ(engine_->take_reports().size(), requests.size());
  }

  Random random_;
  EngineConfig config_;
  std::vector<RequestSpec> requests_;
  std::unique_ptr<EngineImpl> engine_;
};

TEST(EngineLivenessProperty, EveryRequestEndsWithinTheTotalWorkTimesTheRequests) {
  const std::uint64_t first_seed = first_test_seed();
  const std::uint64_t rounds = 10 * test_rounds(20);
  std::int64_t num_engines = 0;
  std::int64_t num_loaded = 0;
  std::int64_t num_preemptions = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed));
    TightPool pool(seed);
    if (!pool.is_possible()) continue;
    ++num_engines;
    pool.run();
    num_loaded += pool.num_loaded();
    num_preemptions += pool.num_preemptions();
  }
  RecordProperty("engines", std::to_string(num_engines));
  RecordProperty("loaded_blocks", std::to_string(num_loaded));
  RecordProperty("preemptions", std::to_string(num_preemptions));
  if (rounds < 100 || HasFailure()) return;
  EXPECT_GT(num_engines, static_cast<std::int64_t>(rounds) / 8);
  EXPECT_GT(num_loaded, 0);
  EXPECT_GT(num_preemptions, 0);
}

}  // namespace
}  // namespace hostkv::bench::testing
