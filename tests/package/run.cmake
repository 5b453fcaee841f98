# Installs the build tree, checks that nothing in the installed package points back at it, builds the consumer against
# the installed tree and runs it.
set(prefix ${WORK_DIR}/prefix)
file(REMOVE_RECURSE ${WORK_DIR})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "exit code ${code}: ${ARGN}\n${output}")
  endif()
  set(run_output "${output}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})

file(GLOB_RECURSE texts ${prefix}/*.cmake ${prefix}/*.h)
if(NOT texts)
  message(FATAL_ERROR "nothing was installed under ${prefix}")
endif()
foreach(file ${texts})
  file(READ ${file} text)
  foreach(place ${BUILD_DIR} ${SOURCE_DIR})
    string(FIND "${text}" "${place}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${file} names ${place}")
    endif()
  endforeach()
endforeach()

set(flags "")
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK_DIR}/build -G ${GENERATOR}
  -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${prefix}
  -D CMAKE_CXX_FLAGS=${flags} -D HOSTKV_EXPECTED_VERSION=${VERSION})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
run(${WORK_DIR}/build/consumer)
string(FIND "${run_output}" "hostkv ${VERSION}: scheduler block 32 tokens, loaded 32 tokens, bytes equal on 2 ranks" at)
if(at EQUAL -1)
  message(FATAL_ERROR "the consumer printed:\n${run_output}")
endif()

if(EXISTS ${prefix}/bin/hostkv)
  run(${prefix}/bin/hostkv --help)
endif()

# One executable of that name in a build folder is enough.
file(REMOVE_RECURSE ${WORK_DIR})
