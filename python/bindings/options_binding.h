#ifndef HOSTKV_PYTHON_BINDINGS_OPTIONS_BINDING_H_
#define HOSTKV_PYTHON_BINDINGS_OPTIONS_BINDING_H_

// Adds parse_options, option_table and parse_size_bytes to the module.
// Thread-safety: at import, under the GIL. Ownership: the module owns the functions. Cost: parsing allocates; done once
// at start. Failure: the functions raise ValueError with the core's message.

#include <nanobind/nanobind.h>

namespace hostkv::python {

void bind_options(nanobind::module_& module);

}  // namespace hostkv::python

#endif  // HOSTKV_PYTHON_BINDINGS_OPTIONS_BINDING_H_
