#include "bench/cli/replay_cells.h"

#include <algorithm>
#include <array>
#include <limits>

#include "bench/cli/common_options.h"
#include "bench/cli/memory_check.h"
#include "bench/cli/values.h"
#include "bench/replay/memory.h"
#include "bench/replay/workload.h"

namespace hostkv::bench {
namespace {

constexpr std::int64_t kMaxBlocks = 16'777'216;
constexpr std::int64_t kMaxRequests = 10'000'000;
constexpr std::array<std::string_view, 3> kChecks = {"all", "sampled", "off"};

Status read_trace_options(const CommandLine& line, ReplayPlan& plan) {
  if (line.has("--trace") && line.has("--workload")) {
    return Status(StatusCode::kInvalidArgument, "--trace and --workload are both given; allowed: one of them");
  }
  const bool is_file = line.has("--trace");
  const std::string fallback = std::to_string(is_file ? kMaxRequests : kDefaultWorkloadRequests);
  const Result<std::int64_t> num_requests = integer_of(line, "--requests", fallback, 1, kMaxRequests);
  if (!num_requests) return num_requests.error();
  const std::string source = line.value_or(is_file ? "--trace" : "--workload", "chat");
  (is_file ? plan.trace_path : plan.workload) = source;
  Result<Trace> trace = is_file ? read_trace(source, *num_requests) : make_workload(source, plan.seed, *num_requests);
  if (!trace) return trace.error();
  plan.trace = std::make_unique<Trace>(*std::move(trace));
  return {};
}

// Blocks or bytes of one tier; the default in blocks.
Status read_tier_size(const CommandLine& line, const std::string& tier, std::string_view fallback, std::int64_t min,
                      std::vector<std::int64_t>& blocks, std::vector<std::int64_t>& bytes) {
  const std::string in_blocks = "--" + tier + "-blocks";
  const std::string in_bytes = "--" + tier + "-bytes";
  if (!line.has(in_bytes)) return take(integers_of(line, in_blocks, fallback, min, kMaxBlocks), blocks);
  if (line.has(in_blocks)) {
    return Status(StatusCode::kInvalidArgument,
                  in_blocks + " and " + in_bytes + " are both given; allowed: one of them");
  }
  if (!line.has("--model")) {
    return Status(
        StatusCode::kInvalidArgument,
        in_bytes +
            " needs --model: a trace alone does not say how many bytes a block has; allowed without: " + in_blocks);
  }
  return take(parse_size_list(in_bytes, line.value_or(in_bytes, "")), bytes);
}

Status read_policies(const CommandLine& line, ReplayPlan& plan) {
  if (Status s = take(store_modes_of(line), plan.modes); !s.ok()) return s;
  if (Status s = take(policies_of(line), plan.policies); !s.ok()) return s;
  const auto checks = parse_choice_list("--check-bytes", line.value_or("--check-bytes", "sampled"), kChecks);
  if (!checks) return checks.error();
  for (const std::size_t check : *checks) plan.checks.push_back(static_cast<CheckBytes>(check));
  return {};
}

Status read_numbers(const CommandLine& line, ReplayPlan& plan) {
  if (line.has("--dcp")) {
    if (Status s = take(integers_of(line, "--dcp", "", 1, kMaxParallel), plan.dcps); !s.ok()) return s;
  }
  if (Status s = take(integers_of(line, "--interleave", "1", 1, kMaxInterleave), plan.interleaves); !s.ok()) return s;
  if (Status s = take(integer_of(line, "--payload-bytes", "1", 1, kMaxPayloadBytes), plan.payload_bytes); !s.ok()) {
    return s;
  }
  return take(integer_of(line, "--jobs", "1", 1, kMaxParallel), plan.jobs);
}

// A place to run: a geometry and what stands behind its name.
struct Place {
  std::string model;
  GeometrySpec geometry;
  std::int64_t page_bytes = 0;  // of the largest group; 0: unknown
};

Result<std::vector<Place>> places_of(const CommandLine& line, const ReplayPlan& plan) {
  Result<std::vector<Model>> models = models_of(line, {});
  if (!models) return error(models.error());
  std::vector<Place> places;
  const auto own = [](std::int64_t dcp) { return std::vector<std::int64_t>{dcp}; };
  for (const std::int64_t interleave : plan.interleaves) {
    for (const std::int64_t dcp : models->empty() && plan.dcps.empty() ? own(1) : plan.dcps) {
      if (!models->empty()) break;
      places.push_back({std::string(kDefaultModel), trace_geometry(*plan.trace, dcp, interleave), 0});
    }
    for (const Model& model : *models) {
      for (const std::int64_t dcp : plan.dcps.empty() ? own(model.default_dcp) : plan.dcps) {
        places.push_back({model.name, model.with_parallel(dcp, interleave), model.largest_page_bytes()});
      }
    }
  }
  for (const Place& place : places) {
    if (Status s = check_geometry(place.geometry, place.model); !s.ok()) return error(std::move(s));
  }
  return places;
}

// One size of one tier at one place, and how it was given.
struct TierSize {
  std::string option;
  std::int64_t given = 0;       // blocks or bytes
  std::int64_t unit_bytes = 0;  // of one block over all ranks; 0: given in blocks
  std::int64_t blocks = 0;
};

Result<std::vector<TierSize>> tier_sizes(const std::string& tier, const std::vector<std::int64_t>& blocks,
                                         const std::vector<std::int64_t>& bytes, const Place& place) {
  std::vector<TierSize> sizes;
  for (const std::int64_t count : blocks) sizes.push_back({"--" + tier + "-blocks", count, 0, count});
  const std::string option = "--" + tier + "-bytes";
  if (!bytes.empty() && place.page_bytes == 0) {
    return error(StatusCode::kInvalidArgument,
                 option + ": model " + place.model + " does not give the page_bytes of every group");
  }
  const std::int64_t unit = place.page_bytes * place.geometry.parallel.tp;
  for (const std::int64_t size : bytes) sizes.push_back({option, size, unit, size / unit});
  return sizes;
}

// A number of blocks as it would have to be given.
std::string as_given(const TierSize& size, std::int64_t blocks) {
  std::int64_t bytes = 0;
  if (size.unit_bytes == 0) return std::to_string(blocks);
  const bool too_large = __builtin_mul_overflow(blocks, size.unit_bytes, &bytes);
  return std::to_string(too_large ? std::numeric_limits<std::int64_t>::max() : bytes);
}

// `needs`: what a smaller tier cannot do, for the message.
Status check_size(const Place& place, const TierSize& size, std::int64_t least_blocks, const std::string& needs) {
  if (size.blocks >= least_blocks && size.blocks <= kMaxBlocks) return {};
  std::string text = size.option + " " + std::to_string(size.given);
  if (size.unit_bytes > 0) {
    text += " is " + std::to_string(size.blocks) + " blocks of " + std::to_string(size.unit_bytes) +
            " bytes over all ranks and";
  }
  text += size.blocks < least_blocks ? " cannot hold " + needs : " is too large for";
  return Status(StatusCode::kInvalidArgument, text + " model " + place.model +
                                                  "; allowed: " + as_given(size, least_blocks) + " .. " +
                                                  as_given(size, kMaxBlocks) + (size.unit_bytes > 0 ? " bytes" : ""));
}

std::string memory_option(const TierSize& size, const ReplayPlan& plan) {
  return size.option + " " + std::to_string(size.given) + " with --payload-bytes " + std::to_string(plan.payload_bytes);
}

Status check_device(const Place& place, const ReplayPlan& plan, const TierSize& size) {
  const std::int64_t prompt_tokens = plan.trace->longest_request_blocks() * plan.trace->block_tokens + 1;
  const Result<std::int64_t> least = least_device_blocks(place.geometry, prompt_tokens);
  if (!least) return least.error();
  const std::string needs =
      "the longest prompt (" + std::to_string(prompt_tokens) + " tokens) of " + plan.trace->name + " on";
  if (Status s = check_size(place, size, *least, needs); !s.ok()) return s;
  return check_memory(memory_option(size, plan), "device",
                      device_bytes(place.geometry, plan.payload_bytes, size.blocks));
}

Status check_host(const Place& place, const ReplayPlan& plan, const TierSize& size) {
  if (size.given == 0) return {};
  if (Status s = check_offloadable(place.geometry, place.model); !s.ok()) {
    return Status(s.code(), s.message() + "; allowed: --host-blocks 0");
  }
  const Result<std::int64_t> least = least_host_blocks(place.geometry, plan.payload_bytes);
  if (!least) return least.error();
  if (Status s = check_size(place, size, *least, "what one hit needs on"); !s.ok()) return s;
  return check_memory(memory_option(size, plan), "host", host_bytes(place.geometry, plan.payload_bytes, size.blocks));
}

void add_cells(const Place& place, std::int64_t device, std::int64_t host, ReplayPlan& plan) {
  for (const StoreMode mode : plan.modes) {
    for (const EvictionPolicyKind policy : plan.policies) {
      for (const CheckBytes check : plan.checks) {
        ReplayCell cell{plan.trace.get(), place.geometry, device, host, check, plan.payload_bytes, {}, plan.seed};
        cell.connector.store_mode = mode;
        cell.connector.eviction_policy = policy;
        plan.cells.push_back({place.model, std::move(cell)});
      }
    }
  }
}

Status add_place(const Place& place, ReplayPlan& plan) {
  const auto devices = tier_sizes("device", plan.device_blocks, plan.device_bytes, place);
  if (!devices) return devices.error();
  const auto hosts = tier_sizes("host", plan.host_blocks, plan.host_bytes, place);
  if (!hosts) return hosts.error();
  for (const TierSize& host : *hosts) {
    if (Status s = check_host(place, plan, host); !s.ok()) return s;
  }
  for (const TierSize& device : *devices) {
    if (Status s = check_device(place, plan, device); !s.ok()) return s;
    for (const TierSize& host : *hosts) add_cells(place, device.blocks, host.blocks, plan);
  }
  return {};
}

}  // namespace

std::string_view check_bytes_name(CheckBytes check) {
  return kChecks[static_cast<std::size_t>(check)];
}

Result<ReplayPlan> plan_replay(const CommandLine& line) {
  ReplayPlan plan;
  if (Status s = take(seed_of(line), plan.seed); !s.ok()) return error(std::move(s));
  if (Status s = read_policies(line, plan); !s.ok()) return error(std::move(s));
  if (Status s = read_numbers(line, plan); !s.ok()) return error(std::move(s));
  if (Status s = read_tier_size(line, "device", "5000", 1, plan.device_blocks, plan.device_bytes); !s.ok()) {
    return error(std::move(s));
  }
  if (Status s = read_tier_size(line, "host", "10000", 0, plan.host_blocks, plan.host_bytes); !s.ok()) {
    return error(std::move(s));
  }
  if (Status s = read_trace_options(line, plan); !s.ok()) return error(std::move(s));
  const Result<std::vector<Place>> places = places_of(line, plan);
  if (!places) return error(places.error());
  for (const Place& place : *places) {
    if (Status s = add_place(place, plan); !s.ok()) return error(std::move(s));
  }
  return plan;
}

}  // namespace hostkv::bench
