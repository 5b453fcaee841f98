hostkv_test(NAME geometry_test LABEL unit LIBS hostkv_geometry SOURCES
  unit/geometry/resolve_test.cc unit/geometry/refusals_test.cc unit/geometry/needs_test.cc
  unit/geometry/token_places_test.cc unit/geometry/kv_layout_test.cc unit/geometry/copy_plan_test.cc)

hostkv_test(NAME geometry_property_test LABEL property LIBS hostkv_geometry SOURCES
  property/geometry/token_places_property_test.cc property/geometry/needs_property_test.cc
  property/geometry/layout_property_test.cc)

hostkv_test(NAME conformance_test LABEL unit LIBS hostkv_bench_conformance SOURCES unit/geometry/conformance_test.cc)
target_compile_definitions(conformance_test PRIVATE
  HOSTKV_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
  HOSTKV_DEFAULT_VECTORS="${PROJECT_SOURCE_DIR}/../shared/vectors")
