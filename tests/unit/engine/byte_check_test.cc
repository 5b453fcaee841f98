// The check of the "model" must be able to see a wrong byte: every test here damages one.

#include <gtest/gtest.h>

#include "tests/support/engine_support.h"

namespace hostkv::bench::testing {
namespace {

struct Damage {
  EngineConfig config;
  std::int64_t prompt_tokens = 60;
  std::uint32_t group = 0;
  std::uint32_t rank = 0;
  std::size_t block_index = 0;
  std::int64_t offset_bytes = 0;
};

// Damages one byte after the prompt was computed, then decodes; answers what the check saw.
EngineStats decode_after(const Damage& damage) {
  const auto engine = make_engine(damage.config);
  const Result<RequestId> id =
      engine->add_request({.prompt_tokens = make_prompt(damage.prompt_tokens), .max_new_tokens = 3});
  while (engine->request(*id)->num_output_tokens() == 0) EXPECT_TRUE(engine->step().ok());
  EXPECT_EQ(engine->stats().bytes_wrong, 0);
  const BlockId block = engine->request(*id)->tables[damage.group][damage.block_index];
  engine->corrupt_device_byte(RankIndex{damage.rank}, GroupIndex{damage.group}, block, damage.offset_bytes);
  EXPECT_TRUE(engine->run_until_idle().ok());
  return engine->stats();
}

TEST(ByteCheck, SeesOneByteInEveryRowOfFullAttention) {
  const EngineConfig config = device_config({full(16)}, 20);
  for (std::int64_t row = 0; row < 60; ++row) {
    const EngineStats stats = decode_after(
        {.config = config, .block_index = static_cast<std::size_t>(row / 16), .offset_bytes = row % 16 * 8 + 7});
    EXPECT_EQ(stats.bytes_wrong, 2) << "in each of two steps";
    ASSERT_TRUE(stats.first_wrong);
    EXPECT_EQ(stats.first_wrong->position, row);
    EXPECT_EQ(stats.first_wrong->what.substr(0, 14), "expected byte ");
  }
}

TEST(ByteCheck, SeesOneByteOnTheRankThatOwnsTheRow) {
  for (const std::int64_t interleave : {1, 4, 16}) {
    EngineConfig config = device_config({mla(16, true)}, 20);
    config.geometry.parallel.dcp = 4;
    config.geometry.parallel.interleave_tokens = interleave;
    const Geometry& geometry = make_engine(config)->geometry();
    static_cast<void>(geometry);
    const auto engine = make_engine(config);
    for (const std::int64_t token : {0, 5, 37, 59}) {
      const TokenPlace place = engine->geometry().place_of_token(GroupIndex{0}, token);
      const EngineStats stats = decode_after({.config = config,
                                              .rank = static_cast<std::uint32_t>(place.rank),
                                              .block_index = static_cast<std::size_t>(place.block_index),
                                              .offset_bytes = place.slot_in_block * 8});
      ASSERT_TRUE(stats.first_wrong) << "interleave " << interleave << " token " << token;
      EXPECT_EQ(stats.first_wrong->position, token);
      EXPECT_EQ(stats.first_wrong->rank, place.rank);
    }
  }
}

TEST(ByteCheck, DoesNotReadRowsOutsideTheWindow) {
  const EngineConfig config = device_config({window(16, 20)}, 20);
  // Token 60 is decoded first and reads from 41 on: row 9 of block 2.
  EXPECT_EQ(decode_after({.config = config, .block_index = 2, .offset_bytes = 8 * 8}).bytes_wrong, 0);
  EXPECT_EQ(decode_after({.config = config, .block_index = 2, .offset_bytes = 9 * 8}).bytes_wrong, 1);
}

TEST(ByteCheck, DoesNotReadRowsOfEarlierChunks) {
  const EngineConfig config = device_config({chunked(16, 32)}, 20);
  EXPECT_EQ(decode_after({.config = config, .block_index = 1, .offset_bytes = 15 * 8}).bytes_wrong, 0);
  EXPECT_EQ(decode_after({.config = config, .block_index = 2, .offset_bytes = 0}).bytes_wrong, 2);
}

TEST(ByteCheck, AWrongStateIsWrongAgainInTheNextStep) {
  for (const MambaMode mode : {MambaMode::kAlign, MambaMode::kAll, MambaMode::kNone}) {
    const EngineConfig config = device_config({mamba(16, mode)}, 20);
    const std::size_t running_block = mode == MambaMode::kNone ? 0 : 3;
    const EngineStats stats = decode_after({.config = config, .block_index = running_block, .offset_bytes = 63});
    EXPECT_GE(stats.bytes_wrong, 2) << static_cast<int>(mode);
    ASSERT_TRUE(stats.first_wrong);
    EXPECT_EQ(stats.first_wrong->position, 60);
  }
}

TEST(ByteCheck, SeesADamagedRing) {
  const EngineConfig config = device_config({full(16), ring(16)}, 20);
  EXPECT_EQ(decode_after({.config = config, .group = 1, .offset_bytes = 13 * 8}).bytes_wrong, 2);
}

TEST(ByteCheck, OffReadsNothing) {
  EngineConfig config = device_config({full(16)}, 20);
  config.check = CheckBytes::kOff;
  const auto engine = make_engine(config);
  run_prompt(*engine, make_prompt(60), 5);
  EXPECT_EQ(engine->stats().bytes_checked, 0);
}

TEST(ByteCheck, SampledReadsOneRequestOfSixteen) {
  EngineConfig config = device_config({full(16)}, 20);
  config.check = CheckBytes::kSampled;
  const auto engine = make_engine(config);
  std::int64_t num_checked = 0;
  for (std::int32_t i = 0; i < 32; ++i) {
    const std::int64_t before = engine->stats().bytes_checked;
    run_prompt(*engine, make_prompt(60, i + 1), 2);
    num_checked += engine->stats().bytes_checked > before ? 1 : 0;
  }
  EXPECT_EQ(num_checked, 2);
}

TEST(ByteCheck, CountsAllRowsThatAttentionReads) {
  const auto engine = make_engine(device_config({full(16)}, 20));
  run_prompt(*engine, make_prompt(60), 3);
  EXPECT_EQ(engine->stats().bytes_checked, (60 + 61) * 8);
}

}  // namespace
}  // namespace hostkv::bench::testing
