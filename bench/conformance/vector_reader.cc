// From a line of JSON to a VectorCase. Every key is known, every value has its type, or the line is refused.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "base/json_depth.h"
#include "base/nearest_name.h"
#include "bench/conformance/vector_case.h"

namespace hostkv::bench {
namespace {

using Json = nlohmann::json;
using Names = std::vector<std::string_view>;

// A case of kind hit is asked key by key, one of kind recover candidate by candidate.
constexpr std::int64_t kMaxHitTokens = std::int64_t{1} << 24U;
constexpr std::int64_t kMaxBlockId = std::numeric_limits<std::uint32_t>::max();
constexpr std::int64_t kMaxRank = (std::int64_t{1} << 20U) - 1;
constexpr std::array<std::string_view, 3> kStateModeNames = {"none", "align", "all"};
Names group_kind_names() {
  Names names;
  for (int kind = 0; kind <= static_cast<int>(GroupKind::kScratch); ++kind) {
    names.push_back(group_kind_name(static_cast<GroupKind>(kind)));
  }
  return names;
}

std::string unknown_name(std::string_view what, std::string_view name, std::span<const std::string_view> known) {
  return unknown_name_message(what, name, fmt::format("{}", fmt::join(known, ", ")), nearest_name(name, known));
}

// Reads the members of one object; the first thing that is wrong stays in `status` and every later read answers a
// harmless value.
class ObjectReader {
 public:
  ObjectReader(const Json& value, std::string path, Status& status)
      : value_(value), path_(std::move(path)), status_(status) {
    if (!value.is_object()) {
      fail(fmt::format("{} is {}, expected an object", path_.empty() ? "the line" : path_, value.type_name()));
    }
  }

  void allow(const Names& keys) {
    if (!value_.is_object()) {
      return;
    }
    for (const auto& [key, member] : value_.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        fail(unknown_name(prefix() + "unknown key", key, keys));
      }
    }
  }

  const Json* member(std::string_view key, bool required) {
    if (value_.is_object()) {
      if (const auto found = value_.find(key); found != value_.end()) {
        return &*found;
      }
    }
    if (required) {
      fail(fmt::format("{}key \"{}\" is missing", prefix(), key));
    }
    return nullptr;
  }

  std::int64_t integer(std::string_view key, std::optional<std::int64_t> fallback = std::nullopt) {
    const Json* found = member(key, !fallback);
    return found == nullptr ? fallback.value_or(0) : to_integer(*found, path_of(key));
  }

  // Required, within its range.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) {
    const std::int64_t value = integer(key);
    if (value < low || value > high) {
      fail(fmt::format("{} is {}; allowed: {} .. {}", path_of(key), value, low, high));
    }
    return value;
  }

  bool boolean(std::string_view key, std::optional<bool> fallback = std::nullopt) {
    const Json* found = member(key, !fallback);
    if (found == nullptr) {
      return fallback.value_or(false);
    }
    if (!found->is_boolean()) {
      fail(fmt::format("{} is {}, expected true or false", path_of(key), found->dump()));
      return false;
    }
    return found->get<bool>();
  }

  std::string text(std::string_view key, const char* fallback = nullptr) {
    const Json* found = member(key, fallback == nullptr);
    if (found == nullptr) {
      return fallback == nullptr ? "" : fallback;
    }
    if (!found->is_string()) {
      fail(fmt::format("{} is {}, expected a string", path_of(key), found->dump()));
      return "";
    }
    return found->get<std::string>();
  }

  std::vector<std::int64_t> integers(std::string_view key, std::int64_t low, std::int64_t high) {
    return integers_of(array(key), path_of(key), low, high);
  }

  // Those of a list that lies deeper.
  std::vector<std::int64_t> integers_of(const Json& list, const std::string& path, std::int64_t low,
                                        std::int64_t high) {
    if (!list.is_array()) {
      fail(fmt::format("{} is {}, expected a list", path, list.type_name()));
      return {};
    }
    std::vector<std::int64_t> values;
    for (const Json& item : list) {
      const std::int64_t value = to_integer(item, path);
      if (value < low || value > high) {
        fail(fmt::format("{} holds {}; allowed: {} .. {}", path, value, low, high));
      }
      values.push_back(value);
    }
    return values;
  }

  const Json& array(std::string_view key) {
    static const Json empty = Json::array();
    const Json* found = member(key, true);
    if (found == nullptr || found->is_array()) {
      return found == nullptr ? empty : *found;
    }
    fail(fmt::format("{} is {}, expected a list", path_of(key), found->type_name()));
    return empty;
  }

  void fail(std::string message) {
    if (status_.ok()) {
      status_ = Status(StatusCode::kInvalidArgument, std::move(message));
    }
  }

  [[nodiscard]] std::string path_of(std::string_view key) const {
    return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  }

 private:
  [[nodiscard]] std::string prefix() const { return path_.empty() ? "" : path_ + ": "; }
  std::int64_t to_integer(const Json& value, const std::string& path) {
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() ||
                       value.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
    if (!fits) {
      fail(fmt::format("{} is {}, expected an integer of 64 bits", path, value.dump()));
      return 0;
    }
    return value.get<std::int64_t>();
  }

  const Json& value_;
  std::string path_;
  Status& status_;
};

KvCacheGroup read_group(const Json& value, const std::string& path, Status& status) {
  ObjectReader reader(value, path, status);
  reader.allow({"kind", "block_tokens", "sharded", "window_tokens", "extra_retained_tokens", "chunk_tokens", "eagle",
                "cacheable", "tokens_per_entry", "state_mode"});
  KvCacheGroup group;
  const std::string kind = reader.text("kind");
  if (const auto known = group_kind_from_name(kind)) {
    group.kind = *known;
  } else {
    reader.fail(unknown_name(fmt::format("{}: unknown group kind", path), kind, group_kind_names()));
  }
  const std::string mode = reader.text("state_mode", "align");
  const auto found = std::find(kStateModeNames.begin(), kStateModeNames.end(), mode);
  if (found == kStateModeNames.end()) {
    reader.fail(unknown_name(fmt::format("{}: unknown state_mode", path), mode, kStateModeNames));
  } else {
    group.mamba_mode = static_cast<MambaMode>(found - kStateModeNames.begin());
  }
  group.block_tokens = reader.integer("block_tokens");
  group.sharded = reader.boolean("sharded");
  group.window_tokens = reader.integer("window_tokens", 0);
  group.extra_retained_tokens = reader.integer("extra_retained_tokens", 0);
  group.chunk_tokens = reader.integer("chunk_tokens", 0);
  group.tokens_per_entry = reader.integer("tokens_per_entry", 1);
  group.eagle = reader.boolean("eagle", false);
  group.cacheable = reader.boolean("cacheable", true);
  return group;
}

// The files do not say the tensor parallel size: the smallest one under which the engine could accept the sizes.
std::int64_t implied_tp(std::int64_t dcp, std::int64_t pcp) {
  const std::int64_t tp = pcp > 1 ? dcp / pcp : dcp;
  return std::max<std::int64_t>(1, tp);
}

void read_geometry(const Json& value, VectorCase& out, Status& status) {
  ObjectReader reader(value, "geometry", status);
  Names keys = {"groups", "dcp", "pcp", "interleave_tokens"};
  if (out.kind != VectorKind::kResolve) {
    keys.insert(keys.end(), {"hash_block_tokens", "fine"});
    out.spec.hash_block_tokens = reader.integer("hash_block_tokens");
    out.spec.fine_hits = reader.boolean("fine");
  }
  reader.allow(keys);
  ParallelLayout& parallel = out.spec.parallel;
  parallel.dcp = reader.integer("dcp", 1);
  parallel.pcp = reader.integer("pcp", 1);
  parallel.tp = implied_tp(parallel.dcp, parallel.pcp);
  parallel.interleave_tokens = reader.integer("interleave_tokens", 1);
  const Json& groups = reader.array("groups");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    out.spec.groups.push_back(read_group(groups[i], fmt::format("geometry.groups[{}]", i), status));
  }
}

void read_group_index(ObjectReader& reader, VectorCase& out) {
  const std::int64_t group = reader.integer("group");
  if (group < 0 || group >= std::int64_t(out.spec.groups.size())) {
    reader.fail(
        fmt::format("input.group {} is out of range; the geometry has {} groups", group, out.spec.groups.size()));
    return;
  }
  out.group = GroupIndex{static_cast<std::uint32_t>(group)};
}

CachedKeys read_cached(const Json& value, const std::string& path, Status& status) {
  ObjectReader reader(value, path, status);
  reader.allow({"full", "partial"});
  CachedKeys keys;
  keys.whole_blocks = reader.integers("full", 0, kMaxHitTokens);
  const Json& inner = reader.array("partial");
  for (std::size_t i = 0; i < inner.size(); ++i) {
    ObjectReader item(inner[i], fmt::format("{}.partial[{}]", path, i), status);
    item.allow({"block_index", "boundary_tokens"});
    keys.inner.push_back(
        {item.integer("block_index", 0, kMaxHitTokens), item.integer("boundary_tokens", 1, kMaxHitTokens)});
  }
  return keys;
}

void read_hit_input(ObjectReader& reader, VectorCase& out, Status& status) {
  reader.allow({"prompt_tokens", "limit_tokens", "alignment_tokens", "cached"});
  out.prompt_tokens = reader.integer("prompt_tokens", 1, kMaxHitTokens);
  out.alignment_tokens = reader.integer("alignment_tokens", 1, kMaxHitTokens);
  reader.integer("limit_tokens", out.prompt_tokens - 1, out.prompt_tokens - 1);
  const Json& cached = reader.array("cached");
  if (cached.size() != out.spec.groups.size()) {
    reader.fail(
        fmt::format("input.cached has {} entries; the geometry has {} groups", cached.size(), out.spec.groups.size()));
  }
  for (std::size_t i = 0; i < cached.size(); ++i) {
    out.cached.push_back(read_cached(cached[i], fmt::format("input.cached[{}]", i), status));
  }
}

void read_failed(ObjectReader& reader, VectorCase& out, Status& status) {
  const Json& failed = reader.array("failed");
  for (std::size_t i = 0; i < failed.size(); ++i) {
    ObjectReader item(failed[i], fmt::format("input.failed[{}]", i), status);
    item.allow({"rank", "group", "block_id"});
    FailedLoad load;
    load.rank = RankIndex{static_cast<std::uint32_t>(item.integer("rank", 0, kMaxRank))};
    load.group =
        GroupIndex{static_cast<std::uint32_t>(item.integer("group", 0, std::int64_t(out.spec.groups.size()) - 1))};
    load.block = BlockId{static_cast<std::uint32_t>(item.integer("block_id", 0, kMaxBlockId))};
    out.failed.push_back(load);
  }
}

void read_recover_input(ObjectReader& reader, VectorCase& out, Status& status) {
  reader.allow({"settled_tokens", "alignment_tokens", "tables", "state_tokens", "failed"});
  out.settled_tokens = reader.integer("settled_tokens", 0, kMaxHitTokens);
  out.alignment_tokens = reader.integer("alignment_tokens", 1, kMaxHitTokens);
  const Json& tables = reader.array("tables");
  const Json& states = reader.array("state_tokens");
  if (tables.size() != out.spec.groups.size() || states.size() != out.spec.groups.size()) {
    reader.fail(fmt::format("input.tables has {} entries and input.state_tokens {}; the geometry has {} groups",
                            tables.size(), states.size(), out.spec.groups.size()));
    return;
  }
  for (std::size_t i = 0; i < tables.size(); ++i) {
    HeldTable& held = out.held.emplace_back();
    for (const std::int64_t id : reader.integers_of(tables[i], fmt::format("input.tables[{}]", i), 0, kMaxBlockId)) {
      held.table.push_back(BlockId{static_cast<std::uint32_t>(id)});
    }
    if (!states[i].is_null()) {
      held.state_tokens = reader.integers_of(states[i], fmt::format("input.state_tokens[{}]", i), 0, kMaxHitTokens);
    }
  }
  read_failed(reader, out, status);
}

void read_input(const Json& value, VectorCase& out, Status& status) {
  ObjectReader reader(value, "input", status);
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 60U;
  if (out.kind == VectorKind::kResolve) {
    reader.allow({"requested_hash_block_tokens", "prefix_caching", "connector"});
    const Json* requested = reader.member("requested_hash_block_tokens", false);
    if (requested != nullptr && !requested->is_null()) {
      out.spec.hash_block_tokens = reader.integer("requested_hash_block_tokens");
    }
    out.spec.prefix_caching = reader.boolean("prefix_caching");
    out.spec.connector = reader.boolean("connector");
    return;
  }
  if (out.kind == VectorKind::kHit) {
    read_hit_input(reader, out, status);
    return;
  }
  if (out.kind == VectorKind::kRecover) {
    read_recover_input(reader, out, status);
    return;
  }
  read_group_index(reader, out);
  if (out.kind == VectorKind::kNeeds) {
    reader.allow({"group", "boundary_tokens"});
    out.boundary_tokens = reader.integer("boundary_tokens");
    if (out.boundary_tokens < 0 || out.boundary_tokens > kMaxTokens) {
      reader.fail(
          fmt::format("input.boundary_tokens {} is out of range; allowed: 0 .. {}", out.boundary_tokens, kMaxTokens));
    }
    return;
  }
  reader.allow({"group", "table", "positions", "lengths"});
  out.table = reader.integers("table", 0, kMaxBlockId);
  out.positions = reader.integers("positions", 0, kMaxTokens);
  out.lengths = reader.integers("lengths", 0, kMaxTokens);
}

void read_expect(const Json& value, VectorCase& out, Status& status) {
  ObjectReader reader(value, "expect", status);
  if (!status.ok()) {
    return;
  }
  out.expect_shown = value.dump();
  const bool refused = reader.boolean("error", false);
  if (refused) {
    reader.allow({"error", "why"});
  }
  out.expect = refused ? Json{{"error", true}}.dump() : out.expect_shown;
}

}  // namespace

std::string unknown_name_message(std::string_view what, std::string_view name, std::string_view known_names,
                                 std::string_view nearest) {
  const std::string hint = nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest);
  return fmt::format("{} \"{}\"{} Known: {}", what, name, hint.empty() ? "." : hint, known_names);
}

Result<std::string> read_kind(std::string_view line) {
  if (const std::string problem = json_depth_problem(line); !problem.empty()) {
    return error(StatusCode::kInvalidArgument, problem);
  }
  const Json value = Json::parse(line, nullptr, false);
  if (value.is_discarded()) {
    return error(StatusCode::kInvalidArgument, "not a JSON object: the line is cut or malformed");
  }
  Status status;
  ObjectReader reader(value, "", status);
  std::string kind = reader.text("kind");
  if (!status.ok()) {
    return error(std::move(status));
  }
  return kind;
}

Result<VectorCase> read_case(std::string_view line, VectorKind kind) {
  const Json value = Json::parse(line, nullptr, false);
  Status status;
  VectorCase out;
  out.kind = kind;
  ObjectReader reader(value, "", status);
  reader.allow({"id", "kind", "geometry", "input", "expect", "source"});
  out.id = reader.text("id");
  const Json none;
  const auto part = [&](std::string_view key) -> const Json& {
    const Json* found = reader.member(key, true);
    return found == nullptr ? none : *found;
  };
  read_geometry(part("geometry"), out, status);
  read_input(part("input"), out, status);
  read_expect(part("expect"), out, status);
  if (!status.ok()) {
    return error(std::move(status));
  }
  return out;
}

}  // namespace hostkv::bench
