#include "bench/cli/values.h"

#include <algorithm>
#include <charconv>

#include "bench/models/name_hint.h"
#include "hostkv/options.h"

namespace hostkv::bench {
namespace {

tl::unexpected<Status> refuse(std::string_view option, std::string_view value, const std::string& allowed) {
  return error(StatusCode::kInvalidArgument, std::string(option) + " \"" + std::string(value) + "\"; " + allowed);
}

// Parses each element with `parse_one` and keeps the first error.
template <class T, class ParseOne>
Result<std::vector<T>> parse_each(std::string_view option, std::string_view text, ParseOne parse_one) {
  const Result<std::vector<std::string>> parts = parse_text_list(option, text);
  if (!parts) return error(parts.error());
  std::vector<T> values;
  for (const std::string& part : *parts) {
    Result<T> value = parse_one(part);
    if (!value) return error(value.error());
    values.push_back(*value);
  }
  return values;
}

}  // namespace

Result<std::vector<std::string>> parse_text_list(std::string_view option, std::string_view text) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    if (parts.back().empty()) return refuse(option, text, "allowed: values separated by single commas");
    begin = end + 1;
  }
  return parts;
}

Result<std::int64_t> parse_integer(std::string_view option, std::string_view text, std::int64_t min, std::int64_t max) {
  std::int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = failure == std::errc() && end == text.data() + text.size();
  if (!whole || value < min || value > max) {
    return refuse(option, text, "allowed: an integer, " + std::to_string(min) + " .. " + std::to_string(max));
  }
  return value;
}

Result<std::vector<std::int64_t>> parse_integer_list(std::string_view option, std::string_view text, std::int64_t min,
                                                     std::int64_t max) {
  return parse_each<std::int64_t>(option, text,
                                  [&](const std::string& part) { return parse_integer(option, part, min, max); });
}

Result<std::vector<std::int64_t>> parse_size_list(std::string_view option, std::string_view text) {
  return parse_each<std::int64_t>(option, text, [&](const std::string& part) -> Result<std::int64_t> {
    const Result<std::int64_t> size = parse_size_bytes(part);
    if (size && *size > 0) return *size;
    return refuse(option, part, "allowed: a size above 0, as 4096, 500MB or 64GiB");
  });
}

Result<std::vector<std::size_t>> parse_choice_list(std::string_view option, std::string_view text,
                                                   std::span<const std::string_view> allowed) {
  return parse_each<std::size_t>(option, text, [&](const std::string& part) -> Result<std::size_t> {
    const auto found = std::ranges::find(allowed, part);
    if (found != allowed.end()) return static_cast<std::size_t>(found - allowed.begin());
    const std::string guess = allowed.size() > 1 ? did_you_mean(part, allowed) : "";
    return refuse(option, part, (guess.empty() ? "" : guess + " ") + "allowed: " + joined(allowed));
  });
}

}  // namespace hostkv::bench
