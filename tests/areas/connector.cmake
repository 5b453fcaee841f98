# A fake engine around a scheduler side; used by all of this area.
add_library(hostkv_connector_test_support STATIC support/connector_harness.cc)
target_include_directories(hostkv_connector_test_support PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(hostkv_connector_test_support PUBLIC hostkv_connector hostkv_test_support GTest::gtest
  PRIVATE hostkv_warnings)

hostkv_test(NAME connector_unit_test LABEL unit LIBS hostkv_connector_test_support SOURCES
  unit/connector/scheduler_capacity_test.cc unit/connector/scheduler_lookup_test.cc
  unit/connector/scheduler_order_test.cc unit/connector/scheduler_store_test.cc unit/connector/step_metadata_test.cc
  unit/connector/options_test.cc unit/connector/worker_order_test.cc unit/connector/worker_copy_test.cc
  unit/connector/worker_sleep_test.cc unit/connector/worker_checksum_test.cc unit/connector/allocation_probe.cc)
target_compile_definitions(connector_unit_test PRIVATE HOSTKV_SOURCE_DIR="${PROJECT_SOURCE_DIR}")

hostkv_test(NAME connector_fault_test LABEL fault LIBS hostkv_connector_test_support SOURCES
  fault/connector/scheduler_faults_test.cc fault/connector/worker_faults_test.cc)

hostkv_test(NAME connector_property_test LABEL property LIBS hostkv_connector_test_support SOURCES
  property/connector/small_cluster.cc property/connector/end_to_end_test.cc
  property/connector/random_calls.cc property/connector/random_calls_test.cc)
