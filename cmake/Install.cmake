# Installs what an engine needs: public headers, the libraries behind hostkv::hostkv, the CMake package, the tool.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(hostkv_installed headers base geometry offload recovery connector)
foreach(part ${hostkv_installed})
  set_target_properties(hostkv_${part} PROPERTIES EXPORT_NAME ${part})
  install(TARGETS hostkv_${part} EXPORT hostkvTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endforeach()
install(TARGETS hostkv_all EXPORT hostkvTargets)

install(DIRECTORY include/hostkv DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/include/hostkv/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hostkv)

set(hostkv_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hostkv)
install(EXPORT hostkvTargets NAMESPACE hostkv:: DESTINATION ${hostkv_package_dir})
configure_package_config_file(cmake/hostkvConfig.cmake.in ${PROJECT_BINARY_DIR}/hostkvConfig.cmake
  INSTALL_DESTINATION ${hostkv_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hostkvConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hostkvConfig.cmake ${PROJECT_BINARY_DIR}/hostkvConfigVersion.cmake
  cmake/SystemLibraries.cmake DESTINATION ${hostkv_package_dir})

if(TARGET hostkv_tool)
  install(TARGETS hostkv_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
