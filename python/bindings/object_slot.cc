#include "python/bindings/object_slot.h"

#include <structmember.h>

#include <cstring>
#include <utility>

namespace nb = nanobind;

namespace hostkv::python {
namespace {

// Where objects of `type` keep `name`: only a slot that its own class statement made, and that holds any object.
Py_ssize_t offset_of(nb::handle type, nb::handle name) {
  if (PyType_Check(type.ptr()) == 0 ||
      (PyType_GetFlags(reinterpret_cast<PyTypeObject*>(type.ptr())) & Py_TPFLAGS_HEAPTYPE) == 0) {
    return 0;
  }
  const char* wanted = nb::borrow<nb::str>(name).c_str();
  const auto* member =
      static_cast<const PyMemberDef*>(PyType_GetSlot(reinterpret_cast<PyTypeObject*>(type.ptr()), Py_tp_members));
  for (; member != nullptr && member->name != nullptr; ++member) {
    if (std::strcmp(member->name, wanted) == 0) {
      return member->type == T_OBJECT_EX && (member->flags & READONLY) == 0 ? member->offset : 0;
    }
  }
  return 0;
}

std::int64_t as_number(PyObject* object) {
  const long long value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) {
    throw nb::python_error();
  }
  return value;
}

char* place(nb::handle object, Py_ssize_t offset) {
  return reinterpret_cast<char*>(object.ptr()) + offset;
}

}  // namespace

ObjectSlot::ObjectSlot(nb::handle type, nb::object name)
    : type_(reinterpret_cast<PyTypeObject*>(type.ptr())), name_(std::move(name)), offset_(offset_of(type, name_)) {}

PyObject* ObjectSlot::in_place(nb::handle object) const {
  if (offset_ == 0 || Py_TYPE(object.ptr()) != type_) {
    return nullptr;
  }
  PyObject* value = nullptr;
  std::memcpy(&value, place(object, offset_), sizeof(value));
  return value;
}

void ObjectSlot::prefetch(nb::handle object) const {
  __builtin_prefetch(place(object, offset_), 1);
}

void ObjectSlot::prefetch_value(nb::handle object) const {
  __builtin_prefetch(in_place(object));
}

nb::object ObjectSlot::get(nb::handle object) const {
  if (PyObject* value = in_place(object); value != nullptr) {
    return nb::borrow(value);
  }
  PyObject* value = PyObject_GetAttr(object.ptr(), name_.ptr());
  if (value == nullptr) {
    throw nb::python_error();
  }
  return nb::steal(value);
}

std::int64_t ObjectSlot::number(nb::handle object) const {
  if (PyObject* value = in_place(object); value != nullptr) {
    return as_number(value);
  }
  return as_number(get(object).ptr());
}

void ObjectSlot::set_number(nb::handle object, std::int64_t value) const {
  nb::object boxed = nb::steal(PyLong_FromLongLong(value));
  if (!boxed.is_valid()) {
    throw nb::python_error();
  }
  if (PyObject* before = in_place(object); before != nullptr) {
    PyObject* after = boxed.release().ptr();
    std::memcpy(place(object, offset_), &after, sizeof(after));
    Py_DECREF(before);
    return;
  }
  if (PyObject_SetAttr(object.ptr(), name_.ptr(), boxed.ptr()) != 0) {
    throw nb::python_error();
  }
}

}  // namespace hostkv::python
