# The installed tree alone is enough to build and run against hostkv::hostkv.
if(HOSTKV_INSTALL)
  string(REPLACE ";" "," package_sanitize "${HOSTKV_SANITIZE}")
  add_test(NAME package_consumer
    COMMAND ${CMAKE_COMMAND}
      -D BUILD_DIR=${PROJECT_BINARY_DIR}
      -D SOURCE_DIR=${PROJECT_SOURCE_DIR}
      -D WORK_DIR=${CMAKE_CURRENT_BINARY_DIR}/package
      -D GENERATOR=${CMAKE_GENERATOR}
      -D COMPILER=${CMAKE_CXX_COMPILER}
      -D SANITIZE=${package_sanitize}
      -D VERSION=${PROJECT_VERSION}
      -P ${CMAKE_CURRENT_SOURCE_DIR}/package/run.cmake)
  set_tests_properties(package_consumer PROPERTIES LABELS package TIMEOUT 300)
endif()
