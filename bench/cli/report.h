#ifndef HOSTKV_BENCH_CLI_REPORT_H_
#define HOSTKV_BENCH_CLI_REPORT_H_

// What commands write: a table for people, a JSON document for programs, progress for the impatient.

#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cli/cli.h"

namespace hostkv::bench {

// Columns as wide as their widest cell; the first `left_columns` stand left, the others right.
class Table {
 public:
  Table(std::vector<std::string> header, std::size_t left_columns);
  void add(std::vector<std::string> row);  // REQUIRES: as many cells as the header
  void write(std::ostream& out) const;

 private:
  std::size_t left_columns_;
  std::vector<std::vector<std::string>> rows_;  // header first
};

std::string with_commas(std::int64_t value);  // 58,368
std::string fixed(double value, int digits);  // 0.3664

// A line on standard error now and then: at once on a terminal, else after two seconds; none when quiet. Thread-safe.
class Progress {
 public:
  Progress(Streams streams, bool quiet);
  // `text` is only asked for when a line is due.
  void tick(const std::function<std::string()>& text);

 private:
  Streams streams_;
  bool quiet_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point due_;  // under mutex_
};

}  // namespace hostkv::bench

#endif  // HOSTKV_BENCH_CLI_REPORT_H_
