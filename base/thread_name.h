#ifndef HOSTKV_BASE_THREAD_NAME_H_
#define HOSTKV_BASE_THREAD_NAME_H_

#include <string_view>

namespace hostkv {

// Names the calling thread for ps, gdb and perf; the system keeps the first 15 characters. A refusal is ignored: a name
// is only for people.
void name_current_thread(std::string_view name);

}  // namespace hostkv

#endif  // HOSTKV_BASE_THREAD_NAME_H_
