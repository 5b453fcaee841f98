#ifndef HOSTKV_BASE_CHECK_H_
#define HOSTKV_BASE_CHECK_H_

// HOSTKV_CHECK(condition, "R4: ..."): a broken invariant. Aborts with file, line and text, in every build: going on
// would risk a wrong byte. For conditions that input can break, answer a Status instead. HOSTKV_DCHECK: the same in
// Debug builds, nothing in Release; for preconditions on hot paths.

namespace hostkv::detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* text);
}  // namespace hostkv::detail

#define HOSTKV_CHECK(condition, text)                                       \
  do {                                                                      \
    if (!(condition)) [[unlikely]] {                                        \
      ::hostkv::detail::check_failed(__FILE__, __LINE__, #condition, text); \
    }                                                                       \
  } while (false)

#ifdef NDEBUG
#define HOSTKV_DCHECK(condition, text) \
  do {                                 \
  } while (false)
#else
#define HOSTKV_DCHECK(condition, text) HOSTKV_CHECK(condition, text)
#endif

#endif  // HOSTKV_BASE_CHECK_H_
