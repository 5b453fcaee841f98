#include "connector/step_metadata.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>

#include "offload/offload_key.h"
#include "tests/support/test_seed.h"
#include "tests/unit/connector/allocation_probe.h"

namespace hostkv::testing {
namespace {

constexpr std::size_t kJobsAt = 24;      // u32 number of jobs
constexpr std::size_t kFirstJobAt = 28;  // u64 id, u8 direction, 3 zeros, u32 blocks
constexpr std::size_t kBlocksAt = kFirstJobAt + 12;

StepMetadata sample() {
  StepMetadata metadata{.epoch = 3, .sequence = 41, .jobs = {}};
  metadata.jobs.push_back({JobId{7}, Direction::kLoad, {{GroupIndex{0}, BlockId{5}, make_slot_id(2, 1)}}});
  metadata.jobs.push_back({JobId{8},
                           Direction::kStore,
                           {{GroupIndex{1}, BlockId{6}, make_slot_id(0, 3)}, {GroupIndex{0}, BlockId{9}, SlotId{0}}}});
  metadata.jobs.push_back(
      {JobId{9}, Direction::kDeviceCopy, {StepBlock::device_copy(GroupIndex{1}, BlockId{0x11223344}, BlockId{12})}});
  return metadata;
}

// With a namespace of seed 0 the fingerprint is the checksum of the wire form.
void seal(std::vector<std::byte>& bytes) {
  std::uint64_t sum = make_namespace_fingerprint(0, std::span(bytes).first(bytes.size() - 8));
  for (std::size_t i = 0; i < 8; ++i, sum >>= 8U) {
    bytes[bytes.size() - 8 + i] = static_cast<std::byte>(sum & 0xFFU);
  }
}

void put_u32(std::vector<std::byte>& bytes, std::size_t at, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i, value >>= 8U) {
    bytes[at + i] = static_cast<std::byte>(value & 0xFFU);
  }
}

std::string refusal_of(std::span<const std::byte> bytes) {
  const Result<StepMetadata> decoded = decode_step_metadata(bytes);
  if (decoded) {
    return "";
  }
  EXPECT_EQ(decoded.error().code(), StatusCode::kInvalidArgument);
  return decoded.error().message();
}

void expect_refused(std::span<const std::byte> bytes, const std::string& part) {
  EXPECT_NE(refusal_of(bytes).find(part), std::string::npos) << "want \"" << part << "\" in " << refusal_of(bytes);
}

template <class Engine>
StepMetadata random_metadata(Engine& random) {
  StepMetadata metadata{.epoch = random(), .sequence = random(), .jobs = {}};
  metadata.jobs.resize(random() % 5);
  for (StepJob& job : metadata.jobs) {
    job.id = JobId{random()};
    job.direction = static_cast<Direction>(random() % kNumDirections);
    job.blocks.resize(random() % 20);
    for (StepBlock& block : job.blocks) {
      block = {GroupIndex{static_cast<std::uint32_t>(random())}, BlockId{static_cast<std::uint32_t>(random())},
               SlotId{random()}};
    }
  }
  return metadata;
}

TEST(StepMetadata, ComesBackAsItWas) {
  const std::uint64_t seed = test_seed(20260301);
  SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (std::uint64_t round = 0; round < test_rounds(300); ++round) {
    const StepMetadata metadata = random_metadata(random);
    const Result<StepMetadata> decoded = decode_step_metadata(encode_step_metadata(metadata));
    ASSERT_TRUE(decoded.has_value()) << decoded.error().message();
    ASSERT_EQ(*decoded, metadata);
  }
  EXPECT_EQ(*decode_step_metadata(encode_step_metadata({})), StepMetadata{});
}

// The wire form is a promise between processes of different builds.
TEST(StepMetadata, HasTheWireFormThatIsWrittenDown) {
  const std::vector<std::byte> bytes = encode_step_metadata(sample());
  ASSERT_EQ(bytes.size(), 28U + 16 + 16 + 16 + 32 + 16 + 16 + 8);
  const std::array<unsigned char, 48> begin = {'H', 'K', 'V', 'S', 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0,
                                               41,  0,   0,   0,   0, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0,
                                               0,   0,   0,   0,   1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(std::memcmp(bytes.data(), begin.data(), begin.size()), 0);
  EXPECT_EQ(std::to_integer<int>(bytes[48]), 5) << "block";
  EXPECT_EQ(std::to_integer<int>(bytes[54]), 2) << "slab";
  const std::array<unsigned char, 24> copy = {2,  0, 0, 0, 1,    0,    0,    0,    1, 0, 0, 0,
                                              12, 0, 0, 0, 0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0};
  EXPECT_EQ(std::memcmp(bytes.data() + 116, copy.data(), copy.size()), 0) << "direction, blocks, group, target, source";
}

TEST(StepMetadata, NamesNoBlockAsTheSourceWhereTheNumberIsTooBigForOne) {
  EXPECT_EQ(StepBlock::device_copy(GroupIndex{1}, BlockId{7}, BlockId{8}),
            (StepBlock{GroupIndex{1}, BlockId{8}, SlotId{7}}));
  EXPECT_EQ((StepBlock{GroupIndex{1}, BlockId{8}, SlotId{0xFFFFFFFF}}).source(), BlockId{0xFFFFFFFF});
  EXPECT_EQ((StepBlock{GroupIndex{1}, BlockId{8}, SlotId{0x100000007}}).source(), kNullBlock);
}

TEST(StepMetadata, RefusesEveryFlippedBit) {
  std::vector<std::byte> bytes = encode_step_metadata(sample());
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(refusal_of(bytes), "") << "bit " << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_EQ(refusal_of(bytes), "");
}

TEST(StepMetadata, RefusesEveryTruncationAndEveryTail) {
  std::vector<std::byte> bytes = encode_step_metadata(sample());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(refusal_of(std::span(bytes).first(size)), "") << size << " bytes";
  }
  for (const std::size_t extra : {1U, 8U, 16U, 32U}) {
    std::vector<std::byte> longer = bytes;
    longer.resize(bytes.size() + extra);
    EXPECT_NE(refusal_of(longer), "");
    seal(longer);
    expect_refused(longer, std::to_string(extra) + " bytes too many");
  }
}

TEST(StepMetadata, CutsThatAreSealedAgainAreRefusedToo) {
  const std::vector<std::byte> bytes = encode_step_metadata(sample());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    if (size >= 8) {
      seal(cut);
    }
    EXPECT_NE(refusal_of(cut), "") << size << " bytes";
  }
}

TEST(StepMetadata, NamesBothVersionsAndWhatElseIsWrong) {
  std::vector<std::byte> bytes = encode_step_metadata(sample());
  bytes[4] = std::byte{1};
  seal(bytes);
  expect_refused(bytes, "version 1; this build reads version 2");
  bytes[4] = std::byte{2};
  bytes[5] = std::byte{1};
  seal(bytes);
  expect_refused(bytes, "version 258");
  bytes[5] = std::byte{0};
  bytes[0] = std::byte{'h'};
  seal(bytes);
  expect_refused(bytes, "does not begin with HKVS");
  bytes[0] = std::byte{'H'};
  bytes[6] = std::byte{1};
  seal(bytes);
  expect_refused(bytes, "reserved");
  bytes[6] = std::byte{0};
  bytes[kFirstJobAt + 8] = std::byte{3};
  seal(bytes);
  expect_refused(bytes, "direction 3; 0, 1 or 2 is allowed");
  bytes[kFirstJobAt + 8] = std::byte{1};
  for (const std::size_t zero : {9U, 10U, 11U}) {
    bytes[kFirstJobAt + zero] = std::byte{1};
    seal(bytes);
    expect_refused(bytes, "job 7");
    bytes[kFirstJobAt + zero] = std::byte{0};
  }
  seal(bytes);
  EXPECT_EQ(refusal_of(bytes), "");
}

TEST(StepMetadata, AllocatesNoMoreThanTheMessageAllows) {
  for (const std::uint32_t count : {5U, 100U, 0x00FFFFFFU, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
    for (const std::size_t at : {kJobsAt, kBlocksAt}) {
      std::vector<std::byte> bytes = encode_step_metadata(sample());
      put_u32(bytes, at, count);
      seal(bytes);
      const AllocationProbe probe;
      const std::string refusal = refusal_of(bytes);
      EXPECT_NE(refusal, "") << count << " at " << at;
      EXPECT_LE(probe.largest_bytes(), 16 * bytes.size()) << count << " at " << at;
    }
  }
}

TEST(StepMetadata, GarbageIsRefusedOrHarmless) {
  const std::uint64_t seed = test_seed(20260302);
  SCOPED_TRACE("HOSTKV_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uint64_t accepted = 0;
  for (std::uint64_t round = 0; round < test_rounds(4000); ++round) {
    std::vector<std::byte> bytes = encode_step_metadata(random_metadata(random));
    if (round % 4 == 0) {
      bytes.resize(random() % 100);
      std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
    }
    for (std::uint64_t changes = random() % 4; changes > 0 && !bytes.empty(); --changes) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    if (bytes.size() >= 8) {
      seal(bytes);
    }
    const Result<StepMetadata> decoded = decode_step_metadata(bytes);
    if (decoded) {
      ++accepted;
      ASSERT_EQ(encode_step_metadata(*decoded), bytes) << "what is accepted has one wire form";
    }
  }
  EXPECT_GT(accepted, 0U);
}

}  // namespace
}  // namespace hostkv::testing
