# Every option of the build, under 12.
option(HOSTKV_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(HOSTKV_BUILD_BENCH "Build the tool, the reference engine and the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(HOSTKV_BUILD_PYTHON "Build the module hostkv._core and the tool for a wheel" OFF)
option(HOSTKV_INSTALL "Install rules for library, headers and tool" ${PROJECT_IS_TOP_LEVEL})
option(HOSTKV_WERROR "Warnings are errors" ${PROJECT_IS_TOP_LEVEL})
option(HOSTKV_WITH_TBB "Share the copies of a job over a oneTBB arena; OFF: plain threads" ON)
set(HOSTKV_SANITIZE "" CACHE STRING "Sanitizers: empty, 'address;undefined' or 'thread'")
