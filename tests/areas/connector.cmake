# A fake engine around a scheduler side; used by all of this area.
add_library(hostkv_connector_test_support STATIC support/connector_harness.cc)
target_include_directories(hostkv_connector_test_support PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(hostkv_connector_test_support PUBLIC hostkv_connector hostkv_test_support GTest::gtest
  PRIVATE hostkv_warnings)

hostkv_test(NAME connector_unit_test LABEL unit LIBS hostkv_connector_test_support SOURCES
  unit/connector/scheduler_capacity_test.cc unit/connector/scheduler_lookup_test.cc
  unit/connector/scheduler_order_test.cc unit/connector/scheduler_store_test.cc)

hostkv_test(NAME connector_fault_test LABEL fault LIBS hostkv_connector_test_support SOURCES
  fault/connector/scheduler_faults_test.cc)
