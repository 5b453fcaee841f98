#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <ostream>

#include "bench/cli/commands.h"
#include "bench/cli/common_options.h"
#include "bench/cli/document.h"
#include "bench/cli/memory_check.h"
#include "bench/cli/report.h"
#include "bench/cli/values.h"
#include "bench/models/presets.h"
#include "bench/replay/expected_hit.h"
#include "bench/replay/scenario.h"

namespace hostkv::bench {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, 5> kPlants = {"none", "corrupt-byte", "swap-blocks", "store-before-compute",
                                                     "load-before-landed"};
constexpr auto kOptions = std::to_array<OptionRow>({
    {"--model", "LIST", "Presets or model files (default: all presets)"},
    {"--dcp", "LIST", "Decode context parallel sizes (default: the preset's own)"},
    {"--interleave", "LIST", "Tokens in a row on one rank (default: 1, 8, 64 and the block where DCP > 1, else 1)"},
    {"--prompt-tokens", "LIST", "Tokens of the prompt (default: 60950)"},
    {"--mode", "LIST", "Store modes: eager, lazy (default: eager)"},
    {"--boundaries", "LIST",
     "Where hits end: fine, as the engine has it; coarse, on the scheduler block (default: fine)"},
    {"--payload-bytes", "N", "Bytes written for each row of each group, 1 .. 4096 (default: 8)"},
    {"--plant", "LIST",
     "Plant a fault that the check must catch: none, corrupt-byte, swap-blocks, store-before-compute, "
     "load-before-landed (default: none)"},
});

struct Cells {
  std::vector<ScenarioCell> cells;
  ordered_json config;
};

// The options that do not depend on a model.
struct Choices {
  std::vector<Model> models;
  std::vector<std::int64_t> dcps;         // empty: the preset's
  std::vector<std::int64_t> interleaves;  // empty: the preset's
  std::vector<std::int64_t> prompts;
  std::vector<StoreMode> modes;
  std::vector<Boundaries> boundaries;
  std::vector<std::size_t> plants;
  std::int64_t payload_bytes = 0;
  std::uint64_t seed = 0;
};

Status read_parallel(const CommandLine& line, Choices& choices) {
  if (line.has("--dcp")) {
    if (Status s = take(integers_of(line, "--dcp", "", 1, kMaxParallel), choices.dcps); !s.ok()) return s;
  }
  if (line.has("--interleave")) {
    return take(integers_of(line, "--interleave", "", 1, kMaxInterleave), choices.interleaves);
  }
  return {};
}

Status read_choices(const CommandLine& line, Choices& choices) {
  std::vector<std::string> presets;
  for (const Preset& preset : model_presets()) presets.emplace_back(preset.name);
  if (Status s = take(seed_of(line), choices.seed); !s.ok()) return s;
  if (Status s = take(models_of(line, presets), choices.models); !s.ok()) return s;
  if (Status s = read_parallel(line, choices); !s.ok()) return s;
  if (Status s = take(integers_of(line, "--prompt-tokens", "60950", 1, kMaxScenarioPromptTokens), choices.prompts);
      !s.ok()) {
    return s;
  }
  if (Status s = take(store_modes_of(line), choices.modes); !s.ok()) return s;
  if (Status s = take(boundaries_of(line), choices.boundaries); !s.ok()) return s;
  if (Status s = take(parse_choice_list("--plant", line.value_or("--plant", "none"), kPlants), choices.plants);
      !s.ok()) {
    return s;
  }
  return take(integer_of(line, "--payload-bytes", "8", 1, kMaxPayloadBytes), choices.payload_bytes);
}

void add_cells(const Choices& choices, const Model& model, const GeometrySpec& geometry, Boundaries boundaries,
               std::vector<ScenarioCell>& cells) {
  for (const std::int64_t prompt_tokens : choices.prompts) {
    for (const StoreMode mode : choices.modes) {
      for (const std::size_t plant : choices.plants) {
        ScenarioCell cell{model.name,  geometry, prompt_tokens, choices.payload_bytes, {}, static_cast<Plant>(plant),
                          choices.seed};
        cell.connector.store_mode = mode;
        cell.connector.boundaries = boundaries;
        cells.push_back(std::move(cell));
      }
    }
  }
}

ordered_json config_of(const Choices& choices, const std::vector<ScenarioCell>& cells) {
  std::vector<std::int64_t> dcps;
  std::vector<std::int64_t> interleaves;
  std::vector<std::string> models;
  for (const ScenarioCell& cell : cells) {
    add_once(models, cell.model);
    add_once(dcps, cell.geometry.parallel.dcp);
    add_once(interleaves, cell.geometry.parallel.interleave_tokens);
  }
  ordered_json config;
  config["model"] = models;
  config["dcp"] = dcps;
  config["interleave_tokens"] = interleaves;
  config["prompt_tokens"] = choices.prompts;
  for (const StoreMode mode : choices.modes) config["mode"].push_back(store_mode_name(mode));
  for (const Boundaries boundaries : choices.boundaries) config["boundaries"].push_back(boundaries_name(boundaries));
  config["payload_bytes"] = choices.payload_bytes;
  for (const std::size_t plant : choices.plants) config["plant"].push_back(kPlants[plant]);
  config["seed"] = choices.seed;
  return config;
}

bool is_lazy(const ScenarioCell& cell) {
  return cell.connector.store_mode == StoreMode::kLazy;
}

std::string cell_label(const ScenarioCell& cell) {
  return cell.model + ", dcp " + std::to_string(cell.geometry.parallel.dcp) + ", interleave " +
         std::to_string(cell.geometry.parallel.interleave_tokens) + (is_lazy(cell) ? ", lazy" : "") +
         (cell.connector.boundaries == Boundaries::kCoarse ? ", coarse" : "");
}

std::string plant_name(const ScenarioCell& cell) {
  return std::string(kPlants[static_cast<std::size_t>(cell.plant)]);
}

// A fault acts on what is loaded: without a load nothing can be caught.
Status check_plant(const ScenarioCell& cell) {
  if (cell.plant == Plant::kNone) return {};
  if (cell.plant == Plant::kStoreBeforeCompute && is_lazy(cell)) {
    return Status(
        StatusCode::kInvalidArgument,
        cell_label(cell) + ": --plant " + plant_name(cell) +
            ": lazy stores copy what earlier steps have computed, so the fault could not act; use --mode eager");
  }
  if (expected_hits(cell.geometry, cell.prompt_tokens).host_tokens > 0) return {};
  const std::string advice =
      can_hit_on_host(cell.geometry)
          ? "use a prompt above " + std::to_string(longest_prompt_without_hit(cell.geometry)) + " tokens"
          : "no prompt of this model is ever loaded, use another model";
  return Status(StatusCode::kInvalidArgument, cell_label(cell) + ": --plant " + plant_name(cell) +
                                                  ": nothing is loaded at " + std::to_string(cell.prompt_tokens) +
                                                  " prompt tokens, so the fault could not act; " + advice);
}

Status check_cell(const ScenarioCell& cell) {
  if (Status s = check_plant(cell); !s.ok()) return s;
  const ScenarioMemory memory = scenario_memory(cell);
  const std::string option = "--prompt-tokens " + std::to_string(cell.prompt_tokens) + " with --payload-bytes " +
                             std::to_string(cell.payload_bytes);
  const Status device = check_memory(option, "device", memory.device_bytes);
  const Status host = device.ok() ? check_memory(option, "host", memory.host_bytes) : device;
  return host.ok() ? host : Status(host.code(), cell_label(cell) + ": " + host.message());
}

Status add_places(const Choices& choices, const Model& model, std::int64_t dcp, std::int64_t interleave,
                  std::vector<ScenarioCell>& cells) {
  for (const Boundaries boundaries : choices.boundaries) {
    const GeometrySpec geometry = model.with_parallel(dcp, interleave, boundaries);
    if (Status s = check_geometry(geometry, model.name); !s.ok()) return s;
    if (Status s = check_offloadable(geometry, model.name); !s.ok()) return s;
    add_cells(choices, model, geometry, boundaries, cells);
  }
  return {};
}

Result<Cells> cells_of(const CommandLine& line) {
  Choices choices;
  if (Status s = read_choices(line, choices); !s.ok()) return error(std::move(s));
  Cells cells;
  for (const Model& model : choices.models) {
    const std::vector<std::int64_t> own_dcp = {model.default_dcp};
    for (const std::int64_t dcp : choices.dcps.empty() ? own_dcp : choices.dcps) {
      const auto own_interleaves = model.default_interleaves(dcp);
      for (const std::int64_t interleave : choices.interleaves.empty() ? own_interleaves : choices.interleaves) {
        if (Status s = add_places(choices, model, dcp, interleave, cells.cells); !s.ok()) return error(std::move(s));
      }
    }
  }
  for (const ScenarioCell& cell : cells.cells) {
    if (Status s = check_cell(cell); !s.ok()) return error(std::move(s));
  }
  cells.config = config_of(choices, cells.cells);
  return cells;
}

// What a person must know about a cell beside its row; empty: nothing.
std::string remark(const ScenarioCell& cell, const ScenarioResult& result) {
  if (cell.plant != Plant::kNone) {
    const std::string plant = plant_name(cell);
    if (result.bytes_wrong == 0 && result.replay_host_hit_tokens == 0) {
      return "planted " + plant + " could not act: nothing was loaded";
    }
    if (result.bytes_wrong == 0) return "planted " + plant + " was NOT caught: the check is blind to it";
    return "planted " + plant + " was caught: " + (result.first_wrong ? wrong_text(*result.first_wrong) : "");
  }
  if (result.first_wrong) return "wrong byte: " + wrong_text(*result.first_wrong);
  return result.ok ? "" : "hits differ from what the geometry allows";
}

ordered_json result_json(const ScenarioCell& cell, const ScenarioResult& result) {
  ordered_json json;
  json["model"] = cell.model;
  json["dcp"] = cell.geometry.parallel.dcp;
  json["interleave_tokens"] = cell.geometry.parallel.interleave_tokens;
  json["mode"] = store_mode_name(cell.connector.store_mode);
  json["boundaries"] = boundaries_name(cell.connector.boundaries);
  json["plant"] = plant_name(cell);
  json["prompt_tokens"] = cell.prompt_tokens;
  json["expected_hit_tokens"] = result.expected_hit_tokens;
  json["expected_host_hit_tokens"] = result.expected_host_hit_tokens;
  json["cold_hit_tokens"] = result.cold_hit_tokens;
  json["hot_device_hit_tokens"] = result.hot_device_hit_tokens;
  json["replay_device_hit_tokens"] = result.replay_device_hit_tokens;
  json["replay_host_hit_tokens"] = result.replay_host_hit_tokens;
  json["device_blocks"] = result.device_blocks;
  json["filler_prompts"] = result.filler_prompts;
  json["bytes_checked"] = result.bytes_checked;
  json["bytes_wrong"] = result.bytes_wrong;
  json["first_wrong"] = result.first_wrong ? ordered_json(wrong_text(*result.first_wrong)) : ordered_json(nullptr);
  json["wall_seconds"] = result.wall_seconds;
  json["ok"] = result.ok;
  if (cell.plant != Plant::kNone) json["plant_caught"] = result.bytes_wrong > 0;
  return json;
}

// Columns that only some runs need stand where a cell makes a difference.
struct Columns {
  bool mode = false;
  bool boundaries = false;
  bool plant = false;
  bool expected_on_host = false;
};

std::vector<std::string> header_of(const Columns& columns) {
  std::vector<std::string> header = {"model", "dcp", "interleave", "prompt"};
  if (columns.mode) header.emplace_back("mode");
  if (columns.boundaries) header.emplace_back("boundaries");
  if (columns.plant) header.emplace_back("plant");
  header.insert(header.end(), {"hot: device", "replay: device", "replay: host", "expected"});
  if (columns.expected_on_host) header.emplace_back("expected: host");
  header.insert(header.end(), {"bytes checked", "wrong", "seconds", "ok"});
  return header;
}

std::vector<std::string> row_of(const Columns& columns, const ScenarioCell& cell, const ScenarioResult& r) {
  std::vector<std::string> row = {cell.model, std::to_string(cell.geometry.parallel.dcp),
                                  std::to_string(cell.geometry.parallel.interleave_tokens),
                                  with_commas(cell.prompt_tokens)};
  if (columns.mode) row.emplace_back(store_mode_name(cell.connector.store_mode));
  if (columns.boundaries) row.emplace_back(boundaries_name(cell.connector.boundaries));
  if (columns.plant) row.push_back(plant_name(cell));
  for (const std::int64_t tokens :
       {r.hot_device_hit_tokens, r.replay_device_hit_tokens, r.replay_host_hit_tokens, r.expected_hit_tokens}) {
    row.push_back(with_commas(tokens));
  }
  if (columns.expected_on_host) row.push_back(with_commas(r.expected_host_hit_tokens));
  row.insert(row.end(),
             {with_commas(r.bytes_checked), with_commas(r.bytes_wrong), fixed(r.wall_seconds, 2), r.ok ? "yes" : "NO"});
  return row;
}

void write_table(std::ostream& out, const std::vector<ScenarioCell>& cells,
                 const std::vector<ScenarioResult>& results) {
  Columns columns;
  for (std::size_t i = 0; i < results.size(); ++i) {
    columns.mode = columns.mode || cells[i].connector.store_mode != StoreMode::kEager;
    columns.boundaries = columns.boundaries || cells[i].connector.boundaries != Boundaries::kFine;
    columns.plant = columns.plant || cells[i].plant != Plant::kNone;
    columns.expected_on_host =
        columns.expected_on_host || results[i].expected_host_hit_tokens != results[i].expected_hit_tokens;
  }
  Table table(header_of(columns), 1);
  for (std::size_t i = 0; i < results.size(); ++i) table.add(row_of(columns, cells[i], results[i]));
  table.write(out);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (const std::string text = remark(cells[i], results[i]); !text.empty()) {
      out << cell_label(cells[i]) << ": " << text << '\n';
    }
  }
}

Result<std::vector<ScenarioResult>> run_cells(const std::vector<ScenarioCell>& cells, Progress& progress) {
  std::vector<ScenarioResult> results;
  for (const ScenarioCell& cell : cells) {
    const auto on_phase = [&](const char* phase) {
      progress.tick([&] {
        return "scenario: cell " + std::to_string(results.size() + 1) + " of " + std::to_string(cells.size()) + " (" +
               cell_label(cell) + "): " + phase;
      });
    };
    Result<ScenarioResult> result = run_scenario(cell, on_phase);
    if (!result) return error(result.error().code(), cell_label(cell) + ": " + result.error().message());
    results.push_back(*std::move(result));
  }
  return results;
}

}  // namespace

const CommandInfo kScenarioCommand = {
    "scenario cold-hot-evict-replay",
    "One prompt computed, hit on the device, pressed out of it, and hit in host memory, every byte checked", kOptions,
    ""};

Result<ExitCode> scenario_command(const CommandLine& line, Streams streams) {
  const Result<Cells> cells = cells_of(line);
  if (!cells) return error(cells.error());
  Progress progress(streams, line.quiet);
  const Result<std::vector<ScenarioResult>> results = run_cells(cells->cells, progress);
  if (!results) return error(results.error());
  if (line.json) {
    ordered_json list = ordered_json::array();
    for (std::size_t i = 0; i < results->size(); ++i) list.push_back(result_json(cells->cells[i], (*results)[i]));
    const auto replace = ordered_json::error_handler_t::replace;
    write_document(streams.out, kScenarioCommand.name, cells->config.dump(-1, ' ', false, replace),
                   list.dump(-1, ' ', false, replace));
  } else {
    write_table(streams.out, cells->cells, *results);
  }
  const bool all_ok = std::ranges::all_of(*results, &ScenarioResult::ok);
  const bool planted = std::ranges::any_of(cells->cells, [](const ScenarioCell& c) { return c.plant != Plant::kNone; });
  return all_ok && !planted ? ExitCode::kDone : ExitCode::kFoundWrong;
}

}  // namespace hostkv::bench
