#include "bench/models/model.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "bench/models/presets.h"

namespace hostkv::bench {
namespace {

std::string problem(const std::string& json) {
  const Result<Model> model = parse_model(json, "m.json");
  return model ? "" : model.error().message();
}

std::string with_group(const std::string& group) {
  return R"({"schema_version": 1, "name": "m", "groups": [)" + group + "]}";
}

TEST(ModelText, IsRefusedWhereItNestsDeep) {
  const Result<Model> model = parse_model(std::string(1'000'000, '['), "deep.json");
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().message(), "deep.json: it nests 1000000 deep; at most 64 is allowed");
}

TEST(ModelPresets, AllParseAndResolveWithTheirOwnParallelSizes) {
  EXPECT_EQ(model_presets().size(), 8U);
  for (const Preset& preset : model_presets()) {
    const Result<Model> model = load_model(preset.name);
    ASSERT_TRUE(model) << model.error().message();
    EXPECT_EQ(model->name, preset.name);
    EXPECT_FALSE(model->notes.empty()) << preset.name;
    EXPECT_GT(model->largest_page_bytes(), 0) << preset.name;
    for (const std::int64_t interleave : model->default_interleaves(model->default_dcp)) {
      const Result<Geometry> geometry = Geometry::resolve(model->with_parallel(model->default_dcp, interleave));
      EXPECT_TRUE(geometry) << preset.name << ": " << geometry.error().message();
    }
  }
}

TEST(ModelPresets, ShardNoWindowChunkOrScratchGroup) {
  for (const Preset& preset : model_presets()) {
    const Model model = *load_model(preset.name);
    for (const KvCacheGroup& group : model.geometry.groups) {
      const bool may = group.kind == GroupKind::kFullAttention || group.kind == GroupKind::kMla;
      EXPECT_TRUE(may || !group.sharded) << preset.name << " " << group.name;
    }
  }
}

TEST(ModelPresets, KimiSpansOneSchedulerBlock) {
  const Model model = *load_model("kimi-like");
  EXPECT_EQ(model.default_dcp, 8);
  EXPECT_EQ(model.default_interleaves(8), (std::vector<std::int64_t>{1, 8, 64, 384}));
  EXPECT_EQ(model.default_interleaves(1), (std::vector<std::int64_t>{1}));
  const Geometry geometry = *Geometry::resolve(model.with_parallel(8, 1));
  EXPECT_EQ(geometry.scheduler_block_tokens(), 3072);
  EXPECT_EQ(geometry.hit_alignment_tokens(), 384);
  const Geometry coarse = *Geometry::resolve(model.with_parallel(8, 1, Boundaries::kCoarse));
  EXPECT_EQ(coarse.hit_alignment_tokens(), 3072);
}

TEST(ModelPresets, EndHitsInsideBlocksWhereStatesAreLongerThanHashes) {
  for (const Preset& preset : model_presets()) {
    const Model model = *load_model(preset.name);
    const Geometry geometry = *Geometry::resolve(model.with_parallel(model.default_dcp, 1));
    const bool has_both = preset.name == "kimi-like" || preset.name == "qwen3.5-like";
    EXPECT_EQ(geometry.fine_hits(), has_both) << preset.name;
  }
}

TEST(ModelFile, IsReadFromAPath) {
  const std::string path = testing::TempDir() + "hostkv_model_test.json";
  std::ofstream(path) << with_group(R"({"kind": "full", "block_tokens": 32, "sharded": true})");
  const Result<Model> model = load_model(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(model->geometry.groups[0].block_tokens, 32);
  EXPECT_EQ(load_model("no/such.json").error().message(), "cannot read the model file no/such.json");
}

TEST(ModelFile, NamesWhatIsWrong) {
  EXPECT_EQ(problem("[]"), "m.json: not a JSON object; a model file is one object with \"groups\"");
  EXPECT_EQ(problem(R"({"schema_version": 2, "name": "m", "groups": []})"),
            "m.json: \"schema_version\" is 2; allowed: 1");
  EXPECT_EQ(problem(R"({"schema_version": 1, "name": "m", "groups": []})"),
            "m.json: \"groups\" must be a list of at least one group");
  EXPECT_EQ(problem(R"({"schema_version": 1, "name": "m", "group": []})"),
            "m.json: unknown key \"group\"; did you mean \"groups\"?");
  EXPECT_EQ(problem(with_group(R"({"kind": "ful", "block_tokens": 1})")),
            "m.json: groups[0]: \"kind\" is \"ful\"; did you mean \"full\"?");
  EXPECT_EQ(problem(with_group(R"({"kind": "full"})")), "m.json: groups[0]: key \"block_tokens\" is missing");
  EXPECT_EQ(problem(with_group(R"({"kind": "sliding_window", "block_tokens": 16})")),
            "m.json: groups[0]: key \"window_tokens\" is missing");
  EXPECT_NE(problem(with_group(R"({"kind": "full", "block_tokens": "16"})")).find("allowed: an integer, 1 .. "),
            std::string::npos);
  EXPECT_NE(problem(with_group(R"({"kind": "full", "block_tokens": 99999999999999999999})")), "");
}

TEST(ModelNames, PointToTheNearestPreset) {
  const std::string message = load_model("kimi-lik").error().message();
  EXPECT_EQ(message.find("unknown model \"kimi-lik\"; did you mean kimi-like? allowed: llama-like, "), 0U) << message;
}

}  // namespace
}  // namespace hostkv::bench
