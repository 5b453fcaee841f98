# Where requests go on after failed loads.
hostkv_test(NAME recovery_unit_test LABEL unit LIBS hostkv_recovery SOURCES
  unit/recovery/safe_boundary_test.cc unit/recovery/recovery_plan_test.cc unit/recovery/shared_blocks_test.cc
  unit/recovery/in_process_collective_test.cc unit/recovery/plan_together_test.cc unit/cases/recovery_cases_test.cc)

hostkv_test(NAME recovery_property_test LABEL property LIBS hostkv_recovery SOURCES
  property/recovery/random_tables.cc property/recovery/safe_boundary_property_test.cc
  property/recovery/plan_model.cc property/recovery/plan_property_test.cc)
