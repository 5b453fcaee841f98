# hostkv_library(folder DEPENDS public targets... PRIVATE_LIBS targets... SOURCES files...): the target hostkv_<folder>.
function(hostkv_library folder)
  cmake_parse_arguments(ARG "" "" "DEPENDS;PRIVATE_LIBS;SOURCES" ${ARGN})
  add_library(hostkv_${folder} STATIC ${ARG_SOURCES})
  target_include_directories(hostkv_${folder} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(hostkv_${folder}
    PUBLIC ${ARG_DEPENDS} PRIVATE $<BUILD_INTERFACE:hostkv_warnings> ${ARG_PRIVATE_LIBS})
endfunction()
