# Who includes whom, and that the check sees what it should.
set(layering_check ${CMAKE_CURRENT_SOURCE_DIR}/layering/check_includes)
add_test(NAME layering COMMAND sh ${layering_check} ${PROJECT_SOURCE_DIR})
add_test(NAME layering_sees_planted_include
  COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/layering/planted_test ${layering_check}
    ${CMAKE_CURRENT_BINARY_DIR}/layering_tree)
set_tests_properties(layering layering_sees_planted_include PROPERTIES LABELS layering TIMEOUT 60)
