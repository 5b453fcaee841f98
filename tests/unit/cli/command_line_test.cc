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
  expect_refusal("replay --mode adaptive", "--mode \"adaptive\"; allowed: eager, lazy");
  expect_refusal(kScenario + "--boundaries finest", "--boundaries \"finest\"; did you mean fine?");
  expect_refusal("replay --policy arc", "--policy \"arc\"; allowed: lru");
}

TEST(CommandLine, RefusesMissingAndRepeatedValues) {
  expect_refusal("replay --dcp", "--dcp has no value; needed: --dcp LIST");
  expect_refusal("replay --dcp --json", "--dcp has no value; needed: --dcp LIST");
  expect_refusal("replay --trace --foo", "--trace has no value; needed: --trace FILE");
  expect_refusal("replay --json=5", "--json takes no value");
  expect_refusal("replay --dcp 1 --dcp=2", "--dcp is given twice; once is allowed");
  expect_refusal("replay --jobs 1 --jobs 2", "--jobs is given twice; once is allowed");
  expect_refusal("replay --dcp 1,,2", "--dcp \"1,,2\"; allowed: values separated by single commas");
}

TEST(CommandLine, RefusesValuesOfTheWrongTypeOrOutOfRange) {
  expect_refusal("replay --dcp eight", "--dcp \"eight\"; allowed: an integer, 1 .. 64");
  expect_refusal("replay --dcp 1,-1", "--dcp \"-1\"; allowed: an integer, 1 .. 64");
  expect_refusal("replay --device-blocks 0", "--device-blocks \"0\"; allowed: an integer, 1 .. 16777216");
  expect_refusal("replay --host-blocks 1.5", "--host-blocks \"1.5\"; allowed: an integer, 0 .. 16777216");
  expect_refusal("replay --requests 0", "--requests \"0\"; allowed: an integer, 1 .. ");
  expect_refusal("replay --jobs 99", "--jobs \"99\"; allowed: an integer, 1 .. 64");
  expect_refusal("check --seed -1 file", "--seed \"-1\"; allowed: an integer, 0 .. ");
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

TEST(CommandLine, PointsToHelpAndVersion) {
  expect_refusal("-v", "unknown option -v; did you mean --version?");
  expect_refusal("-V", "unknown option -V; did you mean --version?");
  expect_refusal("-v replay", "unknown option -v; did you mean --version?");
  expect_refusal("--versoin", "unknown option --versoin; did you mean --version?");
  expect_refusal("help", "unknown command \"help\"; did you mean --help?");
  expect_refusal("help replay", "unknown command \"help\"; did you mean --help?");
}

TEST(CommandLine, NamesEveryNameThatMayBeMeant) {
  expect_refusal("replay --host 5", "unknown option --host; did you mean --host-blocks or --host-bytes?");
  expect_refusal(kScenario + "--model kimi", "unknown model \"kimi\"; did you mean kimi-like? allowed: ");
  expect_refusal(kScenario + "--plant corrupt", "did you mean corrupt-byte?");
}

TEST(CommandLine, NamesTheOptionAndTheBytesOfATierThatIsTooSmall) {
  const std::string small = refusal("replay --requests 40 --model llama-like --device-bytes 1GiB");
  EXPECT_EQ(small.find("--device-bytes 1073741824 is 512 blocks of 2097152 bytes over all ranks and cannot hold the "
                       "longest prompt ("),
            0U)
      << small;
  EXPECT_NE(small.find(" .. 35184372088832 bytes"), std::string::npos) << small;
  expect_refusal("replay --requests 40 --model llama-like --host-bytes 1KiB",
                 "--host-bytes 1024 is 0 blocks of 2097152 bytes over all ranks and cannot hold what one hit needs on "
                 "model llama-like; allowed: 2097152 .. 35184372088832 bytes");
}

TEST(CommandLine, KnowsTheDeviceBlocksThatWindowsNeed) {
  const std::string refused = refusal("replay --requests 20 --model gemma-like --device-blocks 1100 --host-blocks 0");
  EXPECT_EQ(refused.find("--device-blocks 1100 cannot hold the longest prompt ("), 0U) << refused;
  const std::size_t allowed = refused.find("allowed: ");
  ASSERT_NE(allowed, std::string::npos) << refused;
  const std::string least = refused.substr(allowed + 9, refused.find(" ..") - allowed - 9);
  EXPECT_EQ(
      run_tool("replay --requests 20 --model gemma-like --check-bytes off --host-blocks 0 --device-blocks " + least)
          .exit_code,
      0)
      << least;
}

TEST(CommandLine, NamesTheOptionThatAsksForMoreMemoryThanThereIs) {
  const std::string host = refusal("replay --requests 40 --host-blocks 16777216 --payload-bytes 4096");
  EXPECT_EQ(host.find("--host-blocks 16777216 with --payload-bytes 4096 asks for 32768.0 GiB of memory for the host "
                      "tier of each rank; this process may have "),
            0U)
      << host;
  expect_refusal("replay --requests 40 --device-blocks 16777216 --host-blocks 0 --payload-bytes 4096",
                 "--device-blocks 16777216 with --payload-bytes 4096 asks for 32768.0 GiB of memory for the device");
}

TEST(CommandLine, RefusesGeometriesThatCannotBe) {
  expect_refusal(kScenario + "--model kimi-like --interleave 5", "model kimi-like, --dcp 8, --interleave 5: group 0");
}

TEST(CommandLine, RefusesCombinationsThatContradict) {
  expect_refusal("replay --trace a --workload chat", "--trace and --workload are both given");
  expect_refusal("replay --host-bytes 1GiB", "--host-bytes needs --model");
  expect_refusal("replay --model llama-like --host-bytes 1GiB --host-blocks 5", "are both given");
  expect_refusal("replay --device-blocks 3", "--device-blocks 3 cannot hold the longest prompt");
  expect_refusal("replay --trace /nowhere/x.jsonl", "trace file /nowhere/x.jsonl does not exist");
  expect_refusal("replay --workload chta", "unknown workload \"chta\"; did you mean chat?");
  expect_refusal("check", "check needs at least one FILE");
  expect_refusal("check /nowhere/x.jsonl", "/nowhere/x.jsonl");
  expect_refusal("check --kind slot x", "--kind \"slot\"; did you mean slots?");
}

}  // namespace
}  // namespace hostkv::bench
