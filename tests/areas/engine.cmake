set(ENGINE_LIBS hostkv_bench_engine)
hostkv_test(NAME engine_unit_test LABEL unit LIBS ${ENGINE_LIBS} hostkv_test_support
  SOURCES unit/engine/block_pool_test.cc unit/engine/payload_test.cc unit/engine/prefix_lookup_test.cc
          unit/engine/kv_cache_manager_test.cc unit/engine/engine_test.cc unit/engine/byte_check_test.cc
          unit/engine/engine_offload_test.cc unit/engine/liveness_test.cc unit/engine/unfindable_groups_test.cc
          unit/engine/fine_boundaries_test.cc unit/engine/speculative_test.cc unit/engine/run_ahead_test.cc
          unit/engine/synchronous_load_test.cc)
hostkv_test(NAME engine_property_test LABEL property LIBS ${ENGINE_LIBS} hostkv_test_support
  SOURCES property/engine/block_pool_property_test.cc property/engine/prefix_lookup_property_test.cc
          property/engine/engine_soak_test.cc property/engine/liveness_property_test.cc
          property/engine/failing_copies_property_test.cc property/engine/flipped_bits_property_test.cc
          property/engine/random_models_soak_test.cc)

hostkv_test(NAME engine_hybrid_test LABEL property LIBS ${ENGINE_LIBS} hostkv_test_support
  SOURCES property/engine/hybrid_soak_test.cc)
