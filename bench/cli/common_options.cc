#include "bench/cli/common_options.h"

#include <array>

#include "bench/cli/values.h"

namespace hostkv::bench {
namespace {

constexpr std::int64_t kMaxSeed = std::int64_t{1} << 53;
constexpr std::array<std::string_view, 2> kStoreModes = {"eager", "lazy"};  // by value of the enumeration
constexpr std::array<std::string_view, 2> kBoundaries = {"fine", "coarse"};
constexpr std::array<std::string_view, 1> kPolicies = {"lru"};

}  // namespace

Result<std::uint64_t> seed_of(const CommandLine& line) {
  const Result<std::int64_t> seed = integer_of(line, "--seed", "1", 0, kMaxSeed);
  if (!seed) return error(seed.error());
  return static_cast<std::uint64_t>(*seed);
}

Result<std::vector<std::int64_t>> integers_of(const CommandLine& line, std::string_view option,
                                              std::string_view fallback, std::int64_t min, std::int64_t max) {
  return parse_integer_list(option, line.value_or(option, fallback), min, max);
}

Result<std::int64_t> integer_of(const CommandLine& line, std::string_view option, std::string_view fallback,
                                std::int64_t min, std::int64_t max) {
  return parse_integer(option, line.value_or(option, fallback), min, max);
}

Result<std::vector<Model>> models_of(const CommandLine& line, const std::vector<std::string>& fallback) {
  std::vector<std::string> names = fallback;
  if (line.has("--model")) {
    Result<std::vector<std::string>> given = parse_text_list("--model", line.value_or("--model", ""));
    if (!given) return error(given.error());
    names = *std::move(given);
  }
  std::vector<Model> models;
  for (const std::string& name : names) {
    Result<Model> model = load_model(name);
    if (!model) return error(model.error());
    models.push_back(*std::move(model));
  }
  return models;
}

Result<std::vector<StoreMode>> store_modes_of(const CommandLine& line) {
  const auto chosen = parse_choice_list("--mode", line.value_or("--mode", "eager"), kStoreModes);
  if (!chosen) return error(chosen.error());
  std::vector<StoreMode> modes;
  for (const std::size_t mode : *chosen) modes.push_back(static_cast<StoreMode>(mode));
  return modes;
}

Result<std::vector<Boundaries>> boundaries_of(const CommandLine& line) {
  const auto chosen = parse_choice_list("--boundaries", line.value_or("--boundaries", "fine"), kBoundaries);
  if (!chosen) return error(chosen.error());
  std::vector<Boundaries> boundaries;
  for (const std::size_t choice : *chosen) boundaries.push_back(static_cast<Boundaries>(choice));
  return boundaries;
}

Result<std::vector<EvictionPolicyKind>> policies_of(const CommandLine& line) {
  const auto chosen = parse_choice_list("--policy", line.value_or("--policy", "lru"), kPolicies);
  if (!chosen) return error(chosen.error());
  return std::vector<EvictionPolicyKind>(chosen->size(), EvictionPolicyKind::kLru);
}

std::string_view store_mode_name(StoreMode mode) {
  return kStoreModes[static_cast<std::size_t>(mode)];
}
std::string_view boundaries_name(Boundaries boundaries) {
  return kBoundaries[static_cast<std::size_t>(boundaries)];
}
std::string_view policy_name(EvictionPolicyKind policy) {
  return kPolicies[static_cast<std::size_t>(policy)];
}

Status check_geometry(const GeometrySpec& spec, std::string_view model) {
  const Result<Geometry> geometry = Geometry::resolve(spec);
  if (geometry) return {};
  return Status(geometry.error().code(),
                "model " + std::string(model) + ", --dcp " + std::to_string(spec.parallel.dcp) + ", --interleave " +
                    std::to_string(spec.parallel.interleave_tokens) + ": " + geometry.error().message());
}

Status check_offloadable(const GeometrySpec& spec, std::string_view model) {
  const Result<Geometry> geometry = Geometry::resolve(spec);
  if (!geometry) return geometry.error();
  for (std::uint32_t g = 0; g < geometry->num_groups(); ++g) {
    if (geometry->offloadable(GroupIndex{g})) return {};
  }
  return Status(StatusCode::kInvalidArgument,
                "model " + std::string(model) +
                    ": no group of this model can be offloaded (kind ring, state_mode none, cacheable false and "
                    "transferable false stay on the device)");
}

std::string wrong_text(const WrongByte& wrong) {
  return "request " + std::to_string(wrong.request.value()) + ", group " + std::to_string(wrong.group.value()) +
         ", rank " + std::to_string(wrong.rank) + ", position " + std::to_string(wrong.position) + ": " + wrong.what;
}

}  // namespace hostkv::bench
