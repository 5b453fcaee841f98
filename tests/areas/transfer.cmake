# Doubles and gates that every area's tests may use.
if(NOT TARGET hostkv_test_support)
  add_library(hostkv_test_support STATIC
    support/fault_backend.cc support/step_backend.cc support/test_seed.cc)
  target_include_directories(hostkv_test_support PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(hostkv_test_support PUBLIC hostkv_offload PRIVATE hostkv_warnings)
endif()

hostkv_test(NAME transfer_unit_test LABEL unit
  SOURCES unit/transfer/host_stream_test.cc unit/transfer/host_backend_test.cc unit/transfer/host_pool_test.cc
          unit/transfer/numa_test.cc unit/transfer/copy_executor_test.cc unit/transfer/doubles_test.cc
  LIBS hostkv_test_support)
# The suite that every TransferBackend passes: a test executable of another backend lists these and its own subject.
set(HOSTKV_TRANSFER_CONTRACT
  contract/transfer_backend_contract.cc contract/transfer_backend_order_contract.cc
  contract/transfer_backend_race_contract.cc contract/transfer_backend_regions_contract.cc
  contract/transfer_backend_results_contract.cc)
hostkv_test(NAME transfer_contract_test LABEL contract
  SOURCES contract/host_backend_contract_test.cc ${HOSTKV_TRANSFER_CONTRACT}
  LIBS hostkv_test_support)
