#ifndef HOSTKV_BENCH_CLI_CLI_H_
#define HOSTKV_BENCH_CLI_CLI_H_

// The command line tool as a function, so that tests can call it.

#include <iosfwd>
#include <string>
#include <vector>

namespace hostkv::bench {

enum class ExitCode : int {
  kDone = 0,
  kFoundWrong = 1,  // a wrong byte, a failed check, a fault that was planted
  kBadInput = 2,    // one line on the error stream says what is allowed
};

struct Streams {
  std::ostream& out;
  std::ostream& err;
  bool err_is_terminal = false;  // progress is shown from the start
};

// `args` without the program's name. Answers the exit code. Never throws, never exits.
int run_cli(const std::vector<std::string>& args, Streams streams);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_CLI_CLI_H_
