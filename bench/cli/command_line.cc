#include "bench/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include "bench/models/name_hint.h"
#include "hostkv/version.h"

namespace hostkv::bench {
namespace {

constexpr auto kCommonOptions = std::to_array<OptionRow>({
    {"--json", "", "One JSON document on standard output instead of a table"},
    {"--quiet", "", "No progress on standard error"},
    {"--seed", "N", "Seed of everything random (default: 1)"},
});

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words;
  std::size_t begin = 0;
  while (begin <= name.size()) {
    const std::size_t end = std::min(name.find(' ', begin), name.size());
    words.emplace_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

constexpr std::array<std::string_view, 2> kToolOptions = {"--help", "--version"};

// Words that people try where the tool has an option; empty: none of them.
std::string_view option_for(std::string_view word) {
  if (word == "help") return "--help";
  return word == "version" || word == "-v" || word == "-V" ? "--version" : "";
}

// CLI11 finds the pieces; names, ranges and messages are ours.
class Parser {
 public:
  explicit Parser(std::span<const CommandInfo> commands) : commands_(commands) {
    app_.set_version_flag("--version", std::string("hostkv ") + kVersion, "Print the version");
    prepare(app_);
    for (const CommandInfo& command : commands) add_command(command);
  }

  Result<CommandLine> parse(std::vector<std::string> args) {
    CommandLine line;
    if (Status status = check_values(args); !status.ok()) return error(std::move(status));
    std::ranges::reverse(args);  // CLI11 takes them from the back
    try {
      app_.parse(std::move(args));
    } catch (const CLI::CallForVersion& version) {
      line.shown = std::string(version.what()) + "\n";
      return line;
    } catch (const CLI::CallForHelp&) {
      line.shown = app_.help();
      return line;
    } catch (const CLI::ParseError&) {
      return error(StatusCode::kInvalidArgument, "the arguments cannot be read" + hint_for_help());
    }
    return collect(std::move(line));
  }

 private:
  struct Command {
    const CommandInfo* info = nullptr;
    CLI::App* app = nullptr;
    std::vector<OptionRow> options;
    std::map<std::string, std::string, std::less<>> values;
    std::vector<std::string> files;
  };

  static void prepare(CLI::App& app) {
    app.set_help_flag("--help,-h", "Print this help");
    app.allow_extras();
    app.get_formatter()->column_width(36);
  }

  CLI::App* app_of(const CommandInfo& info) {
    CLI::App* app = &app_;
    for (const std::string& word : words_of(info.name)) {
      const auto named = [&word](const CLI::App* sub) { return sub->get_name() == word; };
      const std::vector<CLI::App*> known = app->get_subcommands(named);
      CLI::App* next = known.empty() ? nullptr : known.front();
      if (next == nullptr) {
        next = app->add_subcommand(word, "Runs that prove a property, by name");
        prepare(*next);
      }
      app = next;
    }
    app->description(std::string(info.summary));
    return app;
  }

  void add_command(const CommandInfo& info) {
    auto command = std::make_unique<Command>();
    command->info = &info;
    command->app = app_of(info);
    command->options.assign(info.options.begin(), info.options.end());
    command->options.insert(command->options.end(), kCommonOptions.begin(), kCommonOptions.end());
    for (const OptionRow& row : command->options) {
      const std::string name(row.name);
      const std::string help(row.help);
      if (row.value_name.empty()) {
        command->app->add_flag(name, help);
      } else {
        command->app->add_option(name, command->values[name], help)->type_name(std::string(row.value_name));
      }
    }
    if (!info.file_argument.empty()) {
      command->app->add_option(std::string(info.file_argument), command->files, "Files to check");
    }
    parsed_.push_back(std::move(command));
  }

  std::string hint_for_help() {
    std::string text = "; see hostkv";
    for (const CLI::App* app = &app_; !app->get_subcommands().empty();) {
      app = app->get_subcommands().front();
      text += " " + app->get_name();
    }
    return text + " --help";
  }

  [[nodiscard]] const OptionRow* row_of(std::string_view name) const {
    for (const auto& command : parsed_) {
      const auto row = std::ranges::find(command->options, name, &OptionRow::name);
      if (row != command->options.end()) return &*row;
    }
    return nullptr;
  }

  // What CLI11 would refuse in words of its own: options given twice, options without a value, flags with one.
  [[nodiscard]] Status check_values(const std::vector<std::string>& args) const {
    std::set<std::string> seen;
    for (std::size_t i = 0; i < args.size() && args[i] != "--"; ++i) {
      const std::size_t equals = args[i].find('=');
      const std::string name = args[i].substr(0, equals);
      const OptionRow* row = row_of(name);
      if (row == nullptr) continue;
      if (row->value_name.empty()) {
        if (equals == std::string::npos) continue;
        return Status(StatusCode::kInvalidArgument, name + " takes no value; allowed: " + name);
      }
      if (!seen.insert(name).second) {
        return Status(StatusCode::kInvalidArgument, name + " is given twice; once is allowed" + list_hint(*row));
      }
      const bool has_next = i + 1 < args.size() && !args[i + 1].starts_with("--");
      if (equals == std::string::npos && !has_next) {
        return Status(StatusCode::kInvalidArgument,
                      name + " has no value; needed: " + name + " " + std::string(row->value_name));
      }
      if (equals == std::string::npos) ++i;  // the value
    }
    return {};
  }
  static std::string list_hint(const OptionRow& row) {
    return row.value_name == "LIST" ? ", with a list of values: " + std::string(row.name) + " A,B" : "";
  }

  // The deepest command named and whatever CLI11 could not place.
  Result<CommandLine> collect(CommandLine line) {
    CLI::App* deepest = &app_;
    while (!deepest->get_subcommands().empty()) deepest = deepest->get_subcommands().front();
    const auto found = std::ranges::find_if(parsed_, [&](const auto& c) { return c->app == deepest; });
    const std::vector<std::string> extras = app_.remaining(/*recurse=*/true);
    const std::vector<std::string> early = app_.remaining();
    if (!early.empty() && (found != parsed_.end() || early.front().starts_with('-') || early.front() == "help")) {
      return error(before_command(early.front()));
    }
    if (found == parsed_.end()) return error(no_command(*deepest, extras));
    const Command& command = **found;
    if (!extras.empty()) return error(not_known(command, extras));
    line.command = std::string(command.info->name);
    line.json = deepest->count("--json") > 0;
    line.quiet = deepest->count("--quiet") > 0;
    for (const auto& [name, text] : command.values) {
      if (deepest->count(name) > 0) line.values[name] = text;
    }
    line.files = command.files;
    return line;
  }

  static Status before_command(const std::string& word) {
    const std::string_view meant = option_for(word);
    const std::string guess =
        meant.empty() ? did_you_mean(word, kToolOptions) : "did you mean " + std::string(meant) + "?";
    if (word.starts_with('-') && guess.empty()) return stands_before("command", word);
    const std::string what = word.starts_with('-') ? "unknown option " + word : "unknown command \"" + word + "\"";
    return Status(StatusCode::kInvalidArgument, what + "; " + (guess.empty() ? "see hostkv --help" : guess));
  }

  static Status stands_before(const std::string& what, const std::string& option) {
    return Status(StatusCode::kInvalidArgument, "option " + option + " stands before the " + what +
                                                    "; allowed: hostkv COMMAND " + (what == "command" ? "" : "NAME ") +
                                                    "[options]");
  }

  Status no_command(const CLI::App& app, const std::vector<std::string>& extras) {
    std::vector<std::string> names;
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(sub->get_name());
    const std::vector<std::string_view> views(names.begin(), names.end());
    std::string allowed;
    for (const std::string& name : names) allowed += (allowed.empty() ? "" : ", ") + name;
    const std::string what = &app == &app_ ? "command" : app.get_name();
    if (extras.empty()) return Status(StatusCode::kInvalidArgument, "no " + what + " given; allowed: " + allowed);
    if (extras.front().starts_with('-')) return stands_before(what, extras.front());
    const std::string_view option = &app == &app_ ? option_for(extras.front()) : "";
    const std::string guess =
        option.empty() ? did_you_mean(extras.front(), views) : "did you mean " + std::string(option) + "?";
    return Status(StatusCode::kInvalidArgument, "unknown " + what + " \"" + extras.front() + "\"; " +
                                                    (guess.empty() ? "" : guess + " ") + "allowed: " + allowed);
  }

  Status not_known(const Command& command, const std::vector<std::string>& extras) {
    const auto option = std::ranges::find_if(extras, [](const std::string& e) { return e.starts_with('-'); });
    if (option == extras.end()) {
      return Status(StatusCode::kInvalidArgument,
                    "argument \"" + extras.front() + "\" is not expected" + hint_for_help());
    }
    const std::string name = option->substr(0, option->find('='));
    std::vector<std::string_view> names = {"--help"};
    for (const OptionRow& row : command.options) names.push_back(row.name);
    const std::string guess = did_you_mean(name, names);
    return Status(StatusCode::kInvalidArgument,
                  "unknown option " + name + (guess.empty() ? hint_for_help() : "; " + guess));
  }

  std::span<const CommandInfo> commands_;
  CLI::App app_{"hostkv keeps the KV cache of an LLM engine in host memory; this tool proves and measures it.",
                "hostkv"};
  std::vector<std::unique_ptr<Command>> parsed_;
};

}  // namespace

std::string CommandLine::value_or(std::string_view option, std::string_view fallback) const {
  const auto found = values.find(option);
  return found == values.end() ? std::string(fallback) : found->second;
}

Result<CommandLine> parse_command_line(const std::vector<std::string>& args, std::span<const CommandInfo> commands) {
  return Parser(commands).parse(args);
}

}  // namespace hostkv::bench
