#include "bench/replay/trace_format.h"

#include <array>

namespace hostkv::bench {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kAllowed = "allowed: Mooncake JSON Lines, one object with hash_ids on each line";

struct Magic {
  std::string_view bytes;
  std::string_view what;
};
constexpr auto kMagics = std::to_array<Magic>({
    {"\x1F\x8B"sv, "compressed with gzip; unpack it first (gunzip)"},
    {"\xFD"
     "7zXZ"sv,
     "compressed with xz; unpack it first (unxz)"},
    {"\x28\xB5\x2F\xFD"sv, "compressed with zstd; unpack it first (unzstd)"},
    {"BZh"sv, "compressed with bzip2; unpack it first (bunzip2)"},
    {"PK\x03\x04"sv, "a zip archive; unpack it first (unzip)"},
    {"PAR1"sv, "a Parquet file"},
});

std::string with_allowed(std::string_view what) {
  return std::string(what) + "; " + std::string(kAllowed);
}

std::string foreign_text(std::string_view first_line) {
  if (first_line.front() == '[') return with_allowed("the file is one JSON list");
  const bool is_object = first_line.front() == '{';
  const bool has = first_line.find("\"hash_ids\"") != std::string_view::npos;
  if (is_object && !has && first_line.find("\"r\"") != std::string_view::npos) {
    return with_allowed(
        "the file is a run-length trace (fields s, a, t, in, out, r), which this version does not read");
  }
  if (!is_object && first_line.find(',') != std::string_view::npos) return with_allowed("the file looks like CSV");
  return is_object ? "" : with_allowed("the file is no JSON");
}

}  // namespace

std::string foreign_format(std::string_view head) {
  for (const Magic& magic : kMagics) {
    if (head.starts_with(magic.bytes)) return with_allowed("the file is " + std::string(magic.what));
  }
  const std::size_t begin = head.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return with_allowed("the file is empty");
  const std::size_t end = head.find('\n', begin);
  return foreign_text(head.substr(begin, end == std::string_view::npos ? end : end - begin));
}

}  // namespace hostkv::bench
