#include "bench/cli/cli.h"

#include <array>
#include <cerrno>
#include <ostream>
#include <sstream>
#include <system_error>

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

Result<ExitCode> run(const std::vector<std::string>& args, Streams streams) {
  const std::array<CommandInfo, 3> commands = {kScenarioCommand, kReplayCommand, kCheckCommand};
  const Result<CommandLine> line = parse_command_line(args, commands);
  if (!line) return error(line.error());
  if (line->shown.empty()) return dispatch(*line, streams);
  streams.out << line->shown;
  return ExitCode::kDone;
}

// A full disk or a closed pipe shows when the text leaves, so all of it leaves here.
Status deliver(const std::string& text, std::ostream& out) {
  errno = 0;
  out << text << std::flush;
  const int code = errno;
  if (out) return {};
  return Status(
      StatusCode::kInvalidArgument,
      std::string("standard output: ") + (code == 0 ? "cannot be written" : std::generic_category().message(code)));
}

}  // namespace

int run_cli(const std::vector<std::string>& args, Streams streams) {
  std::ostringstream text;
  Result<ExitCode> code = run(args, {text, streams.err, streams.err_is_terminal});
  if (code) {
    if (Status status = deliver(text.str(), streams.out); !status.ok()) code = error(std::move(status));
  }
  if (code) return static_cast<int>(*code);
  streams.err << "hostkv: " << code.error().message() << '\n';
  return static_cast<int>(exit_code_of(code.error().code()));
}

}  // namespace hostkv::bench
