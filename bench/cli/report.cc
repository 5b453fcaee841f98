#include "bench/cli/report.h"

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <ostream>

#include "base/check.h"

namespace hostkv::bench {
namespace {

constexpr std::chrono::seconds kProgressInterval{2};

}  // namespace

Table::Table(std::vector<std::string> header, std::size_t left_columns) : left_columns_(left_columns) {
  rows_.push_back(std::move(header));
}

void Table::add(std::vector<std::string> row) {
  HOSTKV_DCHECK(row.size() == rows_.front().size(), "a table row has a cell for each column");
  rows_.push_back(std::move(row));
}

void Table::write(std::ostream& out) const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      line += (c == 0 ? "" : "  ") + (c < left_columns_ ? row[c] + padding : padding + row[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

std::string with_commas(std::int64_t value) {
  const std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

Progress::Progress(Streams streams, bool quiet)
    : streams_(streams),
      quiet_(quiet),
      due_(std::chrono::steady_clock::now() + (streams.err_is_terminal ? std::chrono::seconds{0} : kProgressInterval)) {
}

void Progress::tick(const std::function<std::string()>& text) {
  if (quiet_) return;
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now < due_) return;
  due_ = now + kProgressInterval;
  streams_.err << text() << std::endl;
}

}  // namespace hostkv::bench
