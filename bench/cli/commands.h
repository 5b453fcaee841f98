#ifndef HOSTKV_BENCH_CLI_COMMANDS_H_
#define HOSTKV_BENCH_CLI_COMMANDS_H_

// The commands of the tool: resolve the options, run the cells, report. A Status is bad input or a broken run;
// everything found wrong in the results is ExitCode::kFoundWrong.

#include "bench/cli/cli.h"
#include "bench/cli/command_line.h"
#include "hostkv/status.h"

namespace hostkv::bench {

extern const CommandInfo kScenarioCommand;
extern const CommandInfo kReplayCommand;
extern const CommandInfo kCheckCommand;

Result<ExitCode> scenario_command(const CommandLine& line, Streams streams);
Result<ExitCode> replay_command(const CommandLine& line, Streams streams);
Result<ExitCode> check_command(const CommandLine& line, Streams streams);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_CLI_COMMANDS_H_
