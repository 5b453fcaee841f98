#include <nanobind/nanobind.h>

#include "hostkv/version.h"
#include "python/bindings/options_binding.h"

NB_MODULE(_core, module) {
  module.attr("__doc__") = "The C++ core of HostKV.";
  module.attr("__version__") = hostkv::kVersion;
  hostkv::python::bind_options(module);
}
