// R25: what would give wrong bytes, or nothing, is refused at construction with group, value and what is allowed.

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/geometry_builders.h"

namespace hostkv::testing {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

void expect_refused(GeometrySpec spec, const std::vector<std::string>& parts) {
  const std::string message = refusal_of(std::move(spec));
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "want \"" << part << "\" in \"" << message << "\"";
  }
}

TEST(Refusal, NamesGroupValueAndRequiredMultipleOfTheHash) {
  EXPECT_EQ(refusal_of({.groups = {full(64), window(64, 9), mamba(48)}, .hash_block_tokens = 32}),
            "group 2 (mamba): block_tokens 48 is not a multiple of the hash block 32; make it a multiple of 32");
  EXPECT_EQ(refusal_of({.groups = {full(24), mamba(32)}, .parallel = dcp_of(2), .hash_block_tokens = 32}),
            "group 0 (full): span 48 (block_tokens 24 x dcp 2) is not a multiple of the hash block 32; make it a "
            "multiple of 32");
}

TEST(Refusal, UsesTheNameOfAGroupThatHasOne) {
  KvCacheGroup named = mamba(48);
  named.name = "layers.1";
  expect_refused({.groups = {full(64), named}, .hash_block_tokens = 32}, {"group 1 'layers.1' (mamba): "});
}

TEST(Refusal, OfAHashOfASingleGroupThatIsNotItsSpan) {
  expect_refused({.groups = {full(24)}, .parallel = dcp_of(4), .hash_block_tokens = 24},
                 {"group 0 (full)", "hash block 24", "set it to 96"});
}

TEST(Refusal, OfAChunkThatBeginsInsideABlock) {
  expect_refused({.groups = {full(16), chunked(16, 24)}},
                 {"group 1 (chunked_local)", "chunk_tokens 24", "make it a multiple of 16"});
}

TEST(Refusal, OfChunksBesideBlocksOfAnotherSize) {
  expect_refused({.groups = {full(64), chunked(8, 32)}}, {"group 1 (chunked_local)", "block_tokens 8", "64"});
}

TEST(Refusal, OfAnInterleaveThatDoesNotDivideEveryShardedBlock) {
  expect_refused({.groups = {full(24), mla(16)}, .parallel = dcp_of(2, 16)},
                 {"group 0 (full)", "block_tokens 24", "interleave_tokens 16", "multiple of 16"});
  EXPECT_EQ(refusal_of({.groups = {full(64), window(16, 32)}, .parallel = dcp_of(2, 32)}), "");
}

TEST(Refusal, OfShardingWhatEveryRankHoldsWhole) {
  for (KvCacheGroup group : {window(16, 32), chunked(16, 32), mamba(16), ring(16)}) {
    group.sharded = true;
    expect_refused({.groups = {full(16), group}, .parallel = dcp_of(2)}, {"group 1", "sharded", "full and mla"});
  }
}

TEST(Refusal, OfDraftFlagsOnKindsThatHaveNone) {
  for (const KvCacheGroup& group : {mamba(16), chunked(16, 32), ring(16)}) {
    expect_refused({.groups = {full(16), draft(group)}}, {"group 1", "eagle", "set it to false"});
  }
}

TEST(Refusal, OfTwoDraftWindowsThatAreLookedUpApart) {
  expect_refused({.groups = {full(16), draft(window(16, 20)), draft(window(16, 80))}},
                 {"group 2 (sliding_window)", "group 1 (sliding_window)", "looked up apart"});
  EXPECT_EQ(refusal_of({.groups = {full(16), draft(window(16, 20)), draft(window(16, 20))}}), "");
  EXPECT_EQ(refusal_of({.groups = {draft(full(16)), draft(window(16, 80))}}), "");
  EXPECT_EQ(refusal_of({.groups = {draft(full(16)), draft(full(32))}}), "");
}

TEST(Refusal, OfCompressionThatBlocksOrHashesCut) {
  KvCacheGroup entries = mla(128);
  entries.tokens_per_entry = 10;
  expect_refused({.groups = {entries}}, {"group 0 (mla)", "block_tokens 128", "multiple of 10"});
  entries.tokens_per_entry = 64;
  expect_refused({.groups = {entries, mamba(128)}, .hash_block_tokens = 16},
                 {"group 0 (mla)", "tokens_per_entry 64", "hash block 16", "multiple of 64"});
}

TEST(Refusal, OfParallelSizesThatDoNotGoTogether) {
  expect_refused({.groups = {full(16)}, .parallel = {.tp = 2, .dcp = 4}}, {"tp 2", "dcp 4", "multiple of 4"});
  expect_refused({.groups = {full(16)}, .parallel = {.tp = 1, .dcp = 2, .pcp = 16}}, {"dcp 2", "pcp 16", "1, 16"});
  expect_refused({.groups = {full(16)}, .parallel = {.tp = 0}}, {"tp 0", "allowed: 1"});
  expect_refused({.groups = {full(16)}, .parallel = {.pp = -1}}, {"pp -1"});
  expect_refused({.groups = {full(16)}, .parallel = {.tp = kHuge, .dcp = kHuge}}, {"tp 9223372036854775807"});
  expect_refused({.groups = {full(16)}, .parallel = {.interleave_tokens = 0}}, {"interleave_tokens 0"});
}

TEST(Refusal, OfFineHitsThatAGroupCannotEnd) {
  expect_refused({.groups = {full(64), window(32, 9)}, .hash_block_tokens = 16, .fine_hits = true},
                 {"group 1 (sliding_window)", "fine_hits", "span 32", "hash block 16"});
}

TEST(Refusal, OfSizesOutOfRange) {
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-16}, kHuge, (std::int64_t{1} << 40) + 1}) {
    expect_refused({.groups = {full(size)}}, {"group 0 (full)", "block_tokens " + std::to_string(size), "allowed: 1"});
    expect_refused({.groups = {full(16), full(16)}, .hash_block_tokens = size}, {"hash_block_tokens"});
    expect_refused({.groups = {window(16, size)}}, {"window_tokens"});
    expect_refused({.groups = {chunked(16, size)}}, {"chunk_tokens"});
  }
  expect_refused({.groups = {window(16, 16, -1)}}, {"extra_retained_tokens -1"});
  KvCacheGroup page = full(16);
  page.page_bytes = -1;
  expect_refused({.groups = {page}}, {"page_bytes -1"});
  page = full(16);
  page.tokens_per_entry = 0;
  expect_refused({.groups = {page}}, {"tokens_per_entry 0"});
}

TEST(Refusal, OfFieldsOfAnotherKind) {
  KvCacheGroup group = full(16);
  group.window_tokens = 64;
  expect_refused({.groups = {group}}, {"group 0 (full)", "window_tokens 64", "sliding_window"});
  group = mamba(16);
  group.chunk_tokens = 64;
  expect_refused({.groups = {group}}, {"group 0 (mamba)", "chunk_tokens 64", "chunked_local"});
}

TEST(Refusal, OfMultiplesAndSpansOverTheLimit) {
  const std::int64_t large = std::int64_t{1} << 40;
  expect_refused({.groups = {full(large)}, .parallel = dcp_of(2)}, {"group 0 (full)", "dcp 2", "largest span"});
  expect_refused({.groups = {full(large), full(large - 1)}}, {"group 1 (full)", "common multiple"});
  EXPECT_EQ(resolved({.groups = {full(large)}}).span_tokens(GroupIndex{0}), large);
}

TEST(Refusal, OfNoGroupAndUnknownKinds) {
  expect_refused({}, {"groups is empty"});
  KvCacheGroup group = full(16);
  group.kind = static_cast<GroupKind>(9);
  expect_refused({.groups = {group}}, {"kind 9 is unknown"});
  group = mamba(16);
  group.mamba_mode = static_cast<MambaMode>(5);
  expect_refused({.groups = {group}}, {"mamba_mode 5 is unknown"});
}

}  // namespace
}  // namespace hostkv::testing
