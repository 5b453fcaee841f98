#include <algorithm>
#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>

#include "bench/cli/commands.h"
#include "bench/cli/common_options.h"
#include "bench/cli/document.h"
#include "bench/cli/replay_cells.h"
#include "bench/cli/report.h"

namespace hostkv::bench {
namespace {

using nlohmann::ordered_json;

constexpr auto kOptions = std::to_array<OptionRow>({
    {"--trace", "FILE", "Mooncake trace (JSON Lines), read in place"},
    {"--workload", "NAME", "Built-in workload: chat, prefix-tree, one-shot (default without --trace: chat)"},
    {"--requests", "N", "Only the first N requests (default: all of a trace, 2000 of a workload)"},
    {"--model", "LIST",
     "Presets or model files (default: one-group, full attention with the block of trace or workload)"},
    {"--dcp", "LIST", "Decode context parallel sizes (default: the preset's own, else 1)"},
    {"--interleave", "LIST", "Tokens in a row on one rank (default: 1)"},
    {"--device-blocks", "LIST", "Usable device blocks (default: 5000)"},
    {"--device-bytes", "LIST", "The same in bytes over all ranks; needs --model"},
    {"--host-blocks", "LIST", "Host slots of the largest group; 0: no host tier (default: 10000)"},
    {"--host-bytes", "LIST", "The same in bytes over all ranks; needs --model"},
    {"--mode", "LIST", "Store modes: eager, lazy (default: eager)"},
    {"--policy", "LIST", "Eviction policies: lru (default: lru)"},
    {"--check-bytes", "LIST", "Requests whose bytes are checked: all, sampled, off (default: sampled)"},
    {"--payload-bytes", "N", "Bytes written for each row of each group, 1 .. 4096 (default: 1)"},
    {"--jobs", "N", "Cells that run at the same time, 1 .. 64 (default: 1)"},
});

using LedgerField = std::pair<const char*, std::int64_t Ledger::*>;
constexpr auto kLedgerFields = std::to_array<LedgerField>({
    {"device_hit", &Ledger::device_hit},
    {"host_hit", &Ledger::host_hit},
    {"cold", &Ledger::cold},
    {"capacity", &Ledger::capacity},
    {"alignment", &Ledger::alignment},
    {"boundary", &Ledger::boundary},
    {"load_failed", &Ledger::load_failed},
    {"last_token", &Ledger::last_token},
});

template <class Values, class Name>
ordered_json names_of(const Values& values, Name name) {
  ordered_json list = ordered_json::array();
  for (const auto& value : values) list.push_back(name(value));
  return list;
}

ordered_json config_of(const ReplayPlan& plan) {
  std::vector<std::string> models;
  std::vector<std::int64_t> dcps;
  std::vector<std::int64_t> devices;
  std::vector<std::int64_t> hosts;
  for (const LabelledCell& labelled : plan.cells) {
    add_once(models, labelled.model);
    add_once(dcps, labelled.cell.geometry.parallel.dcp);
    add_once(devices, labelled.cell.device_blocks);
    add_once(hosts, labelled.cell.host_blocks);
  }
  ordered_json config;
  config["trace"] = plan.trace_path ? ordered_json(*plan.trace_path) : ordered_json(nullptr);
  config["workload"] = plan.workload ? ordered_json(*plan.workload) : ordered_json(nullptr);
  config["requests"] = plan.trace->requests.size();
  config["trace_block_tokens"] = plan.trace->block_tokens;
  config["model"] = models;
  config["dcp"] = dcps;
  config["interleave_tokens"] = plan.interleaves;
  config["device_blocks"] = devices;
  config["host_blocks"] = hosts;
  config["mode"] = names_of(plan.modes, store_mode_name);
  config["policy"] = names_of(plan.policies, policy_name);
  config["check_bytes"] = names_of(plan.checks, check_bytes_name);
  config["payload_bytes"] = plan.payload_bytes;
  config["jobs"] = plan.jobs;
  config["seed"] = plan.seed;
  return config;
}

ordered_json ledger_json(const Ledger& ledger) {
  ordered_json json;
  for (const auto& [name, field] : kLedgerFields) json[name] = ledger.*field;
  return json;
}

// Tokens of a block on one rank, of each group.
std::vector<std::int64_t> block_tokens_of(const ReplayCell& cell) {
  std::vector<std::int64_t> tokens;
  for (const KvCacheGroup& group : cell.geometry.groups) tokens.push_back(group.block_tokens);
  return tokens;
}

ordered_json result_json(const LabelledCell& labelled, const ReplayResult& result) {
  const ReplayCell& cell = labelled.cell;
  ordered_json json;
  json["model"] = labelled.model;
  json["dcp"] = cell.geometry.parallel.dcp;
  json["interleave_tokens"] = cell.geometry.parallel.interleave_tokens;
  json["block_tokens"] = block_tokens_of(cell);
  json["device_blocks"] = cell.device_blocks;
  json["host_blocks"] = cell.host_blocks;
  json["mode"] = store_mode_name(cell.connector.store_mode);
  json["policy"] = policy_name(cell.connector.eviction_policy);
  json["check_bytes"] = check_bytes_name(cell.check);
  json["requests"] = result.requests;
  json["blocks"] = result.blocks;
  json["prompt_tokens"] = result.prompt_tokens;
  json["device_hit_rate"] = result.device_hit_rate();
  json["host_hit_rate"] = result.host_hit_rate();
  json["theoretical_hit_rate"] = result.theoretical_hit_rate();
  json["tier_hit_rates"] = {{"host", result.host_hit_rate()}};
  json["stored_blocks"] = result.stored_blocks;
  json["loaded_blocks"] = result.loaded_blocks;
  json["ledger"] = ledger_json(result.ledger);
  json["bytes_checked"] = result.bytes_checked;
  json["bytes_wrong"] = result.bytes_wrong;
  json["first_wrong"] = result.first_wrong ? ordered_json(wrong_text(*result.first_wrong)) : ordered_json(nullptr);
  json["wall_seconds"] = result.wall_seconds;
  return json;
}

// A replay that was to check bytes and checked none although blocks were hit has proven nothing.
bool found_wrong(const ReplayResult& result) {
  return result.bytes_wrong > 0;
}

std::string cell_name(const LabelledCell& labelled, bool with_mode) {
  const ReplayCell& cell = labelled.cell;
  return labelled.model + ", dcp " + std::to_string(cell.geometry.parallel.dcp) + ", device " +
         with_commas(cell.device_blocks) + ", host " + with_commas(cell.host_blocks) +
         (with_mode ? ", " + std::string(store_mode_name(cell.connector.store_mode)) : "");
}

// Rows of one mode need no name of it.
bool has_several_modes(const ReplayPlan& plan) {
  return plan.modes.size() > 1;
}

// Each size once: "384/3,072".
std::string block_tokens_text(const ReplayCell& cell) {
  std::vector<std::int64_t> sizes;
  for (const std::int64_t tokens : block_tokens_of(cell)) add_once(sizes, tokens);
  std::string text;
  for (const std::int64_t tokens : sizes) text += (text.empty() ? "" : "/") + with_commas(tokens);
  return text;
}

std::vector<std::string> hits_row(const LabelledCell& labelled, const ReplayResult& r, bool with_block,
                                  bool with_mode) {
  const ReplayCell& cell = labelled.cell;
  std::vector<std::string> row = {labelled.model, std::to_string(cell.geometry.parallel.dcp),
                                  std::to_string(cell.geometry.parallel.interleave_tokens)};
  if (with_mode) row.emplace_back(store_mode_name(cell.connector.store_mode));
  if (with_block) row.push_back(block_tokens_text(cell));
  row.insert(row.end(), {with_commas(cell.device_blocks), with_commas(cell.host_blocks), fixed(r.device_hit_rate(), 4),
                         fixed(r.host_hit_rate(), 4), fixed(r.device_hit_rate() + r.host_hit_rate(), 4),
                         fixed(r.theoretical_hit_rate(), 4), with_commas(r.stored_blocks), with_commas(r.loaded_blocks),
                         with_commas(r.bytes_checked), with_commas(r.bytes_wrong), fixed(r.wall_seconds, 1)});
  return row;
}

void write_hits(std::ostream& out, const ReplayPlan& plan, const std::vector<ReplayResult>& results) {
  // Blocks of different sizes hold different numbers of tokens: without their size rows cannot be compared.
  const std::string first = block_tokens_text(plan.cells.front().cell);
  const bool with_block = std::ranges::any_of(
      plan.cells, [&](const LabelledCell& labelled) { return block_tokens_text(labelled.cell) != first; });
  std::vector<std::string> header = {"model", "dcp", "interleave"};
  if (has_several_modes(plan)) header.emplace_back("mode");
  if (with_block) header.emplace_back("block tokens");
  header.insert(header.end(), {"device blocks", "host blocks", "device hit", "host hit", "total", "infinite", "stored",
                               "loaded", "bytes checked", "wrong", "seconds"});
  Table table(std::move(header), 1);
  for (std::size_t i = 0; i < results.size(); ++i) {
    table.add(hits_row(plan.cells[i], results[i], with_block, has_several_modes(plan)));
  }
  table.write(out);
}

void write_ledgers(std::ostream& out, const ReplayPlan& plan, const std::vector<ReplayResult>& results) {
  std::vector<std::string> header = {"where the tokens went (%)"};
  for (const auto& [name, field] : kLedgerFields) header.emplace_back(name);
  Table table(std::move(header), 1);
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::vector<std::string> row = {cell_name(plan.cells[i], has_several_modes(plan))};
    const auto total = static_cast<double>(std::max<std::int64_t>(results[i].prompt_tokens, 1));
    for (const auto& [name, field] : kLedgerFields) {
      row.push_back(fixed(100.0 * static_cast<double>(results[i].ledger.*field) / total, 2));
    }
    table.add(std::move(row));
  }
  table.write(out);
}

void write_table(std::ostream& out, const ReplayPlan& plan, const std::vector<ReplayResult>& results) {
  out << (plan.trace_path ? "trace " : "workload ") << plan.trace->name << ": "
      << with_commas(static_cast<std::int64_t>(plan.trace->requests.size())) << " requests, "
      << with_commas(plan.trace->num_block_refs()) << " blocks of " << plan.trace->block_tokens << " tokens\n";
  if (plan.cells.front().model == kDefaultModel) {
    out << "model " << kDefaultModel << ": one group of full attention, its block is the "
        << (plan.trace_path ? "trace's" : "workload's") << '\n';
  }
  out << '\n';
  write_hits(out, plan, results);
  out << '\n';
  write_ledgers(out, plan, results);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].first_wrong) continue;
    out << cell_name(plan.cells[i], has_several_modes(plan)) << ": wrong byte: " << wrong_text(*results[i].first_wrong)
        << '\n';
  }
}

// Runs cells on `jobs` threads; results stand in the order of the cells.
class CellRunner {
 public:
  CellRunner(const ReplayPlan& plan, Progress& progress)
      : plan_(plan), progress_(progress), results_(plan.cells.size(), error(StatusCode::kCanceled, "did not run")) {}

  Result<std::vector<ReplayResult>> run() {
    {
      std::vector<std::jthread> threads;
      const std::size_t num_threads = std::min(static_cast<std::size_t>(plan_.jobs), plan_.cells.size());
      for (std::size_t i = 1; i < num_threads; ++i) threads.emplace_back([this] { work(); });
      work();
    }
    std::vector<ReplayResult> results;
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (!results_[i]) {
        const Status& status = results_[i].error();
        return error(status.code(), cell_name(plan_.cells[i], has_several_modes(plan_)) + ": " + status.message());
      }
      results.push_back(*std::move(results_[i]));
    }
    return results;
  }

 private:
  void work() {
    for (std::size_t i = next_++; i < plan_.cells.size() && !stop_; i = next_++) {
      results_[i] = run_replay(plan_.cells[i].cell, [this, i](std::int64_t done) { show(i, done); });
      if (!results_[i]) stop_ = true;
    }
  }
  void show(std::size_t cell, std::int64_t done) {
    progress_.tick([&] {
      return "replay: cell " + std::to_string(cell + 1) + " of " + std::to_string(plan_.cells.size()) + ": " +
             with_commas(done) + " of " + with_commas(static_cast<std::int64_t>(plan_.trace->requests.size())) +
             " requests";
    });
  }

  const ReplayPlan& plan_;
  Progress& progress_;
  std::vector<Result<ReplayResult>> results_;  // each element is written by one thread
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace

const CommandInfo kReplayCommand = {"replay", "Replays a trace of requests and counts device and host hits", kOptions,
                                    ""};

Result<ExitCode> replay_command(const CommandLine& line, Streams streams) {
  const Result<ReplayPlan> plan = plan_replay(line);
  if (!plan) return error(plan.error());
  Progress progress(streams, line.quiet);
  const Result<std::vector<ReplayResult>> results = CellRunner(*plan, progress).run();
  if (!results) return error(results.error());
  if (line.json) {
    ordered_json list = ordered_json::array();
    for (std::size_t i = 0; i < results->size(); ++i) list.push_back(result_json(plan->cells[i], (*results)[i]));
    const auto replace = ordered_json::error_handler_t::replace;
    write_document(streams.out, kReplayCommand.name, config_of(*plan).dump(-1, ' ', false, replace),
                   list.dump(-1, ' ', false, replace));
  } else {
    write_table(streams.out, *plan, *results);
  }
  return std::ranges::any_of(*results, found_wrong) ? ExitCode::kFoundWrong : ExitCode::kDone;
}

}  // namespace hostkv::bench
