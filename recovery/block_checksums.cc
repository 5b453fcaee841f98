#include "recovery/block_checksums.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "offload/deadline.h"

#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // the same sums, with the widest instructions that the machine has
#else
#include <xxhash.h>
#endif

namespace hostkv {
namespace {

constexpr std::uint64_t kNothing = 0;

std::uint64_t checksum(std::span<const std::byte> bytes) {
  const std::uint64_t sum = XXH3_64bits(bytes.data(), bytes.size());
  return sum == kNothing ? 1 : sum;
}

}  // namespace

BlockChecksums::BlockChecksums(ChecksumMode mode, std::size_t num_places, std::int64_t num_threads)
    : mode_(mode),
      sums_(mode == ChecksumMode::kOff ? 0 : num_places, kNothing),
      stores_("hostkv-sum", num_threads),
      loads_("hostkv-verify", num_threads) {}

// Spread by multiplication: the first place of every slab would else be sampled always or never.
bool BlockChecksums::covers(std::size_t place) const {
  constexpr std::uint64_t kOddFraction = 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio
  constexpr unsigned kTopBits = 64 - 4;
  static_assert(kSampledOneIn == std::size_t{1} << 4U);
  return place < sums_.size() && (mode_ == ChecksumMode::kAll || (place * kOddFraction) >> kTopBits == 0);
}

bool BlockChecksums::record(JobId job, std::vector<Block> blocks) {
  return start(stores_, &BlockChecksums::record_now, job, std::move(blocks));
}

bool BlockChecksums::verify(JobId job, std::vector<Block> blocks) {
  return start(loads_, &BlockChecksums::verify_now, job, std::move(blocks));
}

bool BlockChecksums::start(Lane& lane, Work work, JobId job, std::vector<Block> blocks) {
  if (!std::ranges::any_of(blocks, [&](const Block& block) { return covers(block.place); })) {
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    ++jobs_in_flight_;
  }
  lane.stream.enqueue([this, work, job, blocks = std::move(blocks)] { (this->*work)(job, blocks); });
  return true;
}

void BlockChecksums::record_now(JobId job, std::span<const Block> blocks) {
  stores_.team.run(std::ssize(blocks), [&](std::int64_t i) {
    const Block& block = blocks[static_cast<std::size_t>(i)];
    if (covers(block.place)) {
      sums_[block.place] = checksum(block.bytes);
    }
  });
  end_job(Result{job, {}});
}

void BlockChecksums::verify_now(JobId job, std::span<const Block> blocks) {
  std::vector<std::uint8_t> changed(blocks.size(), 0);
  loads_.team.run(std::ssize(blocks), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    const Block& block = blocks[at];
    if (covers(block.place) && sums_[block.place] != kNothing) {
      changed[at] = checksum(block.bytes) != sums_[block.place] ? 1 : 0;
    }
  });
  Result result{job, {}};
  for (std::size_t i = 0; i < changed.size(); ++i) {
    if (changed[i] != 0) {
      result.changed.push_back(static_cast<std::uint32_t>(i));
    }
  }
  end_job(std::move(result));
}

void BlockChecksums::end_job(Result result) {
  const std::lock_guard lock(mutex_);
  results_.push_back(std::move(result));
  if (--jobs_in_flight_ == 0) {
    idle_.notify_all();
  }
}

void BlockChecksums::take(std::vector<Result>& results) {
  const std::lock_guard lock(mutex_);
  results.insert(results.end(), std::make_move_iterator(results_.begin()), std::make_move_iterator(results_.end()));
  results_.clear();
}

bool BlockChecksums::drain(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, deadline_after(timeout), [this] { return jobs_in_flight_ == 0; });
}

}  // namespace hostkv
