hostkv_test(NAME base_unit_test LABEL unit
  SOURCES unit/base/check_test.cc unit/base/json_depth_test.cc unit/base/nearest_name_test.cc unit/base/status_test.cc unit/base/types_test.cc
  LIBS hostkv_base)
