#include "bench/conformance/conformance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>

#include "base/nearest_name.h"
#include "bench/conformance/vector_case.h"

namespace hostkv::bench {
namespace {

std::string unknown_kind(std::string_view name) {
  return unknown_name_message("unknown kind", name, fmt::format("{}", fmt::join(kVectorKindNames, ", ")),
                              nearest_name(name, kVectorKindNames));
}

std::optional<VectorKind> kind_from_name(std::string_view name) {
  const auto found = std::find(kVectorKindNames.begin(), kVectorKindNames.end(), name);
  if (found == kVectorKindNames.end()) {
    return std::nullopt;
  }
  return static_cast<VectorKind>(found - kVectorKindNames.begin());
}

Status check_request(const ConformanceRequest& request) {
  if (request.files.empty()) {
    return {StatusCode::kInvalidArgument, "no vector file is named; give at least one"};
  }
  if (request.first && *request.first < 1) {
    return {StatusCode::kInvalidArgument, fmt::format("first {} is out of range; allowed: at least 1", *request.first)};
  }
  if (request.kind && !kind_from_name(*request.kind)) {
    return {StatusCode::kInvalidArgument, unknown_kind(*request.kind)};
  }
  return {};
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

// One line: skipped, or answered and booked.
Status run_line(const ConformanceRequest& request, std::string_view line, ConformanceReport& report) {
  const Result<std::string> kind_name = read_kind(line);
  if (!kind_name) {
    return kind_name.error();
  }
  if (request.kind && *kind_name != *request.kind) {
    return {};
  }
  const std::optional<VectorKind> kind = kind_from_name(*kind_name);
  if (!kind) {
    return {StatusCode::kInvalidArgument, unknown_kind(*kind_name)};
  }
  const Result<VectorCase> question = read_case(line, *kind);
  if (!question) {
    return question.error();
  }
  const Result<VectorAnswer> answer = answer_case(*question);
  if (!answer) {
    return answer.error();
  }
  ++report.cases;
  if (answer->text == question->expect) {
    ++report.agreed;
  } else {
    report.differed.push_back({question->id, answer->shown, question->expect_shown});
  }
  return {};
}

bool is_done(const ConformanceRequest& request, const ConformanceReport& report) {
  return request.first && report.cases >= *request.first;
}

Status run_file(const ConformanceRequest& request, const std::string& file, ConformanceReport& report) {
  std::ifstream in(file);
  if (!in) {
    return {StatusCode::kNotFound, fmt::format("{}: cannot be opened for reading", file)};
  }
  std::string line;
  for (std::int64_t number = 1; !is_done(request, report) && std::getline(in, line); ++number) {
    if (is_blank(line)) {
      continue;
    }
    if (Status status = run_line(request, line, report); !status.ok()) {
      return {status.code(), fmt::format("{}:{}: {}", file, number, status.message())};
    }
  }
  if (in.bad()) {
    return {StatusCode::kNotFound, fmt::format("{}: cannot be read (is it a folder?)", file)};
  }
  return {};
}

}  // namespace

Result<ConformanceReport> run_conformance(const ConformanceRequest& request) {
  if (Status status = check_request(request); !status.ok()) {
    return error(std::move(status));
  }
  ConformanceReport report;
  for (const std::string& file : request.files) {
    if (Status status = run_file(request, file, report); !status.ok()) {
      return error(std::move(status));
    }
  }
  if (report.cases == 0) {
    return error(StatusCode::kInvalidArgument,
                 fmt::format("no case{} in {}", request.kind ? " of kind " + *request.kind : "",
                             fmt::join(request.files, ", ")));
  }
  return report;
}

}  // namespace hostkv::bench
