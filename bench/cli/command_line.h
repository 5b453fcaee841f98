#ifndef HOSTKV_BENCH_CLI_COMMAND_LINE_H_
#define HOSTKV_BENCH_CLI_COMMAND_LINE_H_

// From arguments to a command and the texts of its options. What the texts mean is the command's own business
// (values.h). Thread-safety: one thread. Failure: kInvalidArgument naming the argument and the nearest known one.

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hostkv/status.h"

namespace hostkv::bench {

// A row of a command's options. Without a value name it is a flag.
struct OptionRow {
  std::string_view name;  // "--dcp"
  std::string_view value_name;
  std::string_view help;
};

struct CommandInfo {
  std::string_view name;  // "replay", or "scenario cold-hot-evict-replay"
  std::string_view summary;
  std::span<const OptionRow> options;  // beside --json, --quiet, --seed, which every command has
  std::string_view file_argument;      // name of the list of files; empty: takes none
};

struct CommandLine {
  std::string shown;    // help or version text: show it and end
  std::string command;  // CommandInfo::name
  bool json = false;
  bool quiet = false;
  std::map<std::string, std::string, std::less<>> values;  // option -> text, only those given
  std::vector<std::string> files;

  [[nodiscard]] bool has(std::string_view option) const { return values.find(option) != values.end(); }
  [[nodiscard]] std::string value_or(std::string_view option, std::string_view fallback) const;
};

Result<CommandLine> parse_command_line(const std::vector<std::string>& args, std::span<const CommandInfo> commands);

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_CLI_COMMAND_LINE_H_
