// hostkv._core: the library for Python.

#include <nanobind/nanobind.h>

#include <exception>
#include <typeinfo>

#include "hostkv/version.h"
#include "python/bindings/bindings.h"
#include "python/bindings/errors.h"

namespace nb = nanobind;

NB_MODULE(_core, module) {
  module.doc() = "HostKV's C++ library: geometry, scheduler side, worker side.";
  module.attr("__version__") = hostkv::kVersion;
  nb::exception<hostkv::python::CoreError>(module, "HostKVError", PyExc_RuntimeError);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_cast&) {
      PyErr_SetString(PyExc_TypeError, "a value has the wrong type");
    }
  });
  hostkv::python::bind_options(module);
  hostkv::python::bind_geometry(module);
  hostkv::python::bind_scheduler(module);
  hostkv::python::bind_worker(module);
}
