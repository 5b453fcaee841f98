# Libraries of the system that bring no CMake package: hostkv::xxhash and hostkv::numa. The build and the installed
# package use the same code, so no path of the building machine is exported.
function(hostkv_system_library name header library)
  if(TARGET hostkv::${name})
    return()
  endif()
  string(TOUPPER ${name} upper)
  find_path(HOSTKV_${upper}_INCLUDE_DIR ${header})
  find_library(HOSTKV_${upper}_FILE ${library})
  mark_as_advanced(HOSTKV_${upper}_INCLUDE_DIR HOSTKV_${upper}_FILE)
  if(NOT HOSTKV_${upper}_INCLUDE_DIR OR NOT HOSTKV_${upper}_FILE)
    message(FATAL_ERROR "HostKV needs ${header} and lib${library} (scripts/setup installs them)")
  endif()
  add_library(hostkv::${name} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(hostkv::${name} PROPERTIES
    IMPORTED_LOCATION "${HOSTKV_${upper}_FILE}"
    INTERFACE_INCLUDE_DIRECTORIES "${HOSTKV_${upper}_INCLUDE_DIR}")
endfunction()
hostkv_system_library(xxhash xxhash.h xxhash)
hostkv_system_library(numa numa.h numa)
