#include "bench/replay/scenario.h"

#include <gtest/gtest.h>

#include "bench/models/presets.h"

namespace hostkv::bench {
namespace {

ScenarioCell cell_of(const Model& model, std::int64_t interleave, std::int64_t prompt_tokens) {
  ScenarioCell cell;
  cell.model = model.name;
  cell.geometry = model.with_parallel(model.default_dcp, interleave);
  cell.prompt_tokens = prompt_tokens;
  return cell;
}

ScenarioResult run(const ScenarioCell& cell) {
  const Result<ScenarioResult> result = run_scenario(cell, [](const char*) {});
  EXPECT_TRUE(result) << cell.model << ": " << result.error().message();
  return result ? *result : ScenarioResult{};
}

TEST(Scenario, HitsTheLargestBoundaryOnDeviceAndHostOnEveryPreset) {
  for (const Preset& preset : model_presets()) {
    SCOPED_TRACE(preset.name);
    const ScenarioResult result = run(cell_of(*load_model(preset.name), 1, 9000));
    EXPECT_TRUE(result.ok);
    EXPECT_EQ(result.hot_device_hit_tokens, result.expected_hit_tokens);
    EXPECT_EQ(result.replay_host_hit_tokens, result.expected_hit_tokens);
    EXPECT_EQ(result.replay_device_hit_tokens, 0);
    EXPECT_EQ(result.cold_hit_tokens, 0);
    EXPECT_GT(result.bytes_checked, 0);
    EXPECT_EQ(result.bytes_wrong, 0);
  }
}

TEST(Scenario, HitsTheFixedBoundaryOfThePaperModelUnderEveryInterleave) {
  const Model model = *load_model("kimi-like");
  for (const std::int64_t interleave : model.default_interleaves(8)) {
    const ScenarioResult result = run(cell_of(model, interleave, 60950));
    EXPECT_TRUE(result.ok) << interleave;
    EXPECT_EQ(result.hot_device_hit_tokens, 58368);
    EXPECT_EQ(result.replay_host_hit_tokens, 58368);
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
