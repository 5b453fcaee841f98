# Warnings of every target of ours; linked PRIVATE.
add_library(hostkv_warnings INTERFACE)
target_compile_options(hostkv_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align -Wunused -Wconversion
  -Wsign-conversion -Wdouble-promotion -Wformat=2 -Wimplicit-fallthrough $<$<BOOL:${HOSTKV_WERROR}>:-Werror>
  # g++ 12 sees overlapping copies in plain std::string concatenation (GCC bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
