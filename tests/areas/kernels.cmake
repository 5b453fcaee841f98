hostkv_test(NAME kernels_unit_test LABEL unit SOURCES unit/kernels/cuda_driver_test.cc LIBS hostkv_kernels)
