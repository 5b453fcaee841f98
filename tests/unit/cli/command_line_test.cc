#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/cli/cli_run.h"

namespace hostkv::bench {
namespace {

// Bad input: exit 2, one line on the error stream, nothing on the other.
std::string refusal(const std::string& arguments) {
  const CliRun run = run_tool(arguments);
  EXPECT_EQ(run.exit_code, 2) << arguments;
  EXPECT_EQ(run.out, "") << arguments;
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << arguments << ": " << run.err;
  EXPECT_EQ(run.err.find("hostkv: "), 0U) << run.err;
  return run.err.empty() ? "" : run.err.substr(8, run.err.size() - 9);
}

void expect_refusal(const std::string& arguments, const std::string& part) {
  const std::string message = refusal(arguments);
  EXPECT_NE(message.find(part), std::string::npos) << arguments << ": " << message;
}

const std::string kScenario = "scenario cold-hot-evict-replay ";

TEST(CommandLine, ShowsHelpOfEveryCommand) {
  for (const std::string command : {"", "scenario ", "scenario cold-hot-evict-replay ", "replay ", "check "}) {
    const CliRun run = run_tool(command + "--help");
    EXPECT_EQ(run.exit_code, 0) << command;
    EXPECT_EQ(run.err, "") << command;
    EXPECT_NE(run.out.find("Usage: hostkv"), std::string::npos) << run.out;
  }
  for (const std::string option : {"--json", "--quiet", "--seed", "--trace", "--device-blocks", "--jobs"}) {
    EXPECT_NE(run_tool("replay --help").out.find(option), std::string::npos) << option;
  }
}

TEST(CommandLine, ShowsTheVersion) {
  const CliRun run = run_tool("--version");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out.find("hostkv 0."), 0U) << run.out;
}

TEST(CommandLine, PointsToTheNearestCommand) {
  expect_refusal("", "no command given; allowed: scenario, replay, check");
  expect_refusal("replya", "unknown command \"replya\"; did you mean replay? allowed: scenario, replay, check");
  expect_refusal("scenario", "no scenario given; allowed: cold-hot-evict-replay");
  expect_refusal("scenario cold-hot-evict-rplay", "did you mean cold-hot-evict-replay?");
  expect_refusal("--json replay", "option --json stands before the command");
}

TEST(CommandLine, PointsToTheNearestOption) {
  expect_refusal("replay --devce-blocks 5", "unknown option --devce-blocks; did you mean --device-blocks?");
  expect_refusal("replay --devce-blocks=5", "unknown option --devce-blocks; did you mean --device-blocks?");
  expect_refusal(kScenario + "--modell kimi-like", "unknown option --modell; did you mean --model?");
  expect_refusal("check --frist 3 file", "unknown option --frist; did you mean --first?");
  expect_refusal("replay stray", "argument \"stray\" is not expected");
}

TEST(CommandLine, RefusesOptionsOfFeaturesThatAreNotThere) {
  for (const std::string option : {"--boundaries fine", "--fail-loads 0.1", "--tiers near=1", "--store-budget 0.9",
                                   "--html x.html", "--admission on"}) {
    expect_refusal("replay " + option, "unknown option " + option.substr(0, option.find(' ')));
  }
  expect_refusal("replay --mode lazy", "--mode \"lazy\"; allowed: eager");
  expect_refusal("replay --policy arc", "--policy \"arc\"; allowed: lru");
}

TEST(CommandLine, RefusesMissingAndRepeatedValues) {
  expect_refusal("replay --dcp", "--dcp");
  expect_refusal("replay --dcp 1 --dcp 2", "each option once");
  expect_refusal("replay --dcp 1,,2", "--dcp \"1,,2\"; allowed: values separated by single commas");
}

TEST(CommandLine, RefusesValuesOfTheWrongTypeOrOutOfRange) {
  expect_refusal("replay --dcp eight", "--dcp \"eight\"; allowed: an integer, 1 .. 64");
  expect_refusal("replay --dcp 1,-1", "--dcp \"-1\"; allowed: an integer, 1 .. 64");
  expect_refusal("replay --device-blocks 0", "--device-blocks \"0\"; allowed: an integer, 1 .. 16777216");
  expect_refusal("replay --host-blocks 1.5", "--host-blocks \"1.5\"; allowed: an integer, 0 .. 16777216");
  expect_refusal("replay --requests 0", "--requests \"0\"; allowed: an integer, 1 .. ");
  expect_refusal("replay --jobs 99", "--jobs \"99\"; allowed: an integer, 1 .. 64");
  expect_refusal("replay --seed -1", "--seed \"-1\"; allowed: an integer, 0 .. ");
  expect_refusal("replay --check-bytes al", "--check-bytes \"al\"; did you mean all? allowed: all, sampled, off");
  expect_refusal("replay --payload-bytes 5000", "--payload-bytes \"5000\"; allowed: an integer, 1 .. 4096");
  expect_refusal("replay --model llama-like --host-bytes lots", "--host-bytes \"lots\"; allowed: a size above 0");
  expect_refusal(kScenario + "--prompt-tokens 99999999",
                 "--prompt-tokens \"99999999\"; allowed: an integer, 1 .. 1048576");
  expect_refusal(kScenario + "--prompt-tokens 0", "--prompt-tokens \"0\"; allowed: an integer, 1 .. 1048576");
  expect_refusal(kScenario + "--plant corupt-byte", "did you mean corrupt-byte?");
  expect_refusal(kScenario + "--model kimi-lik", "did you mean kimi-like?");
}

TEST(CommandLine, RefusesGeometriesThatCannotBe) {
  expect_refusal(kScenario + "--model kimi-like --interleave 5", "model kimi-like, --dcp 8, --interleave 5: group 0");
}

TEST(CommandLine, RefusesCombinationsThatContradict) {
  expect_refusal("replay --trace a --workload chat", "--trace and --workload are both given");
  expect_refusal("replay --host-bytes 1GiB", "--host-bytes needs --model");
  expect_refusal("replay --model llama-like --host-bytes 1GiB --host-blocks 5", "are both given");
  expect_refusal("replay --model llama-like --host-bytes 1KiB", "allowed: 1 .. ");
  expect_refusal("replay --device-blocks 3", "--device-blocks 3 cannot hold the longest prompt");
  expect_refusal("replay --trace /nowhere/x.jsonl", "trace file /nowhere/x.jsonl does not exist");
  expect_refusal("replay --workload chta", "unknown workload \"chta\"; did you mean chat?");
  expect_refusal("check", "check needs at least one FILE");
  expect_refusal("check /nowhere/x.jsonl", "/nowhere/x.jsonl");
  expect_refusal("check --kind slot x", "--kind \"slot\"; did you mean slots?");
}

}  // namespace
}  // namespace hostkv::bench
