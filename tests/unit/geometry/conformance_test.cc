#include "bench/conformance/conformance.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace hostkv::bench {
namespace {

const std::string kSmallFile = std::string(HOSTKV_TEST_DATA) + "/conformance_small.jsonl";

std::string lines_of_small_file(std::int64_t first, std::int64_t count) {
  std::ifstream in(kSmallFile);
  std::string out;
  std::string line;
  for (std::int64_t i = 0; std::getline(in, line); ++i) {
    if (i >= first && i < first + count) {
      out.append(line).push_back('\n');
    }
  }
  return out;
}

// A file of a test, removed with it.
class VectorFile {
 public:
  explicit VectorFile(const std::string& text) : path_(::testing::TempDir() + name()) { std::ofstream(path_) << text; }
  VectorFile(const VectorFile&) = delete;
  VectorFile& operator=(const VectorFile&) = delete;
  ~VectorFile() { std::filesystem::remove(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  static std::string name() {
    std::string name("hostkv_vectors_");
    name.append(::testing::UnitTest::GetInstance()->current_test_info()->name());
    return name.append("_").append(std::to_string(::getpid())).append(".jsonl");
  }
  std::string path_;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// The message for a file whose second line is `line`, behind one good case.
std::string message_for(const std::string& line) {
  const VectorFile file(lines_of_small_file(0, 1) + line + "\n");
  const auto report = run_conformance({.files = {file.path()}});
  EXPECT_FALSE(report.has_value());
  if (report) {
    return "";
  }
  EXPECT_EQ(report.error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(report.error().message().find(file.path() + ":2: "), std::string::npos) << report.error().message();
  return report.error().message();
}

void expect_in(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "want \"" << part << "\" in \"" << message << "\"";
  }
}

TEST(Conformance, AgreesWithOurOwnSmallVectors) {
  const auto report = run_conformance({.files = {kSmallFile}});
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_EQ(report->cases, 74);
  EXPECT_EQ(report->agreed, report->cases);
  for (const ConformanceDifference& difference : report->differed) {
    ADD_FAILURE() << difference.id << ": got " << difference.got << ", expected " << difference.expected;
  }
}

TEST(Conformance, FiltersByKindAndStopsAfterTheFirst) {
  const auto needs = run_conformance({.files = {kSmallFile}, .kind = "needs"});
  EXPECT_EQ(needs->cases, 16);
  const auto slots = run_conformance({.files = {kSmallFile, kSmallFile}, .kind = "slots", .first = 8});
  EXPECT_EQ(slots->cases, 8);
  const VectorFile mixed(
      lines_of_small_file(0, 1).append("{\"id\":\"recover-1\",\"kind\":\"recover\",\"input\":{}}\n"));
  EXPECT_EQ(run_conformance({.files = {mixed.path()}, .kind = "resolve"})->cases, 1)
      << "other kinds are not its concern";
}

TEST(Conformance, ReportsIdAndBothAnswersOfACaseThatDiffers) {
  const VectorFile file(replaced(lines_of_small_file(0, 2), "\"hash_block_tokens\":12", "\"hash_block_tokens\":13"));
  const auto report = run_conformance({.files = {file.path()}});
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->cases, 2);
  EXPECT_EQ(report->agreed, 1);
  ASSERT_EQ(report->differed.size(), 1U);
  EXPECT_EQ(report->differed[0].id, "resolve-one-full");
  expect_in(report->differed[0].got, {"\"hash_block_tokens\":12"});
  expect_in(report->differed[0].expected, {"\"hash_block_tokens\":13"});
}

// Each value of every expectation counts: no case agrees when one number of its answer is another.
TEST(Conformance, FindsEveryChangedNumberOfAnAnswer) {
  std::ifstream in(kSmallFile);
  std::string line;
  int changed = 0;
  while (std::getline(in, line)) {
    const std::size_t begin = line.find("\"expect\":");
    const std::size_t end = line.find(",\"source\"");
    for (std::size_t at = begin; at < end; ++at) {
      const bool first_digit = std::isdigit(line[at]) != 0 && std::isdigit(line[at - 1]) == 0;
      if (!first_digit || line.find("\"error\"", begin) < end) {
        continue;
      }
      std::string wrong = line;
      wrong[at] = wrong[at] == '1' ? '2' : '1';
      const VectorFile file(wrong);
      const auto report = run_conformance({.files = {file.path()}});
      ASSERT_TRUE(report.has_value()) << report.error().message();
      EXPECT_EQ(report->differed.size(), 1U) << wrong;
      ++changed;
    }
  }
  EXPECT_GT(changed, 200);
}

TEST(Conformance, ShowsTheReasonOfARefusalThatWasNotExpected) {
  const VectorFile file(
      replaced(lines_of_small_file(0, 1), "\"requested_hash_block_tokens\":null", "\"requested_hash_block_tokens\":5"));
  const auto report = run_conformance({.files = {file.path()}});
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->differed.size(), 1U);
  expect_in(report->differed[0].got, {"\"error\":true", "group 0 (full): block_tokens 12", "hash block 5"});
}

TEST(Conformance, NamesTheNearestKindFileAndLine) {
  const std::string line = lines_of_small_file(0, 1);
  expect_in(message_for(replaced(line, "\"kind\":\"resolve\"", "\"kind\":\"resolv\"")),
            {"unknown kind \"resolv\"", "did you mean \"resolve\"?", "needs"});
  expect_in(message_for(replaced(line, "\"kind\":\"resolve\"", "\"kind\":\"evict\"")), {"unknown kind \"evict\""});
  const auto filter = run_conformance({.files = {kSmallFile}, .kind = "need"});
  expect_in(filter.error().message(), {"unknown kind \"need\"", "did you mean \"needs\"?"});
}

TEST(Conformance, RefusesBrokenLinesWithFileAndLine) {
  const std::string line = lines_of_small_file(0, 1);
  expect_in(message_for(line.substr(0, line.size() / 2)), {"cut or malformed"});
  expect_in(message_for("[1,2]"), {"array", "expected an object"});
  expect_in(message_for("{}"), {"key \"kind\" is missing"});
  expect_in(message_for(replaced(line, "\"id\":", "\"idd\":")), {"unknown key \"idd\"", "did you mean \"id\"?"});
  expect_in(message_for(replaced(line, "\"block_tokens\":12", "\"block_token\":12")),
            {"geometry.groups[0]", "unknown key \"block_token\"", "did you mean \"block_tokens\"?"});
  expect_in(message_for(replaced(line, "\"block_tokens\":12", "\"block_tokens\":\"12\"")),
            {"geometry.groups[0].block_tokens is \"12\"", "expected an integer"});
  expect_in(message_for(replaced(line, "\"block_tokens\":12", "\"block_tokens\":18446744073709551615")),
            {"integer of 64 bits"});
  expect_in(message_for(replaced(line, "\"block_tokens\":12", "\"block_tokens\":1.5")), {"1.5"});
  expect_in(message_for(replaced(line, "\"kind\":\"full\"", "\"kind\":\"ful\"")),
            {"unknown group kind \"ful\"", "did you mean \"full\"?"});
  expect_in(message_for(replaced(line, "\"sharded\":true", "\"sharded\":1")), {"sharded is 1", "true or false"});
  expect_in(message_for(replaced(line, "\"groups\":[", "\"groups\":7,\"x\":[")), {"unknown key \"x\""});
}

TEST(Conformance, RefusesQuestionsOutsideTheGeometry) {
  const std::string needs = lines_of_small_file(31, 1);
  expect_in(message_for(replaced(needs, "\"group\":0", "\"group\":1")), {"input.group 1 is out of range", "1 groups"});
  expect_in(message_for(replaced(needs, "\"boundary_tokens\":50", "\"boundary_tokens\":-1")), {"boundary_tokens -1"});
  const std::string slots = lines_of_small_file(47, 1);
  expect_in(message_for(replaced(slots, "\"positions\":[0", "\"positions\":[12")),
            {"input.positions holds 12", "table has 2 blocks"});
  expect_in(message_for(replaced(slots, "\"positions\":[0", "\"positions\":[-5")), {"holds -5"});
}

TEST(Conformance, NamesTheArrangementInWhichAHitDiffers) {
  const VectorFile file(replaced(lines_of_small_file(53, 1), "\"hit_tokens\":24", "\"hit_tokens\":36"));
  const auto report = run_conformance({.files = {file.path()}});
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->differed.size(), 1U);
  expect_in(report->differed[0].got, {"\"arrangement\":\"device alone\"", "\"hit_tokens\":24"});
}

TEST(Conformance, RefusesHitsThatNoGeometryCanAnswer) {
  const std::string line = lines_of_small_file(53, 1);
  expect_in(message_for(replaced(line, "\"limit_tokens\":49", "\"limit_tokens\":48")),
            {"input.limit_tokens is 48", "49 .. 49"});
  expect_in(message_for(replaced(line, "\"alignment_tokens\":12", "\"alignment_tokens\":18")),
            {"input.alignment_tokens 18", "hit alignment 12"});
  expect_in(message_for(replaced(line, "\"cached\":[", "\"cached\":[{\"full\":[],\"partial\":[]},")),
            {"input.cached has 2 entries", "1 groups"});
  expect_in(message_for(replaced(line, "\"full\":[0,", "\"full\":[-1,")), {"input.cached[0].full holds -1"});
  const std::string inner = lines_of_small_file(58, 1);
  expect_in(message_for(replaced(inner, "\"boundary_tokens\":90", "\"boundary_tokens\":80")),
            {"input.cached[0].partial", "boundary_tokens 80", "inside the block of 40 tokens"});
  expect_in(message_for(replaced(inner, "\"boundary_tokens\":90", "\"boundary_tokens\":95")),
            {"multiples of hash_block_tokens 10"});
  expect_in(message_for(replaced(inner, "\"block_index\":2", "\"block_indx\":2")), {"did you mean \"block_index\"?"});
}

TEST(Conformance, SaysHowARecoveryThatDiffersWasAsked) {
  const VectorFile file(replaced(lines_of_small_file(64, 1), "\"boundary_tokens\":20", "\"boundary_tokens\":40"));
  const auto report = run_conformance({.files = {file.path()}});
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->differed.size(), 1U);
  expect_in(report->differed[0].got, {"\"asked\":\"all failures at once\"", "\"boundary_tokens\":20"});
}

TEST(Conformance, RefusesRecoveriesThatNoGeometryCanAnswer) {
  const std::string line = lines_of_small_file(64, 1);
  expect_in(message_for(replaced(line, "\"alignment_tokens\":20", "\"alignment_tokens\":40")),
            {"input.alignment_tokens is 40", "allowed: 20"});
  expect_in(message_for(replaced(line, "\"tables\":[", "\"tables\":[[],")), {"input.tables has 3 entries", "2 groups"});
  expect_in(message_for(replaced(line, "\"tables\":[[1,", "\"tables\":[[-1,")), {"input.tables[0] holds -1"});
  expect_in(message_for(replaced(line, "[20,40,60,80]", "[20,40,60]")), {"group 1 (mamba)", "3 entries; expected 4"});
  expect_in(message_for(replaced(line, "[20,40,60,80]", "7")), {"input.state_tokens[1] is number, expected a list"});
  expect_in(
      message_for(replaced(line, "{\"rank\":0,\"group\":0,\"block_id\":4}", "{\"rank\":0,\"group\":2,\"block_id\":4}")),
      {"input.failed[0].group is 2; allowed: 0 .. 1"});
  expect_in(message_for(replaced(line, "\"block_id\":4", "\"block_ids\":4")),
            {"unknown key \"block_ids\"", "did you mean \"block_id\"?"});
}

TEST(Conformance, RefusesRequestsThatCheckNothing) {
  expect_in(run_conformance({}).error().message(), {"no vector file"});
  expect_in(run_conformance({.files = {kSmallFile}, .first = 0}).error().message(), {"first 0", "at least 1"});
  const auto missing = run_conformance({.files = {kSmallFile + ".gone"}});
  EXPECT_EQ(missing.error().code(), StatusCode::kNotFound);
  expect_in(missing.error().message(), {kSmallFile + ".gone"});
  EXPECT_FALSE(run_conformance({.files = {HOSTKV_TEST_DATA}}).has_value()) << "a folder";
  const VectorFile empty("\n \n");
  expect_in(run_conformance({.files = {empty.path()}}).error().message(), {"no case in"});
  const VectorFile resolve_only(lines_of_small_file(0, 1));
  expect_in(run_conformance({.files = {resolve_only.path()}, .kind = "needs"}).error().message(),
            {"no case of kind needs"});
}

// Right answers computed by vLLM's own code, where the folder is at hand.
class PublishedVectors : public ::testing::TestWithParam<const char*> {};

TEST_P(PublishedVectors, AllAgree) {
  const char* named = std::getenv("HOSTKV_VECTORS");
  const std::filesystem::path folder = named != nullptr ? named : HOSTKV_DEFAULT_VECTORS;
  if (!std::filesystem::is_directory(folder)) {
    const char* ci = std::getenv("CI");
    EXPECT_FALSE(ci != nullptr && std::string(ci) == "true") << folder << " is missing, and CI needs it";
    std::cout << "note: " << folder << " is missing; only our own small vectors were checked\n";
    return;
  }
  const auto report = run_conformance({.files = {(folder / (std::string(GetParam()) + ".jsonl")).string()}});
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_GT(report->cases, 0);
  EXPECT_EQ(report->agreed, report->cases);
  for (const ConformanceDifference& difference : report->differed) {
    ADD_FAILURE() << difference.id << ": got " << difference.got << ", expected " << difference.expected;
  }
  RecordProperty("cases", static_cast<int>(report->cases));
}

INSTANTIATE_TEST_SUITE_P(Kinds, PublishedVectors, ::testing::Values("resolve", "needs", "slots", "hit", "recover"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace hostkv::bench
