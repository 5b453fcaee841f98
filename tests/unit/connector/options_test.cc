#include "hostkv/options.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace hostkv::testing {
namespace {

ConnectorOptions taken(const std::string& json) {
  Result<ConnectorOptions> options = ConnectorOptions::from_json(json);
  EXPECT_TRUE(options.has_value()) << json << ": " << (options ? "" : options.error().message());
  return options ? *options : ConnectorOptions{};
}

void expect_refused(const std::string& json, const std::vector<std::string>& parts) {
  const Result<ConnectorOptions> options = ConnectorOptions::from_json(json);
  ASSERT_FALSE(options.has_value()) << json;
  EXPECT_EQ(options.error().code(), StatusCode::kInvalidArgument);
  for (const std::string& part : parts) {
    EXPECT_NE(options.error().message().find(part), std::string::npos)
        << "want \"" << part << "\" in " << options.error().message();
  }
}

TEST(Options, HaveTheDefaultsOfTheTable) {
  const ConnectorOptions options = taken("{}");
  EXPECT_TRUE(options.validate().ok());
  EXPECT_EQ(options.cpu_bytes_to_use, *parse_size_bytes("8GiB"));
  EXPECT_EQ(options.cpu_bytes_to_use_per_rank, std::nullopt);
  EXPECT_EQ(options.checksums, ChecksumMode::kSampled);
  EXPECT_EQ(options.copy_threads, 2);
  EXPECT_EQ(options.transfer_timeout_seconds, 30.0);
  EXPECT_EQ(options.max_loading_share, 0.5);
  EXPECT_EQ(options.cache_namespace, "");
  for (const OptionInfo& info : connector_option_table()) {
    EXPECT_FALSE(info.help.empty()) << info.name;
    const std::string value(info.default_value);
    const bool quoted = info.type == "size" || info.type == "name" || info.type == "string";
    const std::string json = value == "unset" ? "null" : quoted ? "\"" + value + "\"" : value;
    EXPECT_EQ(taken("{\"" + std::string(info.name) + "\": " + json + "}").to_json(), options.to_json()) << info.name;
  }
}

TEST(Options, TakeBothEndsOfEachRangeAndNothingBeyond) {
  const std::string top = "1125899906842624";
  for (const std::string& name : {std::string("cpu_bytes_to_use"), std::string("cpu_bytes_to_use_per_rank")}) {
    const auto json = [&](const std::string& value) { return "{\"" + name + "\": " + value + "}"; };
    taken(json("1"));
    taken(json(top));
    taken(json("\"1024TiB\""));
    for (const char* value : {"0", "-1", "1125899906842625", "18446744073709551615", "-9223372036854775808", "\"0\"",
                              "\"1025TiB\"", "\"0.1\""}) {
      expect_refused(json(value), {name});
    }
    expect_refused(json("0"), {"0", "1 .. 1024TiB"});
    expect_refused(json("18446744073709551615"), {"18446744073709551615", "1 .. 1024TiB"});
  }
  EXPECT_EQ(taken("{\"copy_threads\": 1}").copy_threads, 1);
  EXPECT_EQ(taken("{\"copy_threads\": 64}").copy_threads, 64);
  for (const char* value : {"0", "65", "-1", "5000000", "18446744073709551615"}) {
    expect_refused("{\"copy_threads\": " + std::string(value) + "}",
                   {"copy_threads is " + std::string(value), "1 .. 64"});
  }
  EXPECT_EQ(taken("{\"transfer_timeout_seconds\": 0.001}").transfer_timeout_seconds, 0.001);
  EXPECT_EQ(taken("{\"transfer_timeout_seconds\": 86400}").transfer_timeout_seconds, 86400);
  for (const char* value : {"0", "0.0009", "86400.1", "-30", "1e300"}) {
    expect_refused("{\"transfer_timeout_seconds\": " + std::string(value) + "}",
                   {"transfer_timeout_seconds", "0.001 .. 86400"});
  }
  EXPECT_EQ(taken("{\"max_loading_share\": 0.05}").max_loading_share, 0.05);
  EXPECT_EQ(taken("{\"max_loading_share\": 1}").max_loading_share, 1);
  for (const char* value : {"0", "0.0499", "1.01", "-0.5", "1e300"}) {
    expect_refused("{\"max_loading_share\": " + std::string(value) + "}", {"max_loading_share", "0.05 .. 1"});
  }
  EXPECT_EQ(taken("{\"cache_namespace\": \"" + std::string(256, 'n') + "\"}").cache_namespace.size(), 256U);
  expect_refused("{\"cache_namespace\": \"" + std::string(257, 'n') + "\"}", {"257 bytes", "at most 256 bytes"});
  EXPECT_EQ(taken("{\"store_mode\": \"lazy\"}").store_mode, StoreMode::kLazy);
  EXPECT_EQ(taken("{\"boundaries\": \"coarse\"}").boundaries, Boundaries::kCoarse);
  expect_refused("{\"store_mode\": \"lasy\"}",
                 {"store_mode", "lasy", "allowed: eager, lazy", "did you mean \"lazy\"?"});
  expect_refused("{\"boundaries\": \"blocks\"}", {"boundaries", "blocks", "allowed: fine, coarse"});
  for (const auto& [name, mode] : {std::pair("off", ChecksumMode::kOff), std::pair("all", ChecksumMode::kAll)}) {
    EXPECT_EQ(taken("{\"checksums\": \"" + std::string(name) + "\"}").checksums, mode);
  }
  expect_refused("{\"checksums\": \"al\"}", {"checksums", "allowed: off, sampled, all", "did you mean \"all\"?"});
  expect_refused("{\"eviction_policy\": \"arc\"}", {"eviction_policy", "arc", "allowed: lru"});
}

TEST(Options, RefuseValuesOfAnotherType) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> wrong = {
      {"cpu_bytes_to_use", {"1.5", "true", "null", "[1]", "{}", "\"much\"", "\"\""}},
      {"cpu_bytes_to_use_per_rank", {"1.5", "true", "[1]", "{\"a\": 1}", "\"much\""}},
      {"store_mode", {"1", "null", "true", "[\"eager\"]"}},
      {"lazy_offload", {"1", "\"true\"", "[true]"}},
      {"boundaries", {"1", "null", "true", "[\"fine\"]"}},
      {"eviction_policy", {"1", "null", "true"}},
      {"checksums", {"1", "null", "true", "[\"all\"]"}},
      {"copy_threads", {"1.5", "\"2\"", "null", "true", "2.0"}},
      {"transfer_timeout_seconds", {"\"30\"", "null", "true"}},
      {"max_loading_share", {"\"0.5\"", "null", "true"}},
      {"cache_namespace", {"1", "null", "true", "[\"a\"]"}}};
  ASSERT_EQ(wrong.size(), connector_option_table().size()) << "a row for every option";
  for (const auto& [name, values] : wrong) {
    for (const std::string& value : values) {
      expect_refused("{\"" + name + "\": " + value + "}", {name});
    }
  }
}

TEST(Options, LazyOffloadIsAnotherNameOfTheStoreMode) {
  EXPECT_EQ(taken("{\"lazy_offload\": true}").store_mode, StoreMode::kLazy);
  EXPECT_EQ(taken("{\"lazy_offload\": false}").store_mode, StoreMode::kEager);
  EXPECT_EQ(taken("{\"lazy_offload\": null}").store_mode, StoreMode::kEager);
  EXPECT_EQ(taken("{\"lazy_offload\": true, \"store_mode\": \"lazy\"}").store_mode, StoreMode::kLazy);
  expect_refused("{\"lazy_offload\": true, \"store_mode\": \"eager\"}", {"lazy_offload is true", "\"eager\""});
  expect_refused("{\"store_mode\": \"lazy\", \"lazy_offload\": false}", {"lazy_offload is false", "\"lazy\""});
}

TEST(Options, NameTheNearestOptionForAnUnknownOne) {
  expect_refused("{\"copy_thread\": 2}", {"copy_thread", "did you mean \"copy_threads\"?"});
  expect_refused("{\"cpu_bytes_to_us\": 2}", {"did you mean \"cpu_bytes_to_use\"?"});
  expect_refused("{\"evict_policy\": 2}", {"did you mean \"eviction_policy\"?"});
  expect_refused("{\"zzzzzzzzzzzzzzzzzz\": 2}", {"known options:", "cache_namespace"});
  expect_refused("{\"\": 2}", {"unknown option \"\""});
}

TEST(Options, RefuseWhatIsNotOneObject) {
  for (const char* json : {"", "[]", "1", "null", "{", "{\"copy_threads\": 2} x", "{\"copy_threads\": 2,}",
                           "{\"copy_threads\": 1e999}", "{\"cache_namespace\": \"\xff\"}"}) {
    expect_refused(json, {"one JSON object"});
  }
}

TEST(Options, RefuseATextThatNestsDeep) {
  const std::string deep = "{\"store_mode\": " + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}";
  const auto options = ConnectorOptions::from_json(deep);
  ASSERT_FALSE(options.has_value());
  EXPECT_NE(options.error().message().find("nests 1000001 deep; at most 64"), std::string::npos)
      << options.error().message();
}

TEST(Options, RefuseANameThatIsGivenTwice) {
  expect_refused("{\"copy_threads\": 2, \"copy_threads\": 2}", {"copy_threads", "twice"});
  expect_refused("{\"copy_threads\": 2, \"store_mode\": \"eager\", \"copy_threads\": 3}", {"copy_threads", "twice"});
}

TEST(Options, PerRankBytesWin) {
  ConnectorOptions options = taken("{\"cpu_bytes_to_use\": 1000}");
  EXPECT_EQ(options.bytes_per_rank(4), 250);
  options = taken("{\"cpu_bytes_to_use\": 1000, \"cpu_bytes_to_use_per_rank\": 700}");
  EXPECT_EQ(options.bytes_per_rank(4), 700);
}

TEST(Options, ComeBackFromTheirJson) {
  const std::string json =
      R"({"cpu_bytes_to_use":"1.5GiB","cpu_bytes_to_use_per_rank":"500MB","copy_threads":7,)"
      R"("transfer_timeout_seconds":0.25,"max_loading_share":0.75,"checksums":"all","cache_namespace":"m\"\\\u00e9\n"})";
  const ConnectorOptions options = taken(json);
  const ConnectorOptions again = taken(options.to_json());
  EXPECT_EQ(again.to_json(), options.to_json());
  EXPECT_EQ(again.cpu_bytes_to_use, 1610612736);
  EXPECT_EQ(again.cpu_bytes_to_use_per_rank, 500000000);
  EXPECT_EQ(again.checksums, ChecksumMode::kAll);
  EXPECT_EQ(again.copy_threads, 7);
  EXPECT_EQ(again.transfer_timeout_seconds, 0.25);
  EXPECT_EQ(again.max_loading_share, 0.75);
  EXPECT_EQ(again.cache_namespace, "m\"\\\u00e9\n");
  for (const OptionInfo& info : connector_option_table()) {
    EXPECT_NE(options.to_json().find("\"" + std::string(info.name) + "\":"), std::string::npos) << "default included";
  }
  ConnectorOptions binary;
  binary.cache_namespace = "\xff\xfe";
  EXPECT_NE(binary.to_json().find("cache_namespace"), std::string::npos) << "never throws";
}

TEST(Options, ValuesSetInCodeAreCheckedToo) {
  ConnectorOptions options;
  options.transfer_timeout_seconds = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(options.validate().code(), StatusCode::kInvalidArgument);
  options = {};
  options.cpu_bytes_to_use_per_rank = 0;
  EXPECT_EQ(options.validate().code(), StatusCode::kInvalidArgument);
  options = {};
  options.cpu_bytes_to_use = -5;
  EXPECT_NE(options.validate().message().find("cpu_bytes_to_use is -5"), std::string::npos);
}

TEST(SizeText, UnderstandsBytesAndUnits) {
  const std::vector<std::pair<const char*, std::int64_t>> sizes = {{"4096", 4096},
                                                                   {"0", 0},
                                                                   {"64GiB", std::int64_t{64} << 30},
                                                                   {"500MB", 500000000},
                                                                   {"1.5TiB", 1649267441664},
                                                                   {"1KiB", 1024},
                                                                   {"1kB", 1000},
                                                                   {"2MiB", 2097152},
                                                                   {"3GB", 3000000000},
                                                                   {"1TB", 1000000000000},
                                                                   {"7B", 7},
                                                                   {"64gib", std::int64_t{64} << 30},
                                                                   {" 64 GiB ", std::int64_t{64} << 30},
                                                                   {"0.5KiB", 512}};
  for (const auto& [text, bytes] : sizes) {
    const Result<std::int64_t> parsed = parse_size_bytes(text);
    ASSERT_TRUE(parsed.has_value()) << text;
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(SizeText, RefusesEverythingElse) {
  for (const char* text : {"", " ", "GiB", "64GiBs", "64 Gi B", "6 4GiB", "-1", "-1GiB", "nan", "inf", "1e40", "0x10",
                           "1,5GiB", "64GiB64", "99999TiB", "+5"}) {
    const Result<std::int64_t> parsed = parse_size_bytes(text);
    ASSERT_FALSE(parsed.has_value()) << text << " = " << *parsed;
    EXPECT_EQ(parsed.error().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(parsed.error().message().find("\"" + std::string(text) + "\""), std::string::npos);
  }
}

TEST(OptionsPage, IsMadeFromTheTable) {
  std::ifstream file(HOSTKV_SOURCE_DIR "/docs/options.md");
  ASSERT_TRUE(file.good()) << "docs/options.md is missing";
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_EQ(page.str(), connector_options_markdown());
  for (const OptionInfo& info : connector_option_table()) {
    EXPECT_NE(page.str().find("| `" + std::string(info.name) + "` |"), std::string::npos) << info.name;
  }
}

}  // namespace
}  // namespace hostkv::testing
