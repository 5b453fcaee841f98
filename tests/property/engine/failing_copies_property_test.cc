// Loads and stores that fail on some ranks (R11): what was not copied is never read, and everything still ends.

#include <gtest/gtest.h>

#include <utility>

#include "tests/property/engine/faulty_run.h"
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

TEST(EngineFailingCopiesProperty, NoWrongByteIsReadAndEveryRequestEndsWhenCopiesFail) {
  const std::uint64_t first_seed = first_test_seed();
  const std::uint64_t rounds = 4 * test_rounds(20);
  Totals totals;
  for (std::uint64_t seed = first_seed; seed < first_seed + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed));
    FaultyRun(seed, [seed](EngineConfig& config, Random& random) {
      const std::int64_t one_in = pick(random, 2, 12);
      config.decorate_backend = [seed, one_in](RankIndex rank, std::unique_ptr<TransferBackend> inner) {
        return std::make_unique<LosesCopies>(std::move(inner), seed * 100 + rank.value(), one_in);
      };
    }).run(totals);
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
