// A minimum over the threads of one process.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "hostkv/recovery.h"

namespace hostkv {
namespace {

constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20U;
// A deadline so far away stays inside the clock's range.
constexpr std::chrono::nanoseconds kLongestWait = std::chrono::hours(24 * 365);

// What the ranks share. Each round of calls has a sum of its own, and two of them are enough: nobody enters a round
// before all have come to the one before, so all have left the one before that.
class Meeting {
 public:
  Meeting(std::int64_t num_ranks, std::chrono::nanoseconds timeout)
      : num_ranks_(num_ranks), timeout_(std::min(timeout, kLongestWait)) {}

  Status all_reduce_min(RankIndex rank, std::span<std::uint8_t> bytes) {
    std::unique_lock lock(mutex_);
    if (!broken_.ok()) {
      return after_break();
    }
    const std::uint64_t round = num_rounds_;
    std::vector<std::uint8_t>& least = least_[round % 2];
    if (num_arrived_ == 0) {
      least.assign(bytes.begin(), bytes.end());
    } else if (least.size() != bytes.size()) {
      break_with({StatusCode::kInvalidArgument,
                  fmt::format("rank {} came with {} bytes, a rank before it with {}; the collective is broken",
                              rank.value(), bytes.size(), least.size())});
      return broken_;
    } else {
      std::ranges::transform(least, bytes, least.begin(),
                             [](std::uint8_t a, std::uint8_t b) { return std::min(a, b); });
    }
    if (++num_arrived_ == num_ranks_) {
      num_arrived_ = 0;
      ++num_rounds_;
      changed_.notify_all();
    } else if (Status status = wait_for_end(lock, round); !status.ok()) {
      return status;
    }
    std::ranges::copy(least, bytes.begin());
    return {};
  }

  void leave(RankIndex rank) {
    const std::lock_guard lock(mutex_);
    if (broken_.ok()) {
      break_with({StatusCode::kUnavailable, fmt::format("rank {} has left; the collective is broken", rank.value())});
    }
  }

  [[nodiscard]] std::int64_t num_ranks() const { return num_ranks_; }

 private:
  Status wait_for_end(std::unique_lock<std::mutex>& lock, std::uint64_t round) {
    const bool in_time = changed_.wait_until(lock, std::chrono::steady_clock::now() + timeout_,
                                             [&] { return num_rounds_ != round || !broken_.ok(); });
    if (num_rounds_ != round) {
      return {};  // this round was whole, whatever has happened since
    }
    if (!in_time) {
      break_with(
          {StatusCode::kDeadlineExceeded, fmt::format("{} of {} ranks came within {} ns; the collective is broken",
                                                      num_arrived_, num_ranks_, timeout_.count())});
    }
    return broken_;
  }

  void break_with(Status why) {
    broken_ = std::move(why);
    changed_.notify_all();
  }
  [[nodiscard]] Status after_break() const {
    return {StatusCode::kUnavailable, fmt::format("the collective broke before: {}", broken_.to_string())};
  }

  const std::int64_t num_ranks_;
  const std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<std::vector<std::uint8_t>, 2> least_;
  std::int64_t num_arrived_ = 0;  // in the round that has begun
  std::uint64_t num_rounds_ = 0;  // that are whole
  Status broken_;
};

class InProcessCollective final : public Collective {
 public:
  InProcessCollective(std::shared_ptr<Meeting> meeting, RankIndex rank) : meeting_(std::move(meeting)), rank_(rank) {}
  InProcessCollective(const InProcessCollective&) = delete;
  InProcessCollective& operator=(const InProcessCollective&) = delete;
  ~InProcessCollective() override { meeting_->leave(rank_); }

  [[nodiscard]] std::int64_t num_ranks() const override { return meeting_->num_ranks(); }
  [[nodiscard]] RankIndex rank() const override { return rank_; }
  Status all_reduce_min(std::span<std::uint8_t> bytes) override { return meeting_->all_reduce_min(rank_, bytes); }

 private:
  std::shared_ptr<Meeting> meeting_;  // shared: the last rank to go takes it along
  RankIndex rank_;
};

}  // namespace

Result<std::vector<std::unique_ptr<Collective>>> create_in_process_collective(std::int64_t num_ranks,
                                                                              std::chrono::nanoseconds timeout) {
  if (num_ranks < 1 || num_ranks > kMaxRanks) {
    return error(StatusCode::kInvalidArgument,
                 fmt::format("num_ranks {} is out of range; allowed: 1 to {}", num_ranks, kMaxRanks));
  }
  if (timeout <= std::chrono::nanoseconds(0)) {
    return error(StatusCode::kInvalidArgument,
                 fmt::format("timeout {} ns is out of range; allowed: more than 0", timeout.count()));
  }
  const auto meeting = std::make_shared<Meeting>(num_ranks, timeout);
  std::vector<std::unique_ptr<Collective>> ranks;
  for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(std::make_unique<InProcessCollective>(meeting, RankIndex{rank}));
  }
  return ranks;
}

}  // namespace hostkv
