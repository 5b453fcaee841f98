# Warnings of every target of ours; linked PRIVATE.
add_library(hostkv_warnings INTERFACE)
target_compile_options(hostkv_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align -Wunused -Wconversion
  -Wsign-conversion -Wdouble-promotion -Wformat=2 -Wimplicit-fallthrough $<$<BOOL:${HOSTKV_WERROR}>:-Werror>)
# g++ 12 reports an overlapping copy in `"text" + std::string` that cannot happen (GCC bug 105651, gone in 13).
target_compile_options(hostkv_warnings INTERFACE
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
