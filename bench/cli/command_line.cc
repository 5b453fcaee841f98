#include "bench/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>

#include "base/nearest_name.h"
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

std::string first_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
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
    std::ranges::reverse(args);  // CLI11 takes them from the back
    try {
      app_.parse(std::move(args));
    } catch (const CLI::CallForVersion& version) {
      line.shown = std::string(version.what()) + "\n";
      return line;
    } catch (const CLI::CallForHelp&) {
      line.shown = app_.help();
      return line;
    } catch (const CLI::ArgumentMismatch& mismatch) {
      return error(StatusCode::kInvalidArgument,
                   first_line(mismatch.what()) + "; allowed: each option once, with one value (a list has commas)");
    } catch (const CLI::ParseError& failure) {
      return error(StatusCode::kInvalidArgument, first_line(failure.what()) + hint_for_help());
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

  // The deepest command named and whatever CLI11 could not place.
  Result<CommandLine> collect(CommandLine line) {
    CLI::App* deepest = &app_;
    while (!deepest->get_subcommands().empty()) deepest = deepest->get_subcommands().front();
    const auto found = std::ranges::find_if(parsed_, [&](const auto& c) { return c->app == deepest; });
    const std::vector<std::string> extras = app_.remaining(/*recurse=*/true);
    if (found == parsed_.end()) return error(no_command(*deepest, extras));
    if (const std::vector<std::string> early = app_.remaining(); !early.empty()) {
      return error(stands_before("command", early.front()));
    }
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

  static Status stands_before(const std::string& what, const std::string& option) {
    return Status(StatusCode::kInvalidArgument,
                  "option " + option + " stands before the " + what + "; allowed: hostkv COMMAND [options]");
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
    const std::string_view nearest = nearest_name(extras.front(), views);
    return Status(StatusCode::kInvalidArgument,
                  "unknown " + what + " \"" + extras.front() + "\"; " +
                      (nearest.empty() ? "" : "did you mean " + std::string(nearest) + "? ") + "allowed: " + allowed);
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
    const std::string_view nearest = nearest_name(name, names);
    return Status(StatusCode::kInvalidArgument,
                  "unknown option " + name +
                      (nearest.empty() ? hint_for_help() : "; did you mean " + std::string(nearest) + "?"));
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
