// The collective of one process: every rank gets the minimum or the same kind of failure, and nobody waits for ever.
// Both orders of the threads lead to the same answers, so nothing here waits for a moment.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "hostkv/recovery.h"

namespace hostkv::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Ranks = std::vector<std::unique_ptr<Collective>>;

constexpr std::chrono::minutes kLong{5};
constexpr std::chrono::milliseconds kShort{1};

Ranks make(std::int64_t num_ranks, std::chrono::nanoseconds timeout = kLong) {
  return create_in_process_collective(num_ranks, timeout).value();
}

// Calls `body(rank)` on a thread of its own for each rank, and waits for all.
template <class Body>
void on_all(std::size_t num_ranks, Body body) {
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&body, rank] { body(rank); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(InProcessCollective, GivesEveryRankTheLeastOfEachByte) {
  const Ranks ranks = make(3);
  std::vector<Bytes> bytes = {{1, 9, 3, 255}, {4, 2, 3, 254}, {7, 7, 0, 255}};
  on_all(3, [&](std::size_t rank) {
    EXPECT_EQ(ranks[rank]->num_ranks(), 3);
    EXPECT_EQ(ranks[rank]->rank(), RankIndex{static_cast<std::uint32_t>(rank)});
    EXPECT_EQ(ranks[rank]->all_reduce_min(bytes[rank]), Status());
  });
  for (const Bytes& least : bytes) {
    EXPECT_EQ(least, (Bytes{1, 2, 0, 254}));
  }
}

TEST(InProcessCollective, OfOneRankGivesItsOwnBytesBack) {
  const Ranks ranks = make(1, kShort);
  Bytes bytes = {5, 0};
  EXPECT_EQ(ranks[0]->all_reduce_min(bytes), Status());
  EXPECT_EQ(bytes, (Bytes{5, 0}));
  EXPECT_EQ(ranks[0]->all_reduce_min({}), Status()) << "no bytes are a call too";
}

// R22: a call belongs to the round it is made in, however far a fast rank is ahead of a slow one.
TEST(InProcessCollective, KeepsTheRoundsApartInTheOrderOfTheCalls) {
  constexpr std::size_t kRanks = 4;
  constexpr int kRounds = 500;
  const Ranks ranks = make(kRanks);
  std::vector<int> wrong(kRanks);
  on_all(kRanks, [&](std::size_t rank) {
    for (int round = 0; round < kRounds; ++round) {
      const auto least = static_cast<std::uint8_t>(round % 200);
      const auto add = (static_cast<std::size_t>(round) + rank) % kRanks;
      Bytes bytes(1 + static_cast<std::size_t>(round % 7), static_cast<std::uint8_t>(least + add));
      const bool good = ranks[rank]->all_reduce_min(bytes).ok();
      wrong[rank] += good && std::ranges::all_of(bytes, [&](auto byte) { return byte == least; }) ? 0 : 1;
    }
  });
  EXPECT_EQ(wrong, std::vector<int>(kRanks));
}

TEST(InProcessCollective, GivesUpWhenARankDoesNotComeInTimeAndStaysBroken) {
  const Ranks ranks = make(2, kShort);
  Bytes bytes = {1};
  EXPECT_EQ(ranks[0]->all_reduce_min(bytes).code(), StatusCode::kDeadlineExceeded);
  const Status late = ranks[1]->all_reduce_min(bytes);
  EXPECT_EQ(late.code(), StatusCode::kUnavailable);
  EXPECT_NE(late.message().find("1 of 2 ranks came"), std::string::npos) << late.message();
  EXPECT_EQ(ranks[0]->all_reduce_min(bytes).code(), StatusCode::kUnavailable);
}

TEST(InProcessCollective, TellsAllThatWaitWhenOneIsMissing) {
  const Ranks ranks = make(3, kShort);
  std::vector<StatusCode> codes(3);
  on_all(2, [&](std::size_t rank) {
    Bytes bytes = {1};
    codes[rank] = ranks[rank]->all_reduce_min(bytes).code();
  });
  // One that came after the other had given up finds it broken.
  EXPECT_EQ(std::ranges::count(codes, StatusCode::kOk), 1) << "the third was not there";
  EXPECT_GE(std::ranges::count(codes, StatusCode::kDeadlineExceeded), 1);
}

TEST(InProcessCollective, AnswersUnavailableWhenARankIsLost) {
  Ranks ranks = make(3);
  std::vector<StatusCode> codes(3);
  std::thread loser([&] { ranks[2].reset(); });
  on_all(2, [&](std::size_t rank) {
    Bytes bytes = {1};
    codes[rank] = ranks[rank]->all_reduce_min(bytes).code();
  });
  loser.join();
  EXPECT_EQ(codes[0], StatusCode::kUnavailable);
  EXPECT_EQ(codes[1], StatusCode::kUnavailable);
  Bytes bytes = {1};
  EXPECT_EQ(ranks[0]->all_reduce_min(bytes).code(), StatusCode::kUnavailable);
}

// A rank that leaves behind its last call does not take the others' answer away.
TEST(InProcessCollective, ARankMayLeaveAfterARoundThatWasWhole) {
  for (int turn = 0; turn < 50; ++turn) {
    Ranks ranks = make(3);
    std::vector<Bytes> bytes(3, Bytes{3});
    bytes[1] = {2};
    on_all(3, [&](std::size_t rank) {
      EXPECT_EQ(ranks[rank]->all_reduce_min(bytes[rank]), Status());
      ranks[rank].reset();
    });
    EXPECT_EQ(bytes, std::vector<Bytes>(3, Bytes{2}));
  }
}

TEST(InProcessCollective, RefusesDifferentSizesOnAllRanks) {
  const Ranks ranks = make(2);
  std::vector<StatusCode> codes(2);
  on_all(2, [&](std::size_t rank) {
    Bytes bytes(rank + 1);
    codes[rank] = ranks[rank]->all_reduce_min(bytes).code();
  });
  EXPECT_EQ(codes, std::vector<StatusCode>(2, StatusCode::kInvalidArgument));
  Bytes bytes(1);
  EXPECT_EQ(ranks[0]->all_reduce_min(bytes).code(), StatusCode::kUnavailable);
  EXPECT_EQ(ranks[1]->all_reduce_min(bytes).code(), StatusCode::kUnavailable);
}

TEST(InProcessCollective, IsRefusedWithoutRanksOrTime) {
  EXPECT_EQ(create_in_process_collective(0, kLong).error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(create_in_process_collective((1 << 20) + 1, kLong).error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(create_in_process_collective(2, std::chrono::nanoseconds(0)).error().code(), StatusCode::kInvalidArgument);
  const Ranks ranks = make(1, std::chrono::nanoseconds::max());  // for ever stays inside the clock's range
  Bytes bytes = {1};
  EXPECT_EQ(ranks[0]->all_reduce_min(bytes), Status());
}

}  // namespace
}  // namespace hostkv::testing
