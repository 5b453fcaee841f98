#include "bench/cli/cli.h"

#include <array>
#include <ostream>

#include "bench/cli/command_line.h"
#include "bench/cli/commands.h"

namespace hostkv::bench {
namespace {

Result<ExitCode> dispatch(const CommandLine& line, Streams streams) {
  if (line.command == kScenarioCommand.name) return scenario_command(line, streams);
  if (line.command == kReplayCommand.name) return replay_command(line, streams);
  return check_command(line, streams);
}

// A bug or corruption that a run found is not the user's input.
ExitCode exit_code_of(StatusCode code) {
  switch (code) {
    case StatusCode::kInternal:
    case StatusCode::kDataCorruption:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kDeviceError:
      return ExitCode::kFoundWrong;
    default:
      return ExitCode::kBadInput;
  }
}

}  // namespace

int run_cli(const std::vector<std::string>& args, Streams streams) {
  const std::array<CommandInfo, 3> commands = {kScenarioCommand, kReplayCommand, kCheckCommand};
  const Result<CommandLine> line = parse_command_line(args, commands);
  if (line && !line->shown.empty()) {
    streams.out << line->shown;
    return static_cast<int>(ExitCode::kDone);
  }
  const Result<ExitCode> code = line ? dispatch(*line, streams) : Result<ExitCode>(error(line.error()));
  if (code) return static_cast<int>(*code);
  streams.err << "hostkv: " << code.error().message() << '\n';
  return static_cast<int>(exit_code_of(code.error().code()));
}

}  // namespace hostkv::bench
