#include "bench/replay/trace.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json_depth.h"
#include "bench/replay/trace_format.h"

namespace hostkv::bench {
namespace {

using nlohmann::json;

constexpr std::int64_t kBlockTokens = 512;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;
constexpr std::int64_t kMaxId = std::int64_t{1} << 53;
constexpr std::size_t kMaxShownChars = 40;

std::string shown(const json& value) {
  const std::string text = value.dump();
  return text.size() <= kMaxShownChars ? text : text.substr(0, kMaxShownChars) + "...";
}

// An error text; empty: all is well.
std::string read_count(const json& object, const char* key, std::int64_t max, std::int64_t& value) {
  const std::string quoted = std::string("\"").append(key).append("\"");
  const auto found = object.find(key);
  if (found == object.end()) {
    return "field " + quoted + " is missing; needed: timestamp, input_length, output_length, hash_ids";
  }
  const bool in_range = found->is_number() && found->get<double>() >= 0 && found->get<double>() <= double(max);
  if (!in_range) {
    return "field " + quoted + " is " + shown(*found) + "; allowed: a number, 0 .. " + std::to_string(max);
  }
  value = found->get<std::int64_t>();
  return {};
}

std::string read_ids(const json& object, std::vector<std::int64_t>& ids) {
  const auto found = object.find("hash_ids");
  if (found == object.end()) {
    return "field \"hash_ids\" is missing; needed: timestamp, input_length, output_length, hash_ids";
  }
  if (!found->is_array()) return "field \"hash_ids\" is " + shown(*found) + "; allowed: a list of ids";
  ids.reserve(found->size());
  for (const json& id : *found) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > kMaxId) {
      return "hash id " + shown(id) + " at position " + std::to_string(ids.size()) + "; allowed: an integer, 0 .. " +
             std::to_string(kMaxId);
    }
    ids.push_back(id.get<std::int64_t>());
  }
  return {};
}

std::string check_id_count(const TraceRequest& request) {
  const auto num_ids = static_cast<std::int64_t>(request.block_ids.size());
  const std::int64_t whole = request.input_tokens / kBlockTokens;
  const std::int64_t touched = (request.input_tokens + kBlockTokens - 1) / kBlockTokens;
  if (num_ids == whole || num_ids == touched) return {};
  return std::to_string(num_ids) + " hash ids for \"input_length\" " + std::to_string(request.input_tokens) +
         "; allowed: " + std::to_string(touched) + " (blocks of 512 tokens, the last may be partly filled" +
         (whole == touched ? "" : " or left out") + ")";
}

// nlohmann puts the place into an exception; nothing else tells it.
std::string parse_line(const std::string& line, json& object) {
  if (const std::string problem = json_depth_problem(line); !problem.empty()) return problem;
  try {
    object = json::parse(line);
  } catch (const json::exception& failure) {
    const auto* parse_failure = dynamic_cast<const json::parse_error*>(&failure);
    const std::string where = parse_failure == nullptr ? "" : " at byte " + std::to_string(parse_failure->byte);
    return "broken JSON" + where + "; allowed: one object on one line";
  }
  return object.is_object() ? "" : "the line is " + shown(object) + "; allowed: one object on one line";
}

std::string parse_request(const std::string& line, TraceRequest& request) {
  json object;
  std::string problem = parse_line(line, object);
  if (problem.empty()) problem = read_count(object, "timestamp", kMaxId, request.timestamp_ms);
  if (problem.empty()) problem = read_count(object, "input_length", kMaxTokens, request.input_tokens);
  if (problem.empty()) problem = read_count(object, "output_length", kMaxTokens, request.output_tokens);
  if (problem.empty()) problem = read_ids(object, request.block_ids);
  if (problem.empty()) problem = check_id_count(request);
  return problem;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

std::int64_t Trace::num_block_refs() const {
  std::int64_t sum = 0;
  for (const TraceRequest& request : requests) sum += static_cast<std::int64_t>(request.block_ids.size());
  return sum;
}

std::int64_t Trace::longest_request_blocks() const {
  std::size_t longest = 0;
  for (const TraceRequest& request : requests) longest = std::max(longest, request.block_ids.size());
  return static_cast<std::int64_t>(longest);
}

Result<TraceReader> TraceReader::open(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return error(StatusCode::kNotFound, "trace file " + path + " does not exist");
  }
  if (std::filesystem::is_directory(path, ignored)) {
    return error(StatusCode::kInvalidArgument, path + " is a folder; a trace is a file of JSON Lines");
  }
  TraceReader reader(path);
  reader.file_.open(path, std::ios::binary);
  if (!reader.file_) return error(StatusCode::kNotFound, "trace file " + path + " cannot be read");
  std::string head(kTraceHeadBytes, '\0');
  reader.file_.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(reader.file_.gcount()));
  if (const std::string problem = foreign_format(head); !problem.empty()) {
    return error(StatusCode::kInvalidArgument, path + ": " + problem);
  }
  reader.file_.clear();
  reader.file_.seekg(0);
  return reader;
}

tl::unexpected<Status> TraceReader::failure(const std::string& what) const {
  return error(StatusCode::kInvalidArgument, path_ + ":" + std::to_string(line_) + ": " + what);
}

Status TraceReader::check_parents(const std::vector<std::int64_t>& ids) {
  std::int64_t parent = -1;
  for (const std::int64_t id : ids) {
    const auto [entry, is_new] = parents_.try_emplace(id, parent);
    if (!is_new && entry->second != parent) {
      const auto name = [](std::int64_t p) { return p < 0 ? std::string("the start") : "id " + std::to_string(p); };
      return failure("hash id " + std::to_string(id) + " follows " + name(parent) + " here and " + name(entry->second) +
                     " before; allowed: one parent (an id stands for all tokens up to its end)")
          .value();
    }
    parent = id;
  }
  return {};
}

Result<std::optional<TraceRequest>> TraceReader::next() {
  std::string line;
  do {
    if (!std::getline(file_, line)) {
      if (num_requests_ > 0 && !file_.bad()) return std::nullopt;
      return failure(file_.bad() ? "the file cannot be read further" : "no request in the file");
    }
    ++line_;
  } while (is_blank(line));
  TraceRequest request;
  if (const std::string problem = parse_request(line, request); !problem.empty()) return failure(problem);
  if (Status status = check_parents(request.block_ids); !status.ok()) return error(std::move(status));
  ++num_requests_;
  return request;
}

Result<Trace> read_trace(const std::string& path, std::int64_t max_requests) {
  Result<TraceReader> reader = TraceReader::open(path);
  if (!reader) return error(reader.error());
  Trace trace;
  trace.name = path;
  while (static_cast<std::int64_t>(trace.requests.size()) < max_requests) {
    Result<std::optional<TraceRequest>> request = reader->next();
    if (!request) return error(request.error());
    if (!request->has_value()) break;
    trace.requests.push_back(**std::move(request));
  }
  return trace;
}

}  // namespace hostkv::bench
