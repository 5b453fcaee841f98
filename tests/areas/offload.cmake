hostkv_test(NAME offload_test LABEL unit LIBS hostkv_recovery SOURCES
  unit/offload/block_index_test.cc unit/offload/lru_policy_test.cc unit/offload/offload_cache_test.cc
  unit/offload/offload_cache_pressure_test.cc unit/offload/offload_key_test.cc unit/offload/pool_plan_test.cc
  unit/offload/slot_allocator_test.cc unit/recovery/rank_merge_test.cc)

hostkv_test(NAME offload_property_test LABEL property LIBS hostkv_offload SOURCES
  property/offload/block_index_property_test.cc property/offload/lru_policy_property_test.cc
  property/offload/offload_cache_property_test.cc property/offload/pool_plan_property_test.cc
  property/offload/slot_allocator_property_test.cc)

hostkv_test(NAME planning_property_test LABEL property LIBS hostkv_connector SOURCES
  property/connector/prefix_search_test.cc property/connector/joint_case.cc property/connector/joint_lookup_property_test.cc
  property/connector/store_planner_test.cc property/connector/store_planner_property_test.cc)
