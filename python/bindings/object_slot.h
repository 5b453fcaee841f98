#ifndef HOSTKV_PYTHON_BINDINGS_OBJECT_SLOT_H_
#define HOSTKV_PYTHON_BINDINGS_OBJECT_SLOT_H_

#include <nanobind/nanobind.h>

#include <cstdint>

namespace hostkv::python {

// One attribute of a class of many objects.
//
// Purpose: where the class keeps it in a slot (`__slots__`), its place in the object is read from the class once, and
// then the value without asking by name, a third of the cost. Anything else goes by name: another class, no slot, a
// slot without a value. Thread-safety: with the GIL. Failure: the exception of the access by name.
class ObjectSlot {
 public:
  ObjectSlot() = default;
  ObjectSlot(nanobind::handle type, nanobind::object name);

  [[nodiscard]] bool has_place() const { return offset_ > 0; }
  // Starts the fetch of the value's place in the object.
  void prefetch(nanobind::handle object) const;
  // Of the value itself: the place has come. Nothing where it goes by name.
  void prefetch_value(nanobind::handle object) const;
  [[nodiscard]] nanobind::object get(nanobind::handle object) const;
  [[nodiscard]] std::int64_t number(nanobind::handle object) const;
  void set_number(nanobind::handle object, std::int64_t value) const;

 private:
  // The value, borrowed; null where it must be asked for by name.
  [[nodiscard]] PyObject* in_place(nanobind::handle object) const;

  PyTypeObject* type_ = nullptr;  // the owner of the slot keeps it alive
  nanobind::object name_;
  Py_ssize_t offset_ = 0;  // in bytes; 0: by name
};

}  // namespace hostkv::python

#endif  // HOSTKV_PYTHON_BINDINGS_OBJECT_SLOT_H_
