#ifndef HOSTKV_TESTS_UNIT_CLI_CLI_RUN_H_
#define HOSTKV_TESTS_UNIT_CLI_CLI_RUN_H_

#include <sstream>
#include <string>
#include <vector>

#include "bench/cli/cli.h"

namespace hostkv::bench {

struct CliRun {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// The tool as a function: arguments split at spaces, streams captured, not a terminal.
inline CliRun run_tool(const std::string& arguments) {
  std::istringstream words(arguments);
  std::vector<std::string> args;
  for (std::string word; words >> word;) args.push_back(word);
  std::ostringstream out;
  std::ostringstream err;
  CliRun run;
  run.exit_code = run_cli(args, {out, err, false});
  run.out = out.str();
  run.err = err.str();
  return run;
}

}  // namespace hostkv::bench

#endif  // HOSTKV_TESTS_UNIT_CLI_CLI_RUN_H_
