# HOSTKV_SANITIZE: the whole build, so that no object is left uninstrumented.
if(HOSTKV_SANITIZE)
  string(REPLACE ";" "," hostkv_sanitize_list "${HOSTKV_SANITIZE}")
  add_compile_options(-fsanitize=${hostkv_sanitize_list} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${hostkv_sanitize_list})
endif()
