#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "bench/cli/cli.h"

namespace hostkv::bench {
namespace {

// The device on which every write ends as on a full disk.
int run_on_full_disk(const std::vector<std::string>& args, std::string& message) {
  std::ofstream full("/dev/full");
  EXPECT_TRUE(full.is_open());
  std::ostringstream err;
  const int code = run_cli(args, {full, err, false});
  message = err.str();
  return code;
}

TEST(Output, IsBadInputWhenItCannotBeWritten) {
  const std::vector<std::string> replay = {"replay", "--requests",    "10", "--device-blocks",
                                           "200",    "--host-blocks", "0"};
  std::vector<std::string> replay_json = replay;
  replay_json.emplace_back("--json");
  for (const std::vector<std::string>& args : {replay, replay_json, {"--version"}, {"replay", "--help"}}) {
    std::string message;
    EXPECT_EQ(run_on_full_disk(args, message), 2);
    EXPECT_EQ(message, "hostkv: standard output: No space left on device\n");
  }
}

TEST(Output, SaysWhatIsWrongWithTheInputFirst) {
  std::string message;
  EXPECT_EQ(run_on_full_disk({"replay", "--dcp", "x"}, message), 2);
  EXPECT_EQ(message.find("hostkv: --dcp"), 0U) << message;
}

}  // namespace
}  // namespace hostkv::bench
