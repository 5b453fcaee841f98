#include "base/thread_name.h"

#include <pthread.h>

#include <string>

namespace hostkv {

void name_current_thread(std::string_view name) {
  constexpr std::size_t kMaxCharacters = 15;
  pthread_setname_np(pthread_self(), std::string(name.substr(0, kMaxCharacters)).c_str());
}

}  // namespace hostkv
