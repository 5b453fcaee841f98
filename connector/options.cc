#include "hostkv/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/json_depth.h"
#include "base/nearest_name.h"

namespace hostkv {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
constexpr std::int64_t kMaxCopyThreads = 64;
constexpr double kMinTimeoutSeconds = 0.001;
constexpr double kMaxTimeoutSeconds = 86400;
constexpr double kMinLoadingShare = 0.05;
constexpr std::size_t kMaxNamespaceBytes = 256;

// One row of the table: what people read, and how the value goes in and out.
struct Row {
  OptionInfo info;
  Status (*set)(ConnectorOptions& options, const Json& value);
  Json (*get)(const ConnectorOptions& options);
  Status (*check)(const ConnectorOptions& options);
};

Status out_of_range(std::string_view name, const std::string& value, std::string_view range) {
  return {StatusCode::kInvalidArgument, std::string(name) + " is " + value + "; allowed: " + std::string(range)};
}

std::string with_article(std::string_view noun) {
  const bool begins_with_vowel = std::string_view("aeio").find(noun.front()) != std::string_view::npos;
  return (begins_with_vowel ? "an " : "a ") + std::string(noun);
}

Status wrong_type(const OptionInfo& info, const Json& value) {
  return {StatusCode::kInvalidArgument, std::string(info.name) + " is " + value.dump() + " (" +
                                            std::string(value.type_name()) + "); " + with_article(info.type) +
                                            " is needed, allowed: " + std::string(info.range)};
}

constexpr OptionInfo kBytesInfo = {
    "cpu_bytes_to_use",
    "size",
    "bytes",
    "8GiB",
    "1 .. 1024TiB",
    "Host memory for KV over all ranks of one engine, a number of bytes or text such as \"64GiB\"."};
constexpr OptionInfo kBytesPerRankInfo = {"cpu_bytes_to_use_per_rank",
                                          "size",
                                          "bytes",
                                          "unset",
                                          "1 .. 1024TiB",
                                          "Host memory for KV of one rank; wins over cpu_bytes_to_use when set."};
constexpr OptionInfo kStoreModeInfo = {
    "store_mode",
    "name",
    "",
    "eager",
    "eager, lazy",
    "When blocks go to the host. eager: as soon as they are complete. lazy: when the device is about to drop them; "
    "what "
    "a recurrent state's or prompt tail's boundary needs is stored at once in both."};
constexpr OptionInfo kLazyInfo = {
    "lazy_offload", "boolean",     "",
    "unset",        "true, false", "vLLM's name: true is store_mode lazy, false eager. Set both only if they agree."};
constexpr OptionInfo kBoundariesInfo = {"boundaries",
                                        "name",
                                        "",
                                        "fine",
                                        "fine, coarse",
                                        "Where hits may end. fine: wherever the engine's own do, also inside a block. "
                                        "coarse: on the scheduler block only."};
constexpr OptionInfo kPolicyInfo = {
    "eviction_policy",
    "name",
    "",
    "lru",
    "lru",
    "What leaves a full host pool first. lru: the least recently used, a chain's tail before its head."};
constexpr OptionInfo kChecksumsInfo = {
    "checksums",
    "name",
    "",
    "sampled",
    "off, sampled, all",
    "Which blocks are checked, when they are loaded, for bytes that have changed in host memory. sampled: one in 16. A "
    "load that does not pass fails and is computed again."};
constexpr OptionInfo kThreadsInfo = {
    "copy_threads", "integer", "threads", "2", "1 .. 64", "Threads of one rank that share the copies of one job."};
constexpr OptionInfo kTimeoutInfo = {"transfer_timeout_seconds",
                                     "number",
                                     "seconds",
                                     "30",
                                     "0.001 .. 86400",
                                     "A transfer that has not started after this long is given up: a store is dropped, "
                                     "a load fails and is computed again."};
constexpr OptionInfo kLoadingShareInfo = {
    "max_loading_share",
    "number",
    "",
    "0.5",
    "0.05 .. 1",
    "Share of the device's blocks that loads in flight may hold; a request whose load would come on top of more waits "
    "until one has ended."};
constexpr OptionInfo kNamespaceInfo = {
    "cache_namespace",
    "string",
    "",
    "",
    "at most 256 bytes",
    "Separates caches that must never meet although their geometry is equal: model, weights, engine version."};

Status set_size(const OptionInfo& info, const Json& value, std::int64_t& bytes) {
  if (value.is_number_integer() &&
      !(value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxBytes))) {
    bytes = value.get<std::int64_t>();
    return {};
  }
  if (value.is_number_unsigned()) {
    return out_of_range(info.name, value.dump(), info.range);
  }
  if (!value.is_string()) {
    return wrong_type(info, value);
  }
  const Result<std::int64_t> parsed = parse_size_bytes(value.get<std::string>());
  if (!parsed) {
    return {StatusCode::kInvalidArgument, std::string(info.name) + ": " + parsed.error().message()};
  }
  bytes = *parsed;
  return {};
}

Status set_number(const OptionInfo& info, const Json& value, double& number) {
  if (!value.is_number()) {
    return wrong_type(info, value);
  }
  number = value.get<double>();
  return {};
}

Status check_size(const OptionInfo& info, std::int64_t bytes) {
  return bytes >= 1 && bytes <= kMaxBytes ? Status() : out_of_range(info.name, std::to_string(bytes), info.range);
}

// An enumerator that was cast from somewhere: there are `count`, numbered from 0.
Status check_number(const OptionInfo& info, int number, std::size_t count) {
  return number >= 0 && static_cast<std::size_t>(number) < count
             ? Status()
             : out_of_range(info.name, "number " + std::to_string(number), info.range);
}

constexpr std::array<std::string_view, 2> kStoreModeNames = {"eager", "lazy"};
constexpr std::array<std::string_view, 2> kBoundariesNames = {"fine", "coarse"};
constexpr std::array<std::string_view, 3> kChecksumNames = {"off", "sampled", "all"};

// `value` must be one of the names; their order is that of the enumerators.
template <class Enum, std::size_t kSize>
Status set_name(const OptionInfo& info, const Json& value, const std::array<std::string_view, kSize>& names,
                Enum& out) {
  if (!value.is_string()) {
    return wrong_type(info, value);
  }
  const auto name = value.get<std::string>();
  const auto at = std::ranges::find(names, name);
  if (at == names.end()) {
    const std::string_view nearest = nearest_name(name, {names.begin(), names.end()});
    Status status = out_of_range(info.name, value.dump(), info.range);
    return nearest.empty() ? status
                           : Status(StatusCode::kInvalidArgument,
                                    status.message() + "; did you mean \"" + std::string(nearest) + "\"?");
  }
  out = static_cast<Enum>(at - names.begin());
  return {};
}

// `value` must be the one name there is; others come with the features behind them.
Status set_only_name(const OptionInfo& info, const Json& value, std::string_view only) {
  if (!value.is_string()) {
    return wrong_type(info, value);
  }
  return value.get<std::string>() == only ? Status() : out_of_range(info.name, value.dump(), info.range);
}

constexpr std::array<Row, 11> kRows = {{
    {kBytesInfo, [](ConnectorOptions& o, const Json& v) { return set_size(kBytesInfo, v, o.cpu_bytes_to_use); },
     [](const ConnectorOptions& o) { return Json(o.cpu_bytes_to_use); },
     [](const ConnectorOptions& o) { return check_size(kBytesInfo, o.cpu_bytes_to_use); }},
    {kBytesPerRankInfo,
     [](ConnectorOptions& o, const Json& v) {
       if (v.is_null()) {
         o.cpu_bytes_to_use_per_rank.reset();
         return Status();
       }
       return set_size(kBytesPerRankInfo, v, o.cpu_bytes_to_use_per_rank.emplace());
     },
     [](const ConnectorOptions& o) {
       return o.cpu_bytes_to_use_per_rank ? Json(*o.cpu_bytes_to_use_per_rank) : Json(nullptr);
     },
     [](const ConnectorOptions& o) {
       return o.cpu_bytes_to_use_per_rank ? check_size(kBytesPerRankInfo, *o.cpu_bytes_to_use_per_rank) : Status();
     }},
    {kStoreModeInfo,
     [](ConnectorOptions& o, const Json& v) { return set_name(kStoreModeInfo, v, kStoreModeNames, o.store_mode); },
     [](const ConnectorOptions& o) { return Json(kStoreModeNames[static_cast<std::size_t>(o.store_mode)]); },
     [](const ConnectorOptions& o) {
       return check_number(kStoreModeInfo, static_cast<int>(o.store_mode), kStoreModeNames.size());
     }},
    {kLazyInfo,
     [](ConnectorOptions& o, const Json& v) {
       if (v.is_null()) {
         return Status();
       }
       if (!v.is_boolean()) {
         return wrong_type(kLazyInfo, v);
       }
       o.store_mode = v.get<bool>() ? StoreMode::kLazy : StoreMode::kEager;
       return Status();
     },
     [](const ConnectorOptions&) { return Json(nullptr); }, [](const ConnectorOptions&) { return Status(); }},
    {kBoundariesInfo,
     [](ConnectorOptions& o, const Json& v) { return set_name(kBoundariesInfo, v, kBoundariesNames, o.boundaries); },
     [](const ConnectorOptions& o) { return Json(kBoundariesNames[static_cast<std::size_t>(o.boundaries)]); },
     [](const ConnectorOptions& o) {
       return check_number(kBoundariesInfo, static_cast<int>(o.boundaries), kBoundariesNames.size());
     }},
    {kPolicyInfo, [](ConnectorOptions&, const Json& v) { return set_only_name(kPolicyInfo, v, "lru"); },
     [](const ConnectorOptions&) { return Json("lru"); },
     [](const ConnectorOptions& o) { return check_number(kPolicyInfo, static_cast<int>(o.eviction_policy), 1); }},
    {kChecksumsInfo,
     [](ConnectorOptions& o, const Json& v) { return set_name(kChecksumsInfo, v, kChecksumNames, o.checksums); },
     [](const ConnectorOptions& o) { return Json(kChecksumNames[static_cast<std::size_t>(o.checksums)]); },
     [](const ConnectorOptions& o) {
       return check_number(kChecksumsInfo, static_cast<int>(o.checksums), kChecksumNames.size());
     }},
    {kThreadsInfo,
     [](ConnectorOptions& o, const Json& v) {
       if (!v.is_number_integer()) {
         return wrong_type(kThreadsInfo, v);
       }
       if (v.is_number_unsigned() && v.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxCopyThreads)) {
         return out_of_range(kThreadsInfo.name, v.dump(), kThreadsInfo.range);
       }
       o.copy_threads = v.get<std::int64_t>();
       return Status();
     },
     [](const ConnectorOptions& o) { return Json(o.copy_threads); },
     [](const ConnectorOptions& o) {
       return o.copy_threads >= 1 && o.copy_threads <= kMaxCopyThreads
                  ? Status()
                  : out_of_range(kThreadsInfo.name, std::to_string(o.copy_threads), kThreadsInfo.range);
     }},
    {kTimeoutInfo,
     [](ConnectorOptions& o, const Json& v) { return set_number(kTimeoutInfo, v, o.transfer_timeout_seconds); },
     [](const ConnectorOptions& o) { return Json(o.transfer_timeout_seconds); },
     [](const ConnectorOptions& o) {
       const double seconds = o.transfer_timeout_seconds;
       return seconds >= kMinTimeoutSeconds && seconds <= kMaxTimeoutSeconds
                  ? Status()
                  : out_of_range(kTimeoutInfo.name, Json(seconds).dump(), kTimeoutInfo.range);
     }},
    {kLoadingShareInfo,
     [](ConnectorOptions& o, const Json& v) { return set_number(kLoadingShareInfo, v, o.max_loading_share); },
     [](const ConnectorOptions& o) { return Json(o.max_loading_share); },
     [](const ConnectorOptions& o) {
       return o.max_loading_share >= kMinLoadingShare && o.max_loading_share <= 1
                  ? Status()
                  : out_of_range(kLoadingShareInfo.name, Json(o.max_loading_share).dump(), kLoadingShareInfo.range);
     }},
    {kNamespaceInfo,
     [](ConnectorOptions& o, const Json& v) {
       if (!v.is_string()) {
         return wrong_type(kNamespaceInfo, v);
       }
       o.cache_namespace = v.get<std::string>();
       return Status();
     },
     [](const ConnectorOptions& o) { return Json(o.cache_namespace); },
     [](const ConnectorOptions& o) {
       return o.cache_namespace.size() <= kMaxNamespaceBytes
                  ? Status()
                  : out_of_range(kNamespaceInfo.name, std::to_string(o.cache_namespace.size()) + " bytes long",
                                 kNamespaceInfo.range);
     }},
}};

const Row* find_row(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.info.name == name) {
      return &row;
    }
  }
  return nullptr;
}

Status unknown_option(const std::string& name) {
  std::vector<std::string_view> names;
  for (const Row& row : kRows) {
    names.push_back(row.info.name);
  }
  const std::string_view nearest = nearest_name(name, names);
  std::string message = "unknown option \"" + name + "\"";
  if (!nearest.empty()) {
    message += "; did you mean \"" + std::string(nearest) + "\"?";
  } else {
    message += "; known options:";
    for (const std::string_view known : names) {
      message += " " + std::string(known);
    }
  }
  return {StatusCode::kInvalidArgument, std::move(message)};
}

// Two names of one thing: the last one in the text must not win silently.
Status check_lazy_agrees(const Json& document, const ConnectorOptions& options) {
  const auto lazy = document.find(std::string(kLazyInfo.name));
  const auto mode = document.find(std::string(kStoreModeInfo.name));
  if (lazy == document.end() || mode == document.end() || lazy->is_null()) {
    return {};
  }
  const bool agrees = *mode == kStoreModeNames[lazy->get<bool>() ? 1 : 0];
  return agrees && options.store_mode == (lazy->get<bool>() ? StoreMode::kLazy : StoreMode::kEager)
             ? Status()
             : Status(StatusCode::kInvalidArgument, "lazy_offload is " + lazy->dump() + " and store_mode is " +
                                                        mode->dump() + "; give one of them, or both alike");
}

}  // namespace

std::int64_t ConnectorOptions::bytes_per_rank(std::int64_t num_ranks) const {
  return cpu_bytes_to_use_per_rank ? *cpu_bytes_to_use_per_rank : cpu_bytes_to_use / num_ranks;
}

Status ConnectorOptions::validate() const {
  for (const Row& row : kRows) {
    if (Status status = row.check(*this); !status.ok()) {
      return status;
    }
  }
  return {};
}

Result<ConnectorOptions> ConnectorOptions::from_json(std::string_view json) {
  if (const std::string problem = json_depth_problem(json); !problem.empty()) {
    return error(StatusCode::kInvalidArgument, "options must be one JSON object of plain values; " + problem);
  }
  std::set<std::string> seen;
  std::string twice;
  const auto watch_names = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1 && !seen.insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  const Json document = Json::parse(json, watch_names, false);
  if (document.is_discarded() || !document.is_object()) {
    return error(StatusCode::kInvalidArgument,
                 "options must be one JSON object of option names, such as {\"cpu_bytes_to_use\": \"64GiB\"}");
  }
  if (!twice.empty()) {
    return error(StatusCode::kInvalidArgument, "option \"" + twice + "\" is given twice; once is allowed");
  }
  ConnectorOptions options;
  for (const auto& [name, value] : document.items()) {
    const Row* row = find_row(name);
    Status status = row == nullptr ? unknown_option(name) : row->set(options, value);
    if (!status.ok()) {
      return error(std::move(status));
    }
  }
  if (Status status = check_lazy_agrees(document, options); !status.ok()) {
    return error(std::move(status));
  }
  if (Status status = options.validate(); !status.ok()) {
    return error(std::move(status));
  }
  return options;
}

std::string ConnectorOptions::to_json() const {
  Json document = Json::object();
  for (const Row& row : kRows) {
    document[std::string(row.info.name)] = row.get(*this);
  }
  // Bytes of a namespace that are no UTF-8 are replaced: dump() would throw.
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::span<const OptionInfo> connector_option_table() {
  static const std::vector<OptionInfo> table = [] {
    std::vector<OptionInfo> rows;
    for (const Row& row : kRows) {
      rows.push_back(row.info);
    }
    return rows;
  }();
  return table;
}

std::string connector_options_markdown() {
  std::string text =
      "# Connector options\n\nMade from the table in `connector/options.cc`; a test compares.\n\n"
      "| option | type | unit | default | allowed | meaning |\n|---|---|---|---|---|---|\n";
  for (const OptionInfo& info : connector_option_table()) {
    const auto cell = [](std::string_view value) { return value.empty() ? std::string("-") : std::string(value); };
    text += "| `" + std::string(info.name) + "` | " + cell(info.type) + " | " + cell(info.unit) + " | " +
            cell(info.default_value) + " | " + cell(info.range) + " | " + cell(info.help) + " |\n";
  }
  return text;
}

}  // namespace hostkv
