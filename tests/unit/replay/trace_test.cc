#include "bench/replay/trace.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace hostkv::bench {
namespace {

// A file that lives as long as the test.
class TraceFile {
 public:
  explicit TraceFile(const std::string& text) {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = testing::TempDir() + "hostkv_trace_" + info->name() + "_" + std::to_string(counter_++) + ".jsonl";
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~TraceFile() { std::filesystem::remove(path_); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  static inline int counter_ = 0;
  std::string path_;
};

std::string line(const std::string& input, const std::string& ids) {
  return R"({"timestamp": 5, "input_length": )" + input + R"(, "output_length": 7, "hash_ids": )" + ids + "}\n";
}

// The message of reading `text`, without the file's name; "" where it is read.
std::string problem(const std::string& text) {
  const TraceFile file(text);
  const Result<Trace> trace = read_trace(file.path());
  if (trace) return "";
  EXPECT_EQ(trace.error().code(), StatusCode::kInvalidArgument);
  const std::string& message = trace.error().message();
  EXPECT_EQ(message.find(file.path()), 0U) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message.substr(file.path().size());
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(TraceReader, ReadsRequestsInTheOrderOfTheFile) {
  const TraceFile file(line("1024", "[0, 1]") + "\n" + line("600", "[0, 2]"));
  const Result<Trace> trace = read_trace(file.path());
  ASSERT_TRUE(trace) << trace.error().message();
  ASSERT_EQ(trace->requests.size(), 2U);
  EXPECT_EQ(trace->requests[1].block_ids, (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(trace->requests[0].timestamp_ms, 5);
  EXPECT_EQ(trace->requests[0].output_tokens, 7);
  EXPECT_EQ(trace->num_block_refs(), 4);
  EXPECT_EQ(trace->longest_request_blocks(), 2);
}

TEST(TraceReader, StopsAfterTheRequestsAskedFor) {
  const TraceFile file(line("512", "[0]") + "not read any more\n");
  const Result<Trace> trace = read_trace(file.path(), 1);
  ASSERT_TRUE(trace) << trace.error().message();
  EXPECT_EQ(trace->requests.size(), 1U);
}

TEST(TraceReader, AcceptsAPartialLastBlockWithAndWithoutAnId) {
  EXPECT_EQ(problem(line("600", "[0, 1]")), "");
  EXPECT_EQ(problem(line("600", "[0]")), "");
  EXPECT_EQ(problem(R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [4], "extra": {}})"), "");
}

TEST(TraceReader, NamesTheLineAndPlaceOfBrokenJson) {
  const std::string text = problem(line("512", "[0]") + "{\"timestamp\": 1,,}\n");
  EXPECT_TRUE(contains(text, ":2: broken JSON at byte 17")) << text;
  EXPECT_TRUE(contains(problem(line("512", "[0]") + line("512", "[0]").substr(0, 40)), ":2: broken JSON")) << text;
  EXPECT_TRUE(contains(problem(line("512", "[0]") + "[1]\n"), ":2: the line is [1]"));
}

TEST(TraceReader, RefusesALineThatNestsDeep) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_EQ(problem(line(deep, "[0]")), ":1: it nests 1000001 deep; at most 64 is allowed");
  EXPECT_EQ(problem(line("512", deep)), ":1: it nests 1000001 deep; at most 64 is allowed");
}

TEST(TraceReader, NamesTheMissingField) {
  EXPECT_TRUE(contains(problem("{\"timestamp\": 1, \"hash_ids\": []}\n"), ":1: field \"input_length\" is missing"));
  EXPECT_TRUE(contains(problem("{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"x\": 1}\n"),
                       ":1: field \"hash_ids\" is missing"));
}

TEST(TraceReader, RefusesNegativeLengthsAndIds) {
  EXPECT_TRUE(contains(problem(line("-5", "[]")), ":1: field \"input_length\" is -5; allowed: a number, 0 .. "));
  EXPECT_TRUE(contains(problem(line("1024", "[0, -3]")), ":1: hash id -3 at position 1; allowed: an integer, 0 .. "));
}

TEST(TraceReader, RefusesValuesOfTheWrongType) {
  EXPECT_TRUE(contains(problem(line("\"many\"", "[]")), "field \"input_length\" is \"many\""));
  EXPECT_TRUE(contains(problem(line("1e300", "[]")), "field \"input_length\" is 1e+300"));
  EXPECT_TRUE(contains(problem(line("512", "7")), "field \"hash_ids\" is 7; allowed: a list of ids"));
  EXPECT_TRUE(contains(problem(line("512", "[1.5]")), "hash id 1.5 at position 0"));
}

TEST(TraceReader, RefusesAnIdWithTwoParents) {
  const std::string text = problem(line("1024", "[0, 1]") + line("1024", "[2, 1]"));
  EXPECT_TRUE(contains(text, ":2: hash id 1 follows id 2 here and id 0 before; allowed: one parent")) << text;
  EXPECT_TRUE(contains(problem(line("512", "[0]") + line("1024", "[1, 0]")), "follows id 1 here and the start before"));
  EXPECT_TRUE(contains(problem(line("1024", "[3, 3]")), "hash id 3 follows id 3 here and the start before"));
}

TEST(TraceReader, RefusesIdsThatDoNotFitTheLength) {
  EXPECT_TRUE(contains(problem(line("600", "[0, 1, 2]")), ":1: 3 hash ids for \"input_length\" 600; allowed: 2"));
  EXPECT_TRUE(contains(problem(line("0", "[1]")), "1 hash ids for \"input_length\" 0; allowed: 0"));
}

TEST(TraceReader, RefusesAnEmptyFile) {
  EXPECT_TRUE(contains(problem(""), ": the file is empty"));
  EXPECT_TRUE(contains(problem("\n \n"), ": the file is empty"));
}

TEST(TraceReader, RefusesWhatCannotBeRead) {
  const Result<Trace> missing = read_trace("/nowhere/trace.jsonl");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), StatusCode::kNotFound);
  EXPECT_EQ(missing.error().message(), "trace file /nowhere/trace.jsonl does not exist");
  const Result<Trace> folder = read_trace(testing::TempDir());
  ASSERT_FALSE(folder);
  EXPECT_TRUE(contains(folder.error().message(), "is a folder"));
}

TEST(TraceReader, NamesForeignFormats) {
  EXPECT_TRUE(contains(problem(std::string("\x1F\x8B\x08\x00", 4)), "compressed with gzip; unpack it first"));
  EXPECT_TRUE(contains(problem(std::string("\xFD") + "7zXZ"), "compressed with xz; unpack it first"));
  EXPECT_TRUE(contains(problem("[" + line("512", "[0]") + "]"), "one JSON list"));
  EXPECT_TRUE(contains(problem("timestamp,input_length\n1,2\n"), "looks like CSV"));
  EXPECT_TRUE(contains(problem(R"({"s":0,"a":0,"t":1.5,"in":128,"out":3,"r":[[0,2]]})"), "run-length trace"));
}

}  // namespace
}  // namespace hostkv::bench
