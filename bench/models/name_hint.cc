#include "bench/models/name_hint.h"

#include <array>

#include "base/nearest_name.h"

namespace hostkv::bench {
namespace {

constexpr std::size_t kMostBeginnings = 3;

std::vector<std::string_view> names_that_begin_with(std::string_view name,
                                                    std::span<const std::string_view> candidates) {
  std::vector<std::string_view> found;
  if (name.find_first_not_of('-') == std::string_view::npos) return found;
  for (const std::string_view candidate : candidates) {
    if (candidate.starts_with(name)) found.push_back(candidate);
  }
  if (found.size() > kMostBeginnings) found.clear();
  return found;
}

// Of two that are equally near the first is taken: as near is who is taken from both places.
bool is_as_near(std::string_view name, std::string_view nearest, std::string_view other) {
  const std::array<std::string_view, 2> other_first = {other, nearest};
  return nearest_name(name, other_first) == other;
}

}  // namespace

std::vector<std::string_view> near_names(std::string_view name, std::span<const std::string_view> candidates) {
  std::vector<std::string_view> found = names_that_begin_with(name, candidates);
  if (!found.empty()) return found;
  const std::string_view nearest = nearest_name(name, candidates);
  if (nearest.empty()) return found;
  for (const std::string_view candidate : candidates) {
    if (candidate == nearest || is_as_near(name, nearest, candidate)) found.push_back(candidate);
  }
  return found;
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates, std::string_view quote) {
  std::string text;
  for (const std::string_view near : near_names(name, candidates)) {
    text += text.empty() ? "did you mean " : " or ";
    text.append(quote).append(near).append(quote);
  }
  return text.empty() ? text : text + "?";
}

std::string joined(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

}  // namespace hostkv::bench
