#include "bench/replay/scenario.h"

#include <gtest/gtest.h>

#include "bench/models/presets.h"
#include "bench/replay/expected_hit.h"

namespace hostkv::bench {
namespace {

ScenarioCell cell_of(const Model& model, std::int64_t interleave, std::int64_t prompt_tokens,
                     Boundaries boundaries = Boundaries::kFine) {
  ScenarioCell cell;
  cell.model = model.name;
  cell.geometry = model.with_parallel(model.default_dcp, interleave, boundaries);
  cell.prompt_tokens = prompt_tokens;
  cell.connector.boundaries = boundaries;
  return cell;
}

// Full attention in blocks of 64 beside states of 64, a hash every 16 tokens.
ScenarioCell small_blocks_cell(std::int64_t prompt_tokens) {
  ScenarioCell cell;
  KvCacheGroup attention;
  attention.block_tokens = 64;
  attention.sharded = true;
  KvCacheGroup state;
  state.kind = GroupKind::kMamba;
  state.block_tokens = 64;
  cell.geometry.groups = {attention, state};
  cell.geometry.hash_block_tokens = 16;
  cell.prompt_tokens = prompt_tokens;
  return cell;
}

ScenarioResult run(const ScenarioCell& cell) {
  const Result<ScenarioResult> result = run_scenario(cell, [](const char*) {});
  EXPECT_TRUE(result) << cell.model << ": " << result.error().message();
  return result ? *result : ScenarioResult{};
}

void expect_right(const ScenarioCell& cell) {
  const ScenarioResult result = run(cell);
  EXPECT_EQ(result.cold_hit_tokens, 0);
  EXPECT_EQ(result.hot_device_hit_tokens, result.expected_hit_tokens);
  EXPECT_EQ(result.replay_host_hit_tokens, result.expected_hit_tokens);
  EXPECT_EQ(result.replay_device_hit_tokens, 0);
  EXPECT_EQ(result.bytes_wrong, 0);
  EXPECT_TRUE(result.ok);
}

// In both store modes.
void expect_right_in_every_mode(ScenarioCell cell) {
  for (const StoreMode mode : {StoreMode::kEager, StoreMode::kLazy}) {
    SCOPED_TRACE(cell.model + (mode == StoreMode::kEager ? " eager, " : " lazy, ") +
                 std::to_string(cell.prompt_tokens) + " tokens");
    cell.connector.store_mode = mode;
    expect_right(cell);
  }
}

TEST(Scenario, HitsTheLargestBoundaryOnDeviceAndHostOnEveryPreset) {
  for (const Preset& preset : model_presets()) {
    for (const Boundaries boundaries : {Boundaries::kFine, Boundaries::kCoarse}) {
      SCOPED_TRACE(boundaries == Boundaries::kFine ? "fine" : "coarse");
      expect_right_in_every_mode(cell_of(*load_model(preset.name), 1, 9000, boundaries));
    }
  }
}

// A token more or less than what a hash, a block and all blocks together end at, and the smallest prompts.
TEST(Scenario, LosesNothingWherePromptsEndOnOrBesideABoundary) {
  for (const Preset& preset : model_presets()) {
    const Model model = *load_model(preset.name);
    const GeometrySpec spec = model.with_parallel(model.default_dcp, 1);
    const std::int64_t block = span_of(spec.groups.front(), spec.parallel);
    for (const std::int64_t unit : {hash_block_of(spec), block, scheduler_block_of(spec)}) {
      for (const std::int64_t tokens : {unit - 1, unit, unit + 1, 2 * unit, 2 * unit + 1, 3 * unit}) {
        if (tokens > 0) expect_right_in_every_mode(cell_of(model, 1, tokens));
      }
    }
  }
}

TEST(Scenario, LosesOneBlockOnlyOfPromptsThatFillTheirLastBlockOfStates) {
  EXPECT_EQ(run(cell_of(*load_model("mamba-like"), 1, 2048)).replay_host_hit_tokens, 1024);
  EXPECT_EQ(run(cell_of(*load_model("mamba-like"), 1, 2049)).replay_host_hit_tokens, 2048);
  for (const std::int64_t tokens : {2112, 3168, 16896}) {
    expect_right_in_every_mode(cell_of(*load_model("qwen3.5-like"), 1, tokens, Boundaries::kCoarse));
  }
}

TEST(Scenario, HitsTheLastHashBlockBeforeTheLastTokenOnTheHostToo) {
  expect_right_in_every_mode(small_blocks_cell(160));
  EXPECT_EQ(run(small_blocks_cell(160)).replay_host_hit_tokens, 144);
  EXPECT_EQ(run(small_blocks_cell(161)).replay_host_hit_tokens, 160);
  EXPECT_EQ(run(small_blocks_cell(150)).replay_host_hit_tokens, 144);
}

// Half of all hash blocks end in the middle of an attention block that two ranks share.
TEST(Scenario, HitsBoundariesInsideABlockThatRanksShare) {
  ScenarioCell cell = small_blocks_cell(300);
  for (KvCacheGroup& group : cell.geometry.groups) group.block_tokens = 32;
  cell.geometry.hash_block_tokens = 32;
  cell.geometry.parallel.tp = 2;
  cell.geometry.parallel.dcp = 2;
  for (const std::int64_t interleave : {1, 8, 32}) {
    cell.geometry.parallel.interleave_tokens = interleave;
    expect_right_in_every_mode(cell);
    EXPECT_EQ(run(cell).replay_host_hit_tokens, 288);
  }
}

TEST(Scenario, HitsTheFixedBoundaryOfThePaperModelUnderEveryInterleave) {
  const Model model = *load_model("kimi-like");
  for (const std::int64_t interleave : model.default_interleaves(8)) {
    for (const Boundaries boundaries : {Boundaries::kFine, Boundaries::kCoarse}) {
      const ScenarioResult result = run(cell_of(model, interleave, 60950, boundaries));
      const std::int64_t expected = boundaries == Boundaries::kFine ? 60672 : 58368;
      EXPECT_TRUE(result.ok) << interleave;
      EXPECT_EQ(result.hot_device_hit_tokens, expected);
      EXPECT_EQ(result.replay_host_hit_tokens, expected);
    }
  }
}

TEST(Scenario, StandsBelowOneBoundary) {
  const ScenarioResult result = run(cell_of(*load_model("llama-like"), 1, 16));
  EXPECT_EQ(result.expected_hit_tokens, 0);
  EXPECT_TRUE(result.ok);
}

TEST(Scenario, IsNeverFineWithAPlantThatIsNotCaught) {
  ScenarioCell cell = cell_of(*load_model("llama-like"), 1, 16);
  cell.plant = Plant::kCorruptByte;
  const ScenarioResult result = run(cell);
  EXPECT_EQ(result.bytes_wrong, 0);  // nothing is loaded, so the fault does not act
  EXPECT_FALSE(result.ok);
}

TEST(Scenario, ExpectsNoHitOfAModelWhoseStateIsNeverKept) {
  ScenarioCell cell = cell_of(*load_model("llama-like"), 1, 9000);
  KvCacheGroup state;
  state.kind = GroupKind::kMamba;
  state.block_tokens = 16;
  state.mamba_mode = MambaMode::kNone;
  cell.geometry.groups.push_back(state);
  const ScenarioResult result = run(cell);
  EXPECT_EQ(result.expected_hit_tokens, 0);
  EXPECT_EQ(result.expected_host_hit_tokens, 0);
  EXPECT_TRUE(result.ok);
}

TEST(Scenario, ExpectsHitsOnTheDeviceOnlyWhereAGroupNeverLeavesIt) {
  ScenarioCell cell = cell_of(*load_model("llama-like"), 1, 9000);
  cell.geometry.groups.push_back(cell.geometry.groups.front());
  cell.geometry.groups.back().transferable = false;
  const ScenarioResult result = run(cell);
  EXPECT_EQ(result.hot_device_hit_tokens, 8992);
  EXPECT_EQ(result.replay_host_hit_tokens, 0);
  EXPECT_TRUE(result.ok);
}

TEST(Scenario, CatchesEveryPlantedFault) {
  for (const char* name : {"kimi-like", "llama-like", "gpt-oss-like"}) {
    for (const Plant plant :
         {Plant::kCorruptByte, Plant::kSwapBlocks, Plant::kStoreBeforeCompute, Plant::kLoadBeforeLanded}) {
      ScenarioCell cell = cell_of(*load_model(name), 1, 9000);
      cell.plant = plant;
      const ScenarioResult result = run(cell);
      EXPECT_GT(result.bytes_wrong, 0) << name << " plant " << static_cast<int>(plant);
      EXPECT_TRUE(result.first_wrong.has_value());
      EXPECT_FALSE(result.ok);
    }
  }
}

}  // namespace
}  // namespace hostkv::bench
