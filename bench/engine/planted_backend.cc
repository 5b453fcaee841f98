#include "bench/engine/planted_backend.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "bench/engine/forwarding_backend.h"

namespace hostkv::bench {
namespace {

class CorruptingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Result<RegionId> register_region(const RegionDesc& region) override {
    Result<RegionId> id = ForwardingBackend::register_region(region);
    const std::lock_guard lock(mutex_);
    if (id) bases_[*id] = static_cast<std::byte*>(region.base);
    return id;
  }

  // What is loaded was stored before: its bytes are at rest. The last byte belongs to the last token or state, which
  // every continuation reads.
  Status submit(TransferJob job) override {
    if (job.direction == Direction::kLoad && !job.runs.empty()) {
      const std::lock_guard lock(mutex_);
      const CopyRun& run = job.runs.back();
      const auto base = bases_.find(run.src_region);
      if (!has_corrupted_ && base != bases_.end()) {
        base->second[run.src_offset_bytes + run.size_bytes - 1] ^= std::byte{0xFF};
        has_corrupted_ = true;
      }
    }
    return ForwardingBackend::submit(std::move(job));
  }

 private:
  std::mutex mutex_;  // guards the rest: submit and the region calls may come from any thread
  std::unordered_map<RegionId, std::byte*> bases_;
  bool has_corrupted_ = false;
};

class SwappingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Status submit(TransferJob job) override {
    if (job.direction == Direction::kLoad && !swap_two(job.runs) && !job.runs.empty()) swap_halves(job.runs);
    return ForwardingBackend::submit(std::move(job));
  }

 private:
  static bool swap_two(std::vector<CopyRun>& runs) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      for (std::size_t j = i + 1; j < runs.size(); ++j) {
        const bool same_source =
            runs[i].src_region == runs[j].src_region && runs[i].src_offset_bytes == runs[j].src_offset_bytes;
        if (runs[i].size_bytes != runs[j].size_bytes || same_source) continue;
        std::swap(runs[i].src_region, runs[j].src_region);
        std::swap(runs[i].src_offset_bytes, runs[j].src_offset_bytes);
        return true;
      }
    }
    return false;
  }

  // The whole last run as two of half its size; a byte between them, if there is one, stays as it is.
  static void swap_halves(std::vector<CopyRun>& runs) {
    CopyRun first = runs.back();
    const std::int64_t half = first.size_bytes / 2;
    const std::int64_t second_begin = first.size_bytes - half;
    if (half == 0) return;
    CopyRun second = first;
    CopyRun middle = first;
    first.size_bytes = half;
    second.size_bytes = half;
    first.src_offset_bytes += second_begin;
    second.dst_offset_bytes += second_begin;
    middle.src_offset_bytes += half;
    middle.dst_offset_bytes += half;
    middle.size_bytes = second_begin - half;
    runs.back() = first;
    runs.push_back(second);
    if (middle.size_bytes > 0) runs.push_back(middle);
  }
};

class EarlyBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Status submit(TransferJob job) override {
    if (job.direction != Direction::kLoad) return ForwardingBackend::submit(std::move(job));
    TransferResult result{.id = job.id, .status = StatusCode::kOk, .failed_runs = {}, .bytes_moved = 0, .duration = {}};
    for (const CopyRun& run : job.runs) result.bytes_moved += run.size_bytes;
    const std::lock_guard lock(mutex_);
    early_.push_back(std::move(result));
    return {};
  }

  std::size_t poll(std::span<TransferResult> results) override {
    std::size_t count = 0;
    {
      const std::lock_guard lock(mutex_);
      while (count < results.size() && !early_.empty()) {
        results[count++] = std::move(early_.front());
        early_.pop_front();
      }
    }
    return count + ForwardingBackend::poll(results.subspan(count));
  }

  Status wait(JobId job, std::chrono::nanoseconds timeout) override {
    return is_early(job) ? Status() : ForwardingBackend::wait(job, timeout);
  }
  Status cancel(JobId job) override { return is_early(job) ? Status() : ForwardingBackend::cancel(job); }

 private:
  bool is_early(JobId job) {
    const std::lock_guard lock(mutex_);
    return std::any_of(early_.begin(), early_.end(), [job](const TransferResult& result) { return result.id == job; });
  }

  std::mutex mutex_;
  std::deque<TransferResult> early_;
};

}  // namespace

std::unique_ptr<TransferBackend> plant_fault(std::unique_ptr<TransferBackend> backend, Plant plant) {
  switch (plant) {
    case Plant::kCorruptByte:
      return std::make_unique<CorruptingBackend>(std::move(backend));
    case Plant::kSwapBlocks:
      return std::make_unique<SwappingBackend>(std::move(backend));
    case Plant::kLoadBeforeLanded:
      return std::make_unique<EarlyBackend>(std::move(backend));
    case Plant::kNone:
    case Plant::kStoreBeforeCompute:
    case Plant::kTrustDrafts:
    case Plant::kFreeInFlight:
      break;
  }
  return backend;
}

}  // namespace hostkv::bench
