#include "bench/models/model.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "base/json_depth.h"
#include "bench/models/name_hint.h"
#include "bench/models/presets.h"

namespace hostkv::bench {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxNumber = std::int64_t{1} << 50;
constexpr std::array<std::string_view, 6> kModelKeys = {"schema_version",    "name",  "notes", "default_dcp",
                                                        "hash_block_tokens", "groups"};
constexpr std::array<std::string_view, 13> kGroupKeys = {
    "name",  "kind",         "block_tokens",     "sharded",   "page_bytes",   "window_tokens", "extra_retained_tokens",
    "eagle", "chunk_tokens", "tokens_per_entry", "cacheable", "transferable", "state_mode"};
constexpr std::array<std::string_view, 6> kKinds = {"full", "mla", "sliding_window", "chunked_local", "mamba", "ring"};
constexpr std::array<std::string_view, 3> kStateModes = {"none", "align", "all"};

std::string hint(std::string_view name, std::span<const std::string_view> allowed) {
  const std::string guess = did_you_mean(name, allowed, "\"");
  return guess.empty() ? "allowed: " + joined(allowed) : guess;
}

// Reads the keys of one JSON object and keeps the first error.
class ObjectReader {
 public:
  ObjectReader(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  void only_keys(std::span<const std::string_view> allowed) {
    for (const auto& item : object_.items()) {
      if (std::ranges::find(allowed, item.key()) == allowed.end()) {
        fail("unknown key \"" + item.key() + "\"; " + hint(item.key(), allowed));
      }
    }
  }
  void integer(const char* key, std::int64_t min, bool required, std::int64_t& value) {
    const json* found = find(key, required);
    if (found == nullptr) return;
    if (!found->is_number_integer() || found->get<std::int64_t>() < min || found->get<std::int64_t>() > kMaxNumber) {
      fail(quoted(key) + " is " + found->dump() + "; allowed: an integer, " + std::to_string(min) + " .. " +
           std::to_string(kMaxNumber));
      return;
    }
    value = found->get<std::int64_t>();
  }
  void boolean(const char* key, bool& value) {
    const json* found = find(key, false);
    if (found == nullptr) return;
    if (!found->is_boolean()) return fail(quoted(key) + " is " + found->dump() + "; allowed: true, false");
    value = found->get<bool>();
  }
  void text(const char* key, bool required, std::string& value) {
    const json* found = find(key, required);
    if (found == nullptr) return;
    if (!found->is_string()) return fail(quoted(key) + " is " + found->dump() + "; allowed: text");
    value = found->get<std::string>();
  }
  void choice(const char* key, std::span<const std::string_view> allowed, bool required, std::string& value) {
    text(key, required, value);
    if (status_.ok() && !value.empty() && std::ranges::find(allowed, value) == allowed.end()) {
      fail(quoted(key) + " is \"" + value + "\"; " + hint(value, allowed));
    }
  }
  void fail(const std::string& what) {
    if (status_.ok()) status_ = Status(StatusCode::kInvalidArgument, where_ + ": " + what);
  }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  static std::string quoted(const char* key) { return std::string("\"").append(key).append("\""); }
  const json* find(const char* key, bool required) {
    const auto found = object_.find(key);
    if (found != object_.end()) return &*found;
    if (required) fail("key " + quoted(key) + " is missing");
    return nullptr;
  }

  const json& object_;
  std::string where_;
  Status status_;
};

MambaMode mamba_mode_from_name(std::string_view name) {
  if (name == "all") return MambaMode::kAll;
  return name == "none" ? MambaMode::kNone : MambaMode::kAlign;
}

Result<KvCacheGroup> parse_group(const json& object, const std::string& where) {
  if (!object.is_object())
    return error(StatusCode::kInvalidArgument, where + " is " + object.dump() + "; allowed: an object");
  KvCacheGroup group;
  std::string kind;
  std::string state_mode;
  ObjectReader reader(object, where);
  reader.only_keys(kGroupKeys);
  reader.text("name", false, group.name);
  reader.choice("kind", kKinds, true, kind);
  reader.integer("block_tokens", 1, true, group.block_tokens);
  reader.boolean("sharded", group.sharded);
  reader.integer("page_bytes", 0, false, group.page_bytes);
  reader.integer("window_tokens", 1, kind == "sliding_window", group.window_tokens);
  reader.integer("extra_retained_tokens", 0, false, group.extra_retained_tokens);
  reader.integer("chunk_tokens", 1, kind == "chunked_local", group.chunk_tokens);
  reader.integer("tokens_per_entry", 1, false, group.tokens_per_entry);
  reader.boolean("eagle", group.eagle);
  reader.boolean("cacheable", group.cacheable);
  reader.boolean("transferable", group.transferable);
  reader.choice("state_mode", kStateModes, false, state_mode);
  if (!reader.status().ok()) return error(reader.status());
  group.kind = static_cast<GroupKind>(std::ranges::find(kKinds, kind) - kKinds.begin());
  group.mamba_mode = mamba_mode_from_name(state_mode);
  return group;
}

Status parse_groups(const json& object, const std::string& label, std::vector<KvCacheGroup>& groups) {
  const auto list = object.find("groups");
  if (list == object.end() || !list->is_array() || list->empty()) {
    return Status(StatusCode::kInvalidArgument, label + ": \"groups\" must be a list of at least one group");
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    Result<KvCacheGroup> group = parse_group((*list)[i], label + ": groups[" + std::to_string(i) + "]");
    if (!group) return group.error();
    groups.push_back(*std::move(group));
  }
  return {};
}

bool is_path(std::string_view name) {
  return name.find('/') != std::string_view::npos || name.ends_with(".json");
}

Result<Model> load_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return error(StatusCode::kNotFound, "cannot read the model file " + path);
  }
  return parse_model(text.str(), path);
}

}  // namespace

GeometrySpec Model::with_parallel(std::int64_t dcp, std::int64_t interleave_tokens, Boundaries boundaries) const {
  GeometrySpec spec = geometry;
  spec.parallel.tp = dcp;
  spec.parallel.dcp = dcp;
  spec.parallel.interleave_tokens = interleave_tokens;
  if (boundaries == Boundaries::kCoarse) spec.fine_hits = false;
  return spec;
}

std::vector<std::int64_t> Model::default_interleaves(std::int64_t dcp) const {
  std::int64_t block = 0;
  for (const KvCacheGroup& group : geometry.groups) {
    if (group.sharded) block = std::gcd(block, group.block_tokens);
  }
  if (dcp <= 1 || block == 0) return {1};
  std::vector<std::int64_t> interleaves;
  for (const std::int64_t interleave : {std::int64_t{1}, std::int64_t{8}, std::int64_t{64}, block}) {
    const bool known = std::ranges::find(interleaves, interleave) != interleaves.end();
    if (block % interleave == 0 && !known) interleaves.push_back(interleave);
  }
  return interleaves;
}

std::int64_t Model::largest_page_bytes() const {
  std::int64_t largest = 0;
  for (const KvCacheGroup& group : geometry.groups) {
    if (group.page_bytes == 0) return 0;
    largest = std::max(largest, group.page_bytes);
  }
  return largest;
}

Result<Model> parse_model(std::string_view text, std::string_view label) {
  const std::string where(label);
  if (const std::string problem = json_depth_problem(text); !problem.empty()) {
    return error(StatusCode::kInvalidArgument, where + ": " + problem);
  }
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return error(StatusCode::kInvalidArgument,
                 where + ": not a JSON object; a model file is one object with \"groups\"");
  }
  Model model;
  std::int64_t schema_version = 0;
  std::int64_t hash_block_tokens = 0;
  ObjectReader reader(object, where);
  reader.only_keys(kModelKeys);
  reader.integer("schema_version", 1, true, schema_version);
  if (schema_version > 1) reader.fail("\"schema_version\" is " + std::to_string(schema_version) + "; allowed: 1");
  reader.text("name", true, model.name);
  reader.text("notes", false, model.notes);
  reader.integer("default_dcp", 1, false, model.default_dcp);
  reader.integer("hash_block_tokens", 1, false, hash_block_tokens);
  if (!reader.status().ok()) return error(reader.status());
  if (hash_block_tokens > 0) model.geometry.hash_block_tokens = hash_block_tokens;
  if (Status status = parse_groups(object, where, model.geometry.groups); !status.ok()) return error(std::move(status));
  return model;
}

Result<Model> load_model(std::string_view name_or_path) {
  if (is_path(name_or_path)) return load_file(std::string(name_or_path));
  std::vector<std::string_view> names;
  for (const Preset& preset : model_presets()) {
    if (preset.name == name_or_path) return parse_model(preset.json, preset.name);
    names.push_back(preset.name);
  }
  const std::string guess = did_you_mean(name_or_path, names);
  return error(StatusCode::kNotFound, "unknown model \"" + std::string(name_or_path) + "\"; " +
                                          (guess.empty() ? "" : guess + " ") + "allowed: " + joined(names) +
                                          ", or the path of a model file");
}

}  // namespace hostkv::bench
