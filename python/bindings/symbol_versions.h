#ifndef HOSTKV_PYTHON_BINDINGS_SYMBOL_VERSIONS_H_
#define HOSTKV_PYTHON_BINDINGS_SYMBOL_VERSIONS_H_

// Included by the compiler's command line into every source of a wheel: binds what GCC 12 gave a new symbol version to
// the old one, which every later libstdc++ exports too. Without it the wheel asks for GLIBCXX_3.4.30 (GCC 12) instead of
// 3.4.29 (GCC 11: RHEL 9 and its kin).
// std::condition_variable::wait: the new version may let thread cancellation through; nothing here cancels threads.

#if defined(__x86_64__) && defined(__GNUC__)
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif

#endif  // HOSTKV_PYTHON_BINDINGS_SYMBOL_VERSIONS_H_
