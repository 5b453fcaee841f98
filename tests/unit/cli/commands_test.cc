#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/cli/cli_run.h"

namespace hostkv::bench {
namespace {

using nlohmann::json;

// The one document on standard output, with what every document holds.
json document(const CliRun& run, const std::string& command) {
  const json parsed = json::parse(run.out, nullptr, false);
  EXPECT_TRUE(parsed.is_object()) << run.out;
  if (!parsed.is_object()) return json::object();
  EXPECT_EQ(parsed["schema_version"], 1);
  EXPECT_EQ(parsed["command"], command);
  EXPECT_TRUE(parsed["hostkv_version"].is_string());
  EXPECT_TRUE(parsed["config"].is_object());
  EXPECT_TRUE(parsed["results"].is_array());
  return parsed;
}

void expect_keys(const json& result, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) EXPECT_TRUE(result.contains(key)) << key;
}

const std::string kScenario = "scenario cold-hot-evict-replay";

TEST(ScenarioCommand, WritesOneDocumentWithACellForEachProduct) {
  const CliRun run =
      run_tool(kScenario + " --model kimi-like,llama-like --dcp 1,2 --interleave 1,8 --prompt-tokens 7000 --json");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  const json parsed = document(run, kScenario);
  ASSERT_EQ(parsed["results"].size(), 8U);
  for (const json& result : parsed["results"]) {
    expect_keys(result, {"model", "dcp", "interleave_tokens", "prompt_tokens", "hot_device_hit_tokens",
                         "replay_device_hit_tokens", "replay_host_hit_tokens", "bytes_checked", "bytes_wrong", "ok",
                         "expected_hit_tokens", "wall_seconds", "mode", "boundaries"});
    EXPECT_EQ(result["ok"], true) << result;
  }
  EXPECT_EQ(parsed["config"]["prompt_tokens"], json::array({7000}));
  EXPECT_EQ(parsed["config"]["seed"], 1);
}

TEST(ScenarioCommand, NamesModeAndBoundariesOfEachCell) {
  const std::string arguments =
      kScenario + " --model kimi-like --interleave 8 --prompt-tokens 7000 --mode eager,lazy --boundaries fine,coarse";
  const CliRun run = run_tool(arguments + " --json");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json parsed = document(run, kScenario);
  EXPECT_EQ(parsed["config"]["mode"], json::array({"eager", "lazy"}));
  EXPECT_EQ(parsed["config"]["boundaries"], json::array({"fine", "coarse"}));
  ASSERT_EQ(parsed["results"].size(), 4U);
  for (const json& result : parsed["results"]) {
    const std::int64_t expected = result["boundaries"] == "fine" ? 6912 : 6144;
    EXPECT_EQ(result["hot_device_hit_tokens"], expected) << result;
    EXPECT_EQ(result["replay_host_hit_tokens"], expected) << result;
    EXPECT_EQ(result["ok"], true) << result;
  }
  EXPECT_EQ(parsed["results"][0]["mode"], "eager");
  EXPECT_EQ(parsed["results"][3]["mode"], "lazy");
  EXPECT_EQ(parsed["results"][3]["boundaries"], "coarse");
  const std::string table = run_tool(arguments).out;
  EXPECT_NE(table.find("mode"), std::string::npos) << table;
  EXPECT_NE(table.find("boundaries"), std::string::npos) << table;
}

TEST(ScenarioCommand, RefusesAFaultThatLazyStoresCannotShow) {
  const CliRun run = run_tool(kScenario + " --model llama-like --mode lazy --plant store-before-compute");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("lazy stores copy what earlier steps have computed"), std::string::npos) << run.err;
}

TEST(ScenarioCommand, ExitsOneAndTellsWhatWasCaughtWhenAFaultIsPlanted) {
  const std::string arguments = kScenario + " --model llama-like --prompt-tokens 5000 --plant corrupt-byte";
  const CliRun people = run_tool(arguments);
  EXPECT_EQ(people.exit_code, 1);
  EXPECT_NE(people.out.find("planted corrupt-byte was caught: request "), std::string::npos) << people.out;
  const CliRun programs = run_tool(arguments + " --json");
  EXPECT_EQ(programs.exit_code, 1);
  const json result = document(programs, kScenario)["results"][0];
  EXPECT_GT(result["bytes_wrong"], 0);
  EXPECT_EQ(result["ok"], false);
  EXPECT_EQ(result["plant_caught"], true);
}

// A model file of these groups, gone at the end.
class ModelFile {
 public:
  explicit ModelFile(const std::string& groups) : path_(testing::TempDir() + "hostkv_commands_test.json") {
    std::ofstream(path_) << R"({"schema_version":1,"name":"own","groups":[)" << groups << "]}";
  }
  ~ModelFile() { std::filesystem::remove(path_); }
  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(ScenarioCommand, HasAColumnForThePlants) {
  const CliRun run =
      run_tool(kScenario + " --model llama-like --prompt-tokens 500 --plant none,corrupt-byte,swap-blocks");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.out.find("prompt         plant  hot: device"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("planted swap-blocks was caught: "), std::string::npos) << run.out;
  EXPECT_EQ(run_tool(kScenario + " --model llama-like --prompt-tokens 500").out.find("plant"), std::string::npos);
}

TEST(ScenarioCommand, RefusesAPlantThatCannotAct) {
  const CliRun run = run_tool(kScenario + " --model llama-like --prompt-tokens 16 --plant corrupt-byte");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.out, "");
  EXPECT_NE(run.err.find("nothing is loaded at 16 prompt tokens, so the fault could not act; use a prompt above 16 "
                         "tokens"),
            std::string::npos)
      << run.err;
  const CliRun above = run_tool(kScenario + " --model llama-like --prompt-tokens 17 --plant corrupt-byte --json");
  EXPECT_EQ(document(above, kScenario)["results"][0]["plant_caught"], true);
}

TEST(ScenarioCommand, AgreesWithADraftThatDropsABlockAndWithAStateThatIsNeverKept) {
  const std::string full = R"({"kind":"full","block_tokens":16})";
  {
    const ModelFile draft(full + R"(,{"kind":"full","block_tokens":16,"eagle":true})");
    const CliRun run = run_tool(kScenario + " --prompt-tokens 6095 --json --model " + draft.path());
    EXPECT_EQ(run.exit_code, 0) << run.err;
    const json result = document(run, kScenario)["results"][0];
    EXPECT_EQ(result["expected_hit_tokens"], 6064);
    EXPECT_EQ(result["replay_host_hit_tokens"], 6064);
    EXPECT_EQ(result["ok"], true);
  }
  const ModelFile state(full + R"(,{"kind":"mamba","block_tokens":16,"state_mode":"none"})");
  const CliRun run = run_tool(kScenario + " --prompt-tokens 6095 --json --model " + state.path());
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json result = document(run, kScenario)["results"][0];
  EXPECT_EQ(result["expected_hit_tokens"], 0);
  EXPECT_EQ(result["expected_host_hit_tokens"], 0);
  EXPECT_EQ(result["ok"], true);
}

TEST(Commands, SayThatNoGroupOfAModelCanBeOffloaded) {
  for (const char* group :
       {R"({"kind":"ring","block_tokens":16})", R"({"kind":"mamba","block_tokens":16,"state_mode":"none"})",
        R"({"kind":"full","block_tokens":16,"transferable":false})"}) {
    const ModelFile model(group);
    for (const std::string& command : {kScenario, std::string("replay --requests 5")}) {
      const CliRun run = run_tool(command + " --model " + model.path());
      EXPECT_EQ(run.exit_code, 2) << group;
      EXPECT_NE(run.err.find("no group of this model can be offloaded"), std::string::npos) << run.err;
    }
  }
}

TEST(ReplayCommand, CallsTheDefaultModelOneGroupAndSaysWhatItIs) {
  const CliRun people = run_tool("replay --requests 40 --device-blocks 200 --host-blocks 0");
  EXPECT_NE(people.out.find("model one-group: one group of full attention, its block is the workload's\n"),
            std::string::npos)
      << people.out;
  EXPECT_NE(people.out.find("\none-group    1"), std::string::npos) << people.out;
  EXPECT_EQ(people.out.find("block tokens"), std::string::npos) << people.out;
  const json parsed = document(run_tool("replay --requests 5 --device-blocks 200 --host-blocks 0 --json"), "replay");
  EXPECT_EQ(parsed["results"][0]["model"], "one-group");
  EXPECT_EQ(parsed["results"][0]["block_tokens"], json::array({512}));
  EXPECT_EQ(parsed["config"]["model"], json::array({"one-group"}));
}

TEST(ReplayCommand, ShowsTheBlockTokensWhereModelsDiffer) {
  const CliRun run = run_tool(
      "replay --requests 2 --device-blocks 6000 --host-blocks 0 --check-bytes off --model llama-like,kimi-like");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("block tokens"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("384/3,072"), std::string::npos) << run.out;
}

TEST(ReplayCommand, WritesTheKeysOfEveryCell) {
  const CliRun run =
      run_tool("replay --workload chat --requests 40 --device-blocks 200 --host-blocks 0,400 --jobs 2 --json");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json parsed = document(run, "replay");
  ASSERT_EQ(parsed["results"].size(), 2U);
  for (const json& result : parsed["results"]) {
    expect_keys(result, {"requests", "blocks", "device_hit_rate", "host_hit_rate", "theoretical_hit_rate",
                         "stored_blocks", "loaded_blocks", "prompt_tokens", "mode", "policy", "tier_hit_rates",
                         "bytes_checked", "bytes_wrong", "ledger", "wall_seconds"});
    std::int64_t sum = 0;
    for (const auto& [reason, tokens] : result["ledger"].items()) sum += tokens.get<std::int64_t>();
    EXPECT_EQ(sum, result["prompt_tokens"]);
    EXPECT_EQ(result["tier_hit_rates"]["host"], result["host_hit_rate"]);
  }
  EXPECT_EQ(parsed["results"][0]["host_blocks"], 0);
  EXPECT_EQ(parsed["results"][0]["stored_blocks"], 0);
  EXPECT_EQ(parsed["config"]["workload"], "chat");
}

TEST(ReplayCommand, IsTheSameForOneSeedAndForOneJobOrTwo) {
  const auto results = [](const std::string& jobs) {
    const CliRun run = run_tool(
        "replay --workload chat --requests 60 --device-blocks 60,100 --host-blocks 0,120 --json --seed 5 --jobs " +
        jobs);
    json list = document(run, "replay")["results"];
    for (json& result : list) result.erase("wall_seconds");
    return list;
  };
  const json one = results("1");
  EXPECT_EQ(one, results("2"));
  EXPECT_EQ(one, results("1"));
  EXPECT_GT(one.back()["host_hit_rate"], 0.0);
}

TEST(ReplayCommand, SizesTiersByThePagesOfTheModel) {
  const CliRun run = run_tool(
      "replay --requests 5 --workload chat --model llama-like --device-bytes 8GiB --host-bytes 2GiB --check-bytes off "
      "--json");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json parsed = document(run, "replay");
  EXPECT_EQ(parsed["results"][0]["device_blocks"], 4096);
  EXPECT_EQ(parsed["results"][0]["host_blocks"], 1024);
}

TEST(ReplayCommand, NamesFileAndLineOfABrokenTrace) {
  const std::string path = testing::TempDir() + "hostkv_broken_trace.jsonl";
  std::ofstream(path) << R"({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [0]})"
                      << "\n{\n";
  const CliRun run = run_tool("replay --trace " + path);
  std::filesystem::remove(path);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.out, "");
  EXPECT_NE(run.err.find(path + ":2: broken JSON"), std::string::npos) << run.err;
}

TEST(CheckCommand, NamesFileAndLineOfABrokenVector) {
  const std::string path = testing::TempDir() + "hostkv_broken_vectors.jsonl";
  std::ofstream(path) << "{}\n";
  const CliRun run = run_tool("check " + path);
  std::filesystem::remove(path);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.err, "hostkv: " + path + ":1: key \"kind\" is missing\n");
}

TEST(CheckCommand, AgreesAndDiffers) {
  const std::string head = R"({"id":"one","kind":"resolve","geometry":{"groups":[{"kind":"full","block_tokens":16,)"
                           R"("sharded":true}],"dcp":2,"pcp":1,"interleave_tokens":1},"input":)"
                           R"({"requested_hash_block_tokens":null,"prefix_caching":true,"connector":true},"expect":)"
                           R"({"span_tokens":[32],"scheduler_block_tokens":)";
  const std::string tail = R"(,"hash_block_tokens":32,"hit_alignment_tokens":32,"fine":false},"source":"by hand"})";
  const std::string path = testing::TempDir() + "hostkv_vectors.jsonl";
  std::ofstream(path) << head << 32 << tail << "\n" << head << 16 << tail << "\n";
  const CliRun both = run_tool("check " + path + " --json");
  const CliRun first = run_tool("check " + path + " --first 1");
  std::filesystem::remove(path);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(both.exit_code, 1) << both.err;
  const json result = document(both, "check")["results"][0];
  EXPECT_EQ(result["cases"], 2);
  EXPECT_EQ(result["agreed"], 1);
  ASSERT_EQ(result["differed"].size(), 1U);
  EXPECT_EQ(result["differed"][0]["id"], "one");
  EXPECT_EQ(result["differed"][0]["got"]["scheduler_block_tokens"], 32);
}

}  // namespace
}  // namespace hostkv::bench
