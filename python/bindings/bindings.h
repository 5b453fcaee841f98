#ifndef HOSTKV_PYTHON_BINDINGS_BINDINGS_H_
#define HOSTKV_PYTHON_BINDINGS_BINDINGS_H_

// What each file of the bindings adds to hostkv._core. Called once, while the module is made.

#include <nanobind/nanobind.h>

namespace hostkv::python {

void bind_options(nanobind::module_& module);
void bind_geometry(nanobind::module_& module);
void bind_scheduler(nanobind::module_& module);
void bind_worker(nanobind::module_& module);

}  // namespace hostkv::python

#endif  // HOSTKV_PYTHON_BINDINGS_BINDINGS_H_
