#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>

#include "hostkv/options.h"

namespace hostkv {
namespace {

struct SizeUnit {
  std::string_view name;  // lower case
  double factor;
};

constexpr double kKi = 1024.0;
constexpr std::array<SizeUnit, 11> kSizeUnits = {{{"", 1},
                                                  {"b", 1},
                                                  {"kib", kKi},
                                                  {"mib", kKi* kKi},
                                                  {"gib", kKi* kKi* kKi},
                                                  {"tib", kKi* kKi* kKi* kKi},
                                                  {"kb", 1e3},
                                                  {"mb", 1e6},
                                                  {"gb", 1e9},
                                                  {"tb", 1e12},
                                                  {"pib", kKi* kKi* kKi* kKi* kKi}}};

constexpr double kLargestBytes = 9007199254740992.0;  // 2^53: exact in a double

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

}  // namespace

Result<std::int64_t> parse_size_bytes(std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return error(StatusCode::kInvalidArgument, "\"" + std::string(text) + "\" is not a size: " + why +
                                                   "; write bytes as 4096, 64GiB, 1.5TiB or 500MB");
  };
  const std::string folded = lower(trimmed(text));
  double number = 0;
  const auto [end, parse_error] = std::from_chars(folded.data(), folded.data() + folded.size(), number);
  if (parse_error != std::errc() || !std::isfinite(number)) {
    return bad("it does not begin with a number");
  }
  const std::string_view unit = trimmed({end, static_cast<std::size_t>(folded.data() + folded.size() - end)});
  for (const SizeUnit& known : kSizeUnits) {
    if (unit == known.name) {
      const double bytes = number * known.factor;
      if (bytes < 0 || bytes > kLargestBytes) {
        return bad("0 .. 8PiB are allowed");
      }
      return static_cast<std::int64_t>(bytes);
    }
  }
  return bad("the unit \"" + std::string(unit) + "\" is unknown");
}

}  // namespace hostkv
