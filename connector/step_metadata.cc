#include "connector/step_metadata.h"

#include <xxhash.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace hostkv {
namespace {

constexpr std::array<std::byte, 4> kMagic = {std::byte{'H'}, std::byte{'K'}, std::byte{'V'}, std::byte{'S'}};
constexpr std::size_t kHeaderBytes = 28;
constexpr std::size_t kJobBytes = 16;
constexpr std::size_t kBlockBytes = 16;
constexpr std::size_t kChecksumBytes = 8;

// Reads with bounds: once a read went past the end, ok() is false and all values are 0.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class Int>
  Int get() {
    if (bytes_.size() - at_ < sizeof(Int)) {
      ok_ = false;
      at_ = bytes_.size();
      return Int{0};
    }
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(Int); ++i) {
      value |= static_cast<std::uint64_t>(bytes_[at_ + i]) << (8 * i);
    }
    at_ += sizeof(Int);
    return static_cast<Int>(value);
  }

  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] std::size_t remaining() const { return bytes_.size() - at_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

tl::unexpected<Status> bad(const std::string& what) {
  return error(StatusCode::kInvalidArgument, "step metadata refused: " + what);
}

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Result<StepJob> decode_job(Reader& reader) {
  StepJob job;
  job.id = JobId{reader.get<std::uint64_t>()};
  const auto direction = reader.get<std::uint8_t>();
  const auto zero = static_cast<std::uint32_t>(reader.get<std::uint8_t>()) + reader.get<std::uint16_t>();
  const auto num_blocks = reader.get<std::uint32_t>();
  if (!reader.ok() || num_blocks > reader.remaining() / kBlockBytes) {
    return bad("job " + std::to_string(job.id.value()) + " is cut");
  }
  if (direction >= kNumDirections || zero != 0) {
    return bad("job " + std::to_string(job.id.value()) + " has direction " + std::to_string(direction) +
               "; 0, 1 or 2 is allowed");
  }
  job.direction = static_cast<Direction>(direction);
  job.blocks.reserve(num_blocks);
  for (std::uint32_t i = 0; i < num_blocks; ++i) {
    const auto group = reader.get<std::uint32_t>();
    const auto block = reader.get<std::uint32_t>();
    const auto slot = reader.get<std::uint64_t>();
    job.blocks.push_back(StepBlock{GroupIndex{group}, BlockId{block}, SlotId{slot}});
  }
  return job;
}

Status check_envelope(std::span<const std::byte> bytes) {
  const auto refused = [](const std::string& what) {
    return Status{StatusCode::kInvalidArgument, "step metadata refused: " + what};
  };
  if (bytes.size() < kHeaderBytes + kChecksumBytes) {
    return refused(std::to_string(bytes.size()) + " bytes; at least " + std::to_string(kHeaderBytes + kChecksumBytes) +
                   " are needed");
  }
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return refused("it does not begin with HKVS");
  }
  Reader version_reader(bytes.subspan(kMagic.size()));
  if (const auto version = version_reader.get<std::uint16_t>(); version != kStepMetadataVersion) {
    return refused("version " + std::to_string(version) + "; this build reads version " +
                   std::to_string(kStepMetadataVersion));
  }
  Reader checksum_reader(bytes.last(kChecksumBytes));
  if (checksum_reader.get<std::uint64_t>() != checksum_of(bytes.first(bytes.size() - kChecksumBytes))) {
    return refused("its checksum does not fit its " + std::to_string(bytes.size()) +
                   " bytes (cut or changed on the way)");
  }
  return {};
}

}  // namespace

StepMetadataWriter::StepMetadataWriter(std::uint64_t epoch, std::uint64_t sequence, std::size_t num_jobs,
                                       std::size_t num_blocks)
    : bytes_(kHeaderBytes + kJobBytes * num_jobs + kBlockBytes * num_blocks + kChecksumBytes), at_(bytes_.data()) {
  std::memcpy(at_, kMagic.data(), kMagic.size());
  at_ += kMagic.size();
  put(kStepMetadataVersion);
  put(std::uint16_t{0});
  put(epoch);
  put(sequence);
  put(static_cast<std::uint32_t>(num_jobs));
}

void StepMetadataWriter::begin_job(JobId id, Direction direction, std::size_t num_blocks) {
  put(id.value());
  put(static_cast<std::uint32_t>(direction));  // one byte and three zeros
  put(static_cast<std::uint32_t>(num_blocks));
}

std::vector<std::byte> StepMetadataWriter::finish() {
  const std::size_t written = bytes_.size() - kChecksumBytes;
  HOSTKV_CHECK(at_ == bytes_.data() + written, "a step's message has the jobs and blocks that were announced");
  put(checksum_of(std::span<const std::byte>(bytes_).first(written)));
  return std::move(bytes_);
}

std::vector<std::byte> encode_step_metadata(const StepMetadata& metadata) {
  std::size_t num_blocks = 0;
  for (const StepJob& job : metadata.jobs) {
    num_blocks += job.blocks.size();
  }
  StepMetadataWriter writer(metadata.epoch, metadata.sequence, metadata.jobs.size(), num_blocks);
  for (const StepJob& job : metadata.jobs) {
    writer.begin_job(job.id, job.direction, job.blocks.size());
    for (const StepBlock& block : job.blocks) {
      writer.add_block(block);
    }
  }
  return writer.finish();
}

Result<StepMetadata> decode_step_metadata(std::span<const std::byte> bytes) {
  if (Status status = check_envelope(bytes); !status.ok()) {
    return error(std::move(status));
  }
  Reader reader(bytes.first(bytes.size() - kChecksumBytes).subspan(kMagic.size() + sizeof(std::uint16_t)));
  StepMetadata metadata;
  if (reader.get<std::uint16_t>() != 0) {
    return bad("its reserved field is not zero");
  }
  metadata.epoch = reader.get<std::uint64_t>();
  metadata.sequence = reader.get<std::uint64_t>();
  const auto num_jobs = reader.get<std::uint32_t>();
  if (num_jobs > reader.remaining() / kJobBytes) {
    return bad(std::to_string(num_jobs) + " jobs announced, " + std::to_string(reader.remaining()) + " bytes left");
  }
  metadata.jobs.reserve(num_jobs);
  for (std::uint32_t i = 0; i < num_jobs; ++i) {
    Result<StepJob> job = decode_job(reader);
    if (!job) {
      return error(std::move(job.error()));
    }
    metadata.jobs.push_back(std::move(*job));
  }
  if (reader.remaining() != 0) {
    return bad(std::to_string(reader.remaining()) + " bytes too many");
  }
  return metadata;
}

}  // namespace hostkv
