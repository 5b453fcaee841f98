# Field cases and worked examples by their tags; docs/field_cases.md lists all of them.
hostkv_test(NAME cases_planning_test LABEL unit LIBS hostkv_connector_test_support SOURCES
  unit/cases/geometry_cases_test.cc unit/cases/state_cases_test.cc unit/cases/window_cases_test.cc
  unit/cases/store_cases_test.cc unit/cases/lazy_cases_test.cc unit/cases/load_cases_test.cc
  unit/cases/metrics_cases_test.cc unit/cases/worked_examples_test.cc unit/cases/copy_cases_test.cc
  unit/connector/scheduler_device_test.cc unit/connector/cache_events_test.cc
  unit/connector/offload_limit_test.cc unit/connector/damage_test.cc)
hostkv_test(NAME cases_engine_test LABEL unit LIBS hostkv_bench_engine hostkv_test_support SOURCES
  unit/cases/engine_cases_test.cc unit/cases/liveness_cases_test.cc)
