# The tool: command line, presets, traces, workloads, replay, scenario.
hostkv_test(NAME cli_trace_test LABEL unit
  SOURCES unit/replay/trace_test.cc unit/replay/workload_test.cc unit/replay/theory_test.cc unit/replay/golden_test.cc
  LIBS hostkv_bench_replay)
hostkv_test(NAME cli_replay_test LABEL unit
  SOURCES unit/replay/replay_test.cc unit/replay/scenario_test.cc unit/replay/boundary_history_test.cc
    unit/replay/expected_hit_test.cc unit/replay/findable_test.cc unit/replay/lazy_replay_test.cc
  LIBS hostkv_bench_replay)
hostkv_test(NAME cli_command_test LABEL unit
  SOURCES unit/cli/command_line_test.cc unit/cli/commands_test.cc unit/cli/report_test.cc unit/cli/model_test.cc
    unit/cli/name_hint_test.cc unit/cli/output_test.cc
  LIBS hostkv_bench_cli nlohmann_json::nlohmann_json)
target_compile_definitions(cli_trace_test PRIVATE HOSTKV_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
# Six replays of whole traces: minutes under a sanitizer, where the other tests walk the same paths.
if(NOT HOSTKV_SANITIZE)
  hostkv_test(NAME cli_bounds_test LABEL unit TIMEOUT 600
    SOURCES unit/replay/two_tier_bounds_test.cc LIBS hostkv_bench_replay)
  target_compile_definitions(cli_bounds_test PRIVATE HOSTKV_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
endif()
