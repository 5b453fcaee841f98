// What GCC 12 gave a new symbol version is taken by its old one, which every later libstdc++ exports too. Otherwise a
// wheel that is linked with GCC 12 asks for GLIBCXX_3.4.30, and RHEL 9 and its kin (3.4.29) cannot load it. The linker
// sends calls of the function to its __wrap_ name (python/CMakeLists.txt).

#include <condition_variable>
#include <mutex>

extern "C" {
// The new version of std::condition_variable::wait lets thread cancellation through; nothing here cancels threads.
__asm__(".symver hostkv_wait, _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
void hostkv_wait(std::condition_variable* condition, std::unique_lock<std::mutex>* lock);

// NOLINTNEXTLINE(bugprone-reserved-identifier, readability-identifier-naming): the linker's name
void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable* condition,
                                                                      std::unique_lock<std::mutex>* lock) {
  hostkv_wait(condition, lock);
}
}
