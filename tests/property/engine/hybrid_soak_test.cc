// Long random runs over every feature of the engine at once: fine and coarse boundaries, DCP with interleave, drafts,
// speculative tokens, checkpoints, retention, bounded replay, fewer tokens than offered, preemption, abort, eviction,
// reset, eager and lazy stores, steps planned ahead of the results. After every step nothing is lost (R15) and no byte
// was wrong; at the end nothing is pinned, and every configuration has had hits.

#include <gtest/gtest.h>

#include <array>
#include <deque>

#include "tests/support/engine_support.h"
#include "tests/support/random.h"

namespace hostkv::bench::testing {
namespace {

using hostkv::testing::draft;
using hostkv::testing::one_in;

struct HybridCase {
  std::string name;
  std::vector<KvCacheGroup> groups;
  std::int64_t hash_block_tokens = 0;  // 0: the engine's choice
  std::int64_t dcp = 1;
};

void PrintTo(const HybridCase& c, std::ostream* out) {
  *out << c.name;
}

std::vector<HybridCase> hybrid_cases() {
  return {
      {"full", {full(8)}, 0, 1},
      {"mla_dcp4", {mla(4, true)}, 0, 4},
      {"full_window", {full(8), window(8, 20)}, 0, 1},
      {"pure_window", {window(8, 20)}, 0, 1},
      {"pure_mamba", {mamba(8)}, 0, 1},
      {"full_chunked", {full(8), chunked(8, 16)}, 0, 1},
      {"full_align_fine", {full(16), mamba(16)}, 4, 1},
      {"full_align_equal", {full(8), mamba(8)}, 0, 1},
      {"full_three_states_fine", {full(12), mamba(12), mamba(12), mamba(12)}, 2, 1},
      {"full_all", {full(8), mamba(8, MambaMode::kAll)}, 0, 1},
      {"mla_align_dcp8", {mla(2, true), mamba(16)}, 2, 8},
      {"mla_small_align_dcp4", {mla(8, true), mamba(8)}, 0, 4},
      {"mla_align_window_dcp2", {mla(8, true), mamba(16), window(4, 10)}, 4, 2},
      {"two_full_sizes_fine", {full(24), full(8), mamba(24)}, 4, 1},
      {"draft_full", {full(8), draft(full(8))}, 0, 1},
      {"draft_full_align_fine", {full(16), draft(full(16)), mamba(16)}, 4, 1},
      {"draft_window", {full(8), draft(window(8, 20))}, 0, 1},
      {"five_groups", {mla(32), ring(4), ring(8), window(8, 16), window(8, 16)}, 8, 1},
      {"sharded_and_replicated", {full(8, true), full(8, false), ring(8)}, 0, 4},
  };
}

class HybridSoak {
 public:
  HybridSoak(const HybridCase& c, std::uint64_t seed) : random_(seed) {
    EngineConfig config = device_config(c.groups, 0);
    config.offload = true;
    config.seed = seed;
    draw_scheduling(config, seed);
    if (c.hash_block_tokens > 0) config.geometry.hash_block_tokens = c.hash_block_tokens;
    config.geometry.parallel.dcp = c.dcp;
    config.geometry.parallel.interleave_tokens = c.dcp > 1 && one_in(random_, 2) ? 2 : 1;
    config.max_batched_tokens = pick(24, 120);
    config.max_running_requests = pick(2, 6);
    config.tail_rule = one_in(random_, 4) ? TailRule::kLastHash : TailRule::kBeforeLastToken;
    if (one_in(random_, 3)) config.retention_interval_tokens = one_in(random_, 2) ? 0 : 48;
    config.num_speculative_tokens = one_in(random_, 3) ? pick(1, 3) : 0;
    config.prefill_checkpoints = one_in(random_, 3);
    config.replay_tokens = one_in(random_, 2) ? pick(1, 8) : 0;
    config.connector.store_mode = one_in(random_, 3) ? StoreMode::kLazy : StoreMode::kEager;
    config.connector.boundaries = one_in(random_, 6) ? Boundaries::kCoarse : Boundaries::kFine;
    if (one_in(random_, 6)) {
      config.cap_external = [](RequestId id, std::int64_t, std::int64_t offered) {
        return id.value() % 3 == 0 ? offered - offered % 7 : offered;
      };
    }
    // Room for one of the largest requests and a little more.
    config.num_device_blocks = 1;
    const std::int64_t span = engine_span(config);
    most_prompt_ = 4 * std::min<std::int64_t>(span, 48) + 5;
    for (const KvCacheGroup& group : c.groups) {
      config.num_device_blocks += (most_prompt_ + kMostNew) / group.block_tokens + 6 + config.num_speculative_tokens;
    }
    config.num_device_blocks += pick(0, 20);
    config.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config, pick(60, 240));
    described_ = "steps ahead " + std::to_string(config.steps_ahead()) + ", loads in the step " +
                 std::to_string(config.load_mode == LoadMode::kSynchronous) + ", retention " +
                 std::to_string(config.retention_interval_tokens.value_or(-1)) + ", drafts " +
                 std::to_string(config.num_speculative_tokens) + ", checkpoints " +
                 std::to_string(config.prefill_checkpoints) + ", replay " + std::to_string(config.replay_tokens) +
                 ", lazy " + std::to_string(config.connector.store_mode == StoreMode::kLazy) + ", coarse " +
                 std::to_string(config.connector.boundaries == Boundaries::kCoarse) + ", cap " +
                 std::to_string(static_cast<bool>(config.cap_external));
    engine_ = make_engine(std::move(config));
  }

  void run(std::int64_t num_steps) {
    ASSERT_NE(engine_, nullptr);
    SCOPED_TRACE(described_);
    while (engine_->stats().steps < num_steps && !::testing::Test::HasFailure()) act();
    const Status status = engine_->run_until_idle(10'000);
    ASSERT_TRUE(status.ok()) << status.to_string();
    check();
    EXPECT_EQ(engine_->stats().pinned_device_blocks, 0);
    EXPECT_EQ(engine_->stats().free_device_blocks, engine_->pool().num_usable());
    for (const RequestReport& report : engine_->take_reports()) {
      device_hits_ += report.device_hit_tokens;
      host_hits_ += report.host_hit_tokens;
    }
  }

  [[nodiscard]] std::int64_t steps() const { return engine_ ? engine_->stats().steps : 0; }
  [[nodiscard]] std::int64_t device_hits() const { return device_hits_; }
  [[nodiscard]] std::int64_t host_hits() const { return host_hits_; }

 private:
  static constexpr std::int64_t kMostNew = 24;

  std::int64_t pick(std::int64_t low, std::int64_t high) { return hostkv::testing::pick(random_, low, high); }
  static std::int64_t engine_span(const EngineConfig& config) {
    GeometrySpec spec = config.geometry;
    spec.parallel.tp = spec.parallel.dcp;
    const Result<Geometry> geometry = Geometry::resolve(spec);
    return geometry ? geometry->scheduler_block_tokens() : 16;
  }

  void act() {
    const std::int64_t choice = pick(0, 19);
    if (choice < 5) add();
    if (choice == 5 && num_added_ > 0 && one_in(random_, 2)) {
      EXPECT_TRUE(engine_->abort_request(RequestId{static_cast<std::uint64_t>(pick(1, num_added_))}).ok());
    }
    if (choice == 6 && one_in(random_, 4)) engine_->evict_device_cache();
    if (choice == 7 && one_in(random_, 20)) static_cast<void>(engine_->reset_prefix_cache(one_in(random_, 2)));
    const Status status = engine_->step();
    EXPECT_TRUE(status.ok()) << status.to_string();
    check();
  }

  // Prompts share prefixes of a few families; ends fall on and beside boundaries. Some go on behind an earlier answer.
  void add() {
    remember_answer();
    const auto family = static_cast<std::int32_t>(pick(1, 4));
    std::int64_t num_tokens = pick(1, most_prompt_);
    if (one_in(random_, 3)) num_tokens = std::max<std::int64_t>(1, num_tokens / 8 * 8 + pick(0, 1));
    std::vector<std::int32_t> prompt = make_prompt(num_tokens, family);
    if (one_in(random_, 3)) prompt.back() = static_cast<std::int32_t>(pick(1, 3));
    if (!answered_.empty() && one_in(random_, 3)) prompt = go_on_behind(answered_[answered_.size() / 2]);
    RequestSpec spec{.prompt_tokens = std::move(prompt), .max_new_tokens = one_in(random_, 4) ? 1 : pick(1, kMostNew)};
    spec.skip_reading_cache = one_in(random_, 20);
    draw_end(random_, spec);
    const Result<RequestId> id = engine_->add_request(std::move(spec));
    ASSERT_TRUE(id.has_value()) << id.error().to_string();
    ++num_added_;
  }

  // Prompt and answer so far of a living request, the last few of them.
  void remember_answer() {
    if (num_added_ == 0) return;
    const Request* request = engine_->request(RequestId{static_cast<std::uint64_t>(pick(1, num_added_))});
    for (std::int64_t id = num_added_; request == nullptr && id > 0; --id) {
      request = engine_->request(RequestId{static_cast<std::uint64_t>(id)});
      if (id + 8 < num_added_) return;
    }
    if (request == nullptr || request->num_output_tokens() == 0) return;
    answered_.push_back(request->tokens);
    if (answered_.size() > 4) answered_.pop_front();
  }
  std::vector<std::int32_t> go_on_behind(std::vector<std::int32_t> tokens) {
    tokens.push_back(static_cast<std::int32_t>(pick(1, 3)));
    if (std::ssize(tokens) > most_prompt_) tokens.resize(static_cast<std::size_t>(most_prompt_));
    return tokens;
  }

  void check() { expect_sound(*engine_); }

  Random random_;
  std::unique_ptr<EngineImpl> engine_;
  std::deque<std::vector<std::int32_t>> answered_;
  std::string described_;
  std::int64_t most_prompt_ = 1;
  std::int64_t num_added_ = 0;
  std::int64_t device_hits_ = 0;
  std::int64_t host_hits_ = 0;
};

class HybridSoaks : public ::testing::TestWithParam<HybridCase> {};

constexpr std::int64_t kStepsARound = 600;

TEST_P(HybridSoaks, HaveNoWrongByteLoseNothingAndHit) {
  const std::uint64_t first_seed = first_test_seed();
  const std::uint64_t rounds = hostkv::testing::test_rounds(18, 3);
  std::int64_t steps = 0;
  std::int64_t device_hits = 0;
  std::int64_t host_hits = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed));
    HybridSoak soak(GetParam(), seed);
    soak.run(kStepsARound);
    steps += soak.steps();
    device_hits += soak.device_hits();
    host_hits += soak.host_hits();
  }
  RecordProperty("seed", std::to_string(first_seed));
  RecordProperty("steps", std::to_string(steps));
  EXPECT_GE(steps, static_cast<std::int64_t>(rounds) * kStepsARound);
  EXPECT_GT(device_hits, 0);
  EXPECT_GT(host_hits, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, HybridSoaks, ::testing::ValuesIn(hybrid_cases()),
                         [](const auto& of_case) { return of_case.param.name; });

}  // namespace
}  // namespace hostkv::bench::testing
