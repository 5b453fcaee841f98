// Bits that flip in host memory between store and load: with checksums no token is computed from them (R11).

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "bench/engine/forwarding_backend.h"
#include "tests/property/engine/faulty_run.h"

namespace hostkv::bench::testing {
namespace {

// Where the ranks' stores went, so that a test can damage it while nothing is copied.
class StoredBytes {
 public:
  void add(std::span<std::byte> bytes) { runs_.push_back(bytes); }

  std::int64_t flip_some(Random& random) {
    const std::int64_t count = runs_.empty() ? 0 : pick(random, 1, 20);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::span<std::byte> run = runs_[static_cast<std::size_t>(pick(random, 0, std::ssize(runs_) - 1))];
      run[static_cast<std::size_t>(pick(random, 0, std::ssize(run) - 1))] ^= std::byte{1} << pick(random, 0, 7);
    }
    return count;
  }

 private:
  std::vector<std::span<std::byte>> runs_;
};

// Changes nothing; writes down the targets of stores.
class WatchesStores final : public ForwardingBackend {
 public:
  WatchesStores(std::unique_ptr<TransferBackend> inner, StoredBytes& stored)
      : ForwardingBackend(std::move(inner)), stored_(stored) {}

  Result<RegionId> register_region(const RegionDesc& region) override {
    if (region.medium == Medium::kHost) {
      host_ = static_cast<std::byte*>(region.base);
    }
    return ForwardingBackend::register_region(region);
  }
  Status submit(TransferJob job) override {
    if (job.direction == Direction::kStore) {
      for (const CopyRun& run : job.runs) {
        stored_.add({host_ + run.dst_offset_bytes, static_cast<std::size_t>(run.size_bytes)});
      }
    }
    return ForwardingBackend::submit(std::move(job));
  }

 private:
  StoredBytes& stored_;
  std::byte* host_ = nullptr;
};

struct Outcome {
  Totals totals;
  std::int64_t flips = 0;
};

Outcome run_with(ChecksumMode mode, std::uint64_t rounds) {
  Outcome outcome;
  const std::uint64_t first_seed = first_test_seed();
  for (std::uint64_t seed = first_seed; seed < first_seed + rounds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed));
    StoredBytes stored;
    FaultyRun run(
        seed,
        [&](EngineConfig& config, Random&) {
          config.connector.checksums = mode;
          config.decorate_backend = [&](RankIndex, std::unique_ptr<TransferBackend> inner) {
            return std::make_unique<WatchesStores>(std::move(inner), stored);
          };
        },
        [&](Random& random) { outcome.flips += stored.flip_some(random); });
    if (mode == ChecksumMode::kOff) {
      run.expect_wrong_bytes();
    }
    run.run(outcome.totals);
  }
  return outcome;
}

TEST(EngineFlippedBitsProperty, AreFoundBeforeATokenIsComputedFromThem) {
  const std::uint64_t rounds = 2 * test_rounds(20);
  const Outcome outcome = run_with(ChecksumMode::kAll, rounds);
  RecordProperty("flips", std::to_string(outcome.flips));
  RecordProperty("failed_loads", std::to_string(outcome.totals.failed_loads));
  EXPECT_EQ(outcome.totals.bytes_wrong, 0);
  if (rounds < 20 || HasFailure()) return;
  EXPECT_GT(outcome.totals.host_hit_tokens, 0);
  EXPECT_GT(outcome.totals.failed_loads, 0);
}

// The control: the same flips are read where nobody checks.
TEST(EngineFlippedBitsProperty, AreReadWhereNothingIsChecked) {
  EXPECT_GT(run_with(ChecksumMode::kOff, 10).totals.bytes_wrong, 0);
}

}  // namespace
}  // namespace hostkv::bench::testing
