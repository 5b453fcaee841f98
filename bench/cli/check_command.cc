#include <array>
#include <nlohmann/json.hpp>
#include <ostream>

#include "bench/cli/commands.h"
#include "bench/cli/common_options.h"
#include "bench/cli/document.h"
#include "bench/cli/report.h"
#include "bench/cli/values.h"
#include "bench/conformance/conformance.h"

namespace hostkv::bench {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMaxCases = 1'000'000'000;
constexpr std::size_t kShownDifferences = 20;
constexpr std::array<std::string_view, 5> kKinds = {"resolve", "needs", "slots", "hit", "recover"};
constexpr auto kOptions = std::to_array<OptionRow>({
    {"--kind", "KIND", "Only cases of this kind: resolve, needs, slots, hit, recover (default: all)"},
    {"--first", "N", "At most N cases over all files (default: all)"},
});

Result<ConformanceRequest> request_of(const CommandLine& line) {
  if (const auto seed = seed_of(line); !seed) return error(seed.error());  // unused, but never ignored
  ConformanceRequest request;
  request.files = line.files;
  if (request.files.empty()) {
    return error(StatusCode::kInvalidArgument, "check needs at least one FILE of conformance vectors (JSON Lines)");
  }
  if (line.has("--kind")) {
    const auto kinds = parse_choice_list("--kind", line.value_or("--kind", ""), kKinds);
    if (!kinds) return error(kinds.error());
    if (kinds->size() != 1)
      return error(StatusCode::kInvalidArgument, "--kind takes one kind: resolve, needs, slots, hit or recover");
    request.kind = std::string(kKinds[kinds->front()]);
  }
  if (line.has("--first")) {
    const auto first = parse_integer("--first", line.value_or("--first", ""), 1, kMaxCases);
    if (!first) return error(first.error());
    request.first = *first;
  }
  return request;
}

void write_json(std::ostream& out, const ConformanceRequest& request, const ConformanceReport& report) {
  ordered_json config;
  config["files"] = request.files;
  config["kind"] = request.kind ? ordered_json(*request.kind) : ordered_json(nullptr);
  config["first"] = request.first ? ordered_json(*request.first) : ordered_json(nullptr);
  ordered_json differed = ordered_json::array();
  for (const ConformanceDifference& difference : report.differed) {
    differed.push_back({{"id", difference.id},
                        {"got", ordered_json::parse(difference.got, nullptr, false)},
                        {"expected", ordered_json::parse(difference.expected, nullptr, false)}});
  }
  ordered_json result;
  result["cases"] = report.cases;
  result["agreed"] = report.agreed;
  result["differed"] = std::move(differed);
  const auto replace = ordered_json::error_handler_t::replace;
  write_document(out, kCheckCommand.name, config.dump(-1, ' ', false, replace),
                 ordered_json::array({result}).dump(-1, ' ', false, replace));
}

void write_table(std::ostream& out, const ConformanceReport& report) {
  Table table({"cases", "agreed", "differed"}, 0);
  table.add({with_commas(report.cases), with_commas(report.agreed),
             with_commas(static_cast<std::int64_t>(report.differed.size()))});
  table.write(out);
  for (std::size_t i = 0; i < report.differed.size() && i < kShownDifferences; ++i) {
    const ConformanceDifference& difference = report.differed[i];
    out << '\n'
        << difference.id << "\n  got       " << difference.got << "\n  expected  " << difference.expected << '\n';
  }
  if (report.differed.size() > kShownDifferences) {
    out << "\nand " << report.differed.size() - kShownDifferences << " more (--json shows all)\n";
  }
}

}  // namespace

const CommandInfo kCheckCommand = {"check", "Runs conformance vectors against the library", kOptions, "FILE"};

Result<ExitCode> check_command(const CommandLine& line, Streams streams) {
  const Result<ConformanceRequest> request = request_of(line);
  if (!request) return error(request.error());
  const Result<ConformanceReport> report = run_conformance(*request);
  if (!report) return error(report.error());
  if (line.json) {
    write_json(streams.out, *request, *report);
  } else {
    write_table(streams.out, *report);
  }
  return report->differed.empty() ? ExitCode::kDone : ExitCode::kFoundWrong;
}

}  // namespace hostkv::bench
