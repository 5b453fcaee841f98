// Stored implies findable: what was computed once is hit again, on device and host together, as far as theory allows.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/engine/engine.h"
#include "bench/models/model.h"
#include "bench/models/presets.h"
#include "bench/replay/expected_hit.h"
#include "bench/replay/one_request.h"
#include "bench/replay/tokens.h"

namespace hostkv::bench {
namespace {

constexpr std::int64_t kPromptsOnDevice = 3;
constexpr std::int64_t kRounds = 2;

using Prompt = std::vector<std::int32_t>;

// Prompts of which some share a part with the first, all of different lengths.
std::vector<Prompt> some_prompts(std::int64_t unit, std::int64_t longest_tokens) {
  std::vector<Prompt> prompts;
  const Prompt first = random_prompt(1, longest_tokens);
  for (std::uint64_t i = 0; i < 8; ++i) {
    const auto tokens = longest_tokens - static_cast<std::int64_t>(i) * (unit / 3 + 1);
    Prompt prompt = random_prompt(100 + i, tokens);
    if (i % 2 == 0) std::copy_n(first.begin(), tokens / 2, prompt.begin());
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

std::int64_t blocks_of(const GeometrySpec& spec, std::int64_t tokens) {
  std::int64_t blocks = 0;
  for (const KvCacheGroup& group : spec.groups) {
    const std::int64_t of_tokens = tokens / span_of(group, spec.parallel) + 3;
    const bool is_sparse = group.kind == GroupKind::kMamba || group.kind == GroupKind::kScratch;
    blocks += is_sparse ? std::min<std::int64_t>(of_tokens, 4) : of_tokens;
  }
  return blocks;
}

EngineConfig config_of(const GeometrySpec& spec, StoreMode mode, std::int64_t longest_tokens) {
  EngineConfig config;
  config.geometry = spec;
  config.payload_bytes = 1;
  config.settle_copies = true;
  config.max_batched_tokens = longest_tokens / 2;
  config.num_device_blocks = kPromptsOnDevice * blocks_of(spec, longest_tokens);
  config.connector.store_mode = mode;
  config.connector.cpu_bytes_to_use_per_rank = host_bytes_for_blocks(config, 40 * blocks_of(spec, longest_tokens));
  return config;
}

// More prompts than the device holds, again and again.
void expect_found_again(const GeometrySpec& spec, StoreMode mode) {
  const std::int64_t longest_tokens = 3 * scheduler_block_of(spec) + 1000;
  const Result<std::unique_ptr<Engine>> engine = Engine::create(config_of(spec, mode, longest_tokens));
  ASSERT_TRUE(engine) << engine.error().message();
  const std::vector<Prompt> prompts = some_prompts(scheduler_block_of(spec), longest_tokens);
  std::int64_t host_tokens = 0;
  for (std::int64_t round = 0; round <= kRounds; ++round) {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const Result<RequestReport> report = run_one(**engine, prompts[i]);
      ASSERT_TRUE(report) << report.error().message();
      if (round == 0) continue;
      const std::int64_t hit = report->device_hit_tokens + report->host_hit_tokens;
      EXPECT_EQ(hit, expected_hits(spec, report->prompt_tokens).host_tokens) << "round " << round << " prompt " << i;
      EXPECT_GE(hit, least_findable_tokens(spec, report->prompt_tokens));
      host_tokens += report->host_hit_tokens;
    }
  }
  EXPECT_GT(host_tokens, 0);
  EXPECT_EQ((*engine)->stats().bytes_wrong, 0);
  EXPECT_TRUE((*engine)->check_conservation().ok());
}

TEST(StoredImpliesFindable, OnEveryPresetInEagerAndInLazyMode) {
  for (const Preset& preset : model_presets()) {
    const Model model = *load_model(preset.name);
    for (const StoreMode mode : {StoreMode::kEager, StoreMode::kLazy}) {
      SCOPED_TRACE(std::string(preset.name) + (mode == StoreMode::kEager ? ", eager" : ", lazy"));
      expect_found_again(model.with_parallel(model.default_dcp, 1), mode);
    }
  }
}

TEST(StoredImpliesFindable, BesideADraft) {
  KvCacheGroup attention;
  attention.block_tokens = 64;
  KvCacheGroup draft = attention;
  draft.eagle = true;
  KvCacheGroup state;
  state.kind = GroupKind::kMamba;
  state.block_tokens = 64;
  GeometrySpec coarse;
  coarse.groups = {attention, draft};
  GeometrySpec fine;
  fine.groups = {draft, state};
  fine.hash_block_tokens = 16;
  for (const StoreMode mode : {StoreMode::kEager, StoreMode::kLazy}) {
    SCOPED_TRACE(mode == StoreMode::kEager ? "eager" : "lazy");
    expect_found_again(coarse, mode);
    expect_found_again(fine, mode);
  }
}

}  // namespace
}  // namespace hostkv::bench
