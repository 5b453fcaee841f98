// Many requests with shared prefixes on a pool that is too small: chunks, preemptions, aborts, evictions, and with a
// connector stores and loads. No byte may be wrong, no block lost, and everything ends.

#include <gtest/gtest.h>

#include <ostream>

#include "tests/support/engine_support.h"

namespace hostkv::bench::testing {
namespace {

struct SoakCase {
  std::string name;
  std::vector<KvCacheGroup> groups;
  std::int64_t dcp = 1;
  std::int64_t interleave_tokens = 1;
  std::int64_t num_device_blocks = 40;
};

void PrintTo(const SoakCase& soak, std::ostream* out) {
  *out << soak.name;
}

std::vector<SoakCase> soak_cases() {
  std::vector<SoakCase> cases{
      {"full", {full(8)}},
      {"full_window", {full(8), window(8, 20)}},
      {"window_chunked", {window(8, 20), chunked(8, 16)}},
      {"full_align", {full(8), mamba(16)}},
      {"full_all", {full(8), mamba(8, MambaMode::kAll)}},
      {"full_none", {full(8), mamba(8, MambaMode::kNone)}},
      {"everything", {full(16), window(8, 20), chunked(16, 32), mamba(16), ring(4)}, 1, 1, 90},
  };
  for (const std::int64_t dcp : {2, 4, 8}) {
    for (const std::int64_t interleave : {1, 2, 8}) {
      const std::string suffix = "_dcp" + std::to_string(dcp) + "_interleave" + std::to_string(interleave);
      cases.push_back({"mla_align" + suffix, {mla(8, true), mamba(8 * dcp)}, dcp, interleave, 30});
    }
  }
  cases.push_back({"sharded_and_replicated", {full(8, true), full(8, false), ring(8)}, 4, 2, 60});
  return cases;
}

class Soak {
 public:
  Soak(const SoakCase& soak, bool offload, std::uint64_t seed) : random_(seed) {
    EngineConfig config = device_config(soak.groups, soak.num_device_blocks);
    config.geometry.parallel.dcp = soak.dcp;
    config.geometry.parallel.interleave_tokens = soak.interleave_tokens;
    config.max_batched_tokens = pick(20, 100);
    config.max_running_requests = pick(2, 8);
    config.payload_bytes = pick(0, 2) == 0 ? pick(1, 20) : 8;
    config.offload = offload;
    draw_scheduling(config, seed);
    config.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config, 40);
    engine_ = make_engine(std::move(config));
    span_ = engine_ ? engine_->geometry().scheduler_block_tokens() : 1;
  }

  void run() {
    ASSERT_NE(engine_, nullptr);
    for (int i = 0; i < 150 && !::testing::Test::HasFailure(); ++i) act();
    const Status status = engine_->run_until_idle(10'000);
    EXPECT_TRUE(status.ok()) << status.to_string();
    check();
    EXPECT_EQ(engine_->stats().pinned_device_blocks, 0);
    EXPECT_EQ(engine_->stats().free_device_blocks, engine_->pool().num_usable());
    std::int64_t ended = 0;
    for (const RequestReport& report : engine_->take_reports()) {
      ++ended;
      if (report.aborted || report.num_preemptions > 0) continue;
      EXPECT_EQ(report.device_hit_tokens + report.host_hit_tokens + report.computed_tokens, report.prompt_tokens);
    }
    EXPECT_EQ(ended, num_added_);
  }

 private:
  std::int64_t pick(std::int64_t low, std::int64_t high) { return hostkv::testing::pick(random_, low, high); }
  void act() {
    const std::int64_t choice = pick(0, 9);
    if (choice < 3) add();
    if (choice == 3 && num_added_ > 0) {
      EXPECT_TRUE(engine_->abort_request(RequestId{static_cast<std::uint64_t>(pick(1, num_added_))}).ok());
    }
    if (choice == 4 && pick(0, 3) == 0) engine_->evict_device_cache();
    const Status status = engine_->step();
    EXPECT_TRUE(status.ok()) << status.to_string();
    check();
  }
  // Prompts share prefixes of a few families.
  void add() {
    const auto family = static_cast<std::int32_t>(pick(1, 3));
    std::vector<std::int32_t> prompt = make_prompt(pick(1, 5 * std::min<std::int64_t>(span_, 32)), family);
    if (pick(0, 2) == 0) prompt.back() = static_cast<std::int32_t>(pick(1, 3));
    RequestSpec spec{.prompt_tokens = std::move(prompt), .max_new_tokens = pick(1, 12)};
    spec.skip_reading_cache = pick(0, 9) == 0;
    draw_end(random_, spec);
    const Result<RequestId> id = engine_->add_request(std::move(spec));
    if (id) ++num_added_;
    if (!id) {
      EXPECT_EQ(id.error().code(), StatusCode::kInvalidArgument) << id.error().to_string();
    }
  }
  void check() { expect_sound(*engine_); }

  Random random_;
  std::unique_ptr<EngineImpl> engine_;
  std::int64_t span_ = 1;
  std::int64_t num_added_ = 0;
};

class EngineSoak : public ::testing::TestWithParam<SoakCase> {
 protected:
  static void run(bool offload) {
    const std::uint64_t first_seed = first_test_seed();
    const std::uint64_t rounds = test_rounds(4);
    for (std::uint64_t seed = first_seed; seed < first_seed + rounds && !HasFailure(); ++seed) {
      SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed));
      Soak(GetParam(), offload, seed).run();
    }
  }
};

TEST_P(EngineSoak, HasNoWrongByteAndLosesNoBlockOnTheDevice) {
  run(false);
}

TEST_P(EngineSoak, HasNoWrongByteAndLosesNoBlockWithOffload) {
  run(true);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineSoak, ::testing::ValuesIn(soak_cases()),
                         [](const auto& soak) { return soak.param.name; });

}  // namespace
}  // namespace hostkv::bench::testing
