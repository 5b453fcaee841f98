#include "python/bindings/engine_pool.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace nb = nanobind;

namespace hostkv::python {
namespace {

constexpr std::size_t kGroupSuffixBytes = 4;
// A pool's block objects lie scattered over the heap: a loop over many asks for their memory so many ahead.
constexpr std::size_t kObjectsAhead = 16;
constexpr std::size_t kNumbersAhead = 8;

std::int64_t number(nb::handle object) {
  const long long value = PyLong_AsLongLong(object.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    throw nb::python_error();
  }
  return value;
}

nb::object interned(const nb::object& text) {
  PyObject* name = text.inc_ref().ptr();
  PyUnicode_InternInPlace(&name);
  return nb::steal(name);
}

std::span<const std::byte> bytes_of(nb::handle key) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(key.ptr(), &data, &size) != 0) {
    throw nb::python_error();
  }
  return {reinterpret_cast<const std::byte*>(data), static_cast<std::size_t>(size)};
}

bool same_bytes(nb::handle a, nb::handle b) {
  return a.is(b) || (PyBytes_Check(a.ptr()) && PyBytes_Check(b.ptr()) && std::ranges::equal(bytes_of(a), bytes_of(b)));
}

}  // namespace

EnginePool::EnginePool(nb::object shim, std::vector<std::int64_t> state_spans)
    : shim_(std::move(shim)), state_spans_(std::move(state_spans)) {
  blocks_ = nb::cast<nb::list>(shim_.attr("blocks"));
  block_type_ = shim_.attr("block_type");
  const auto slot = [&](const char* name) { return ObjectSlot(block_type_, interned(shim_.attr(name))); };
  id_ = slot("name_of_id");
  owners_ = slot("name_of_owners");
  key_ = slot("name_of_key");
  key_tokens_ = slot("name_of_key_tokens");
  next_free_ = slot("name_of_next_free");
  shows_cache_ = nb::cast<bool>(shim_.attr("shows_cache"));
  counts_accesses_ = nb::cast<bool>(shim_.attr("counts_accesses"));
  pins_.resize(nb::len(blocks_));
  begin_call();
  for (std::size_t g = 0; g < state_spans_.size(); ++g) {
    const nb::object suffix = shim_.attr("key_suffix")(g);
    const auto bytes = bytes_of(suffix);
    if (bytes.size() != kGroupSuffixBytes) {
      throw nb::value_error("a cache key must be a prefix hash and 4 bytes of group number");
    }
    key_suffixes_.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
}

void EnginePool::end_call() {
  if (failure_ != nullptr) {
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

// An exception must not unwind the core in the middle of its books: it waits for the end of the call.
template <class Answer, class Call>
Answer EnginePool::answer(Answer otherwise, Call call) const {
  try {
    return call();
  } catch (...) {
    if (failure_ == nullptr) {
      failure_ = std::current_exception();
    }
    return otherwise;
  }
}

// The engine's maps are asked for anew: a reset of its cache replaces them.
void EnginePool::begin_call() {
  num_tables_ = 0;
  failure_ = nullptr;
  cached_ = nb::cast<nb::dict>(shim_.attr("cached"));
  secondary_ = nb::cast<nb::dict>(shim_.attr("secondary_keys"));
}

void EnginePool::know_request(RequestId id, nb::object engine_id) {
  requests_[id] = std::move(engine_id);
}

void EnginePool::forget_request(RequestId id) {
  requests_.erase(id);
}

BlockId EnginePool::id_of(nb::handle block) const {
  const std::int64_t id = id_.number(block);
  if (id < 0 || id >= std::ssize(pins_)) {
    throw nb::value_error(
        ("the pool has no block " + std::to_string(id) + "; it has " + std::to_string(pins_.size())).c_str());
  }
  return BlockId{static_cast<std::uint32_t>(id)};
}

nb::handle EnginePool::block_object(BlockId block) const {
  if (block.value() >= pins_.size()) {
    throw nb::index_error("a block behind the end of the pool");
  }
  PyObject* object = PyList_GetItem(blocks_.ptr(), static_cast<Py_ssize_t>(block.value()));
  if (object == nullptr) {
    throw nb::python_error();
  }
  return object;
}

void EnginePool::prefetch(std::span<const BlockId> blocks, std::size_t at) const {
  if (at + kObjectsAhead >= blocks.size() || blocks[at + kObjectsAhead].value() >= pins_.size()) {
    return;  // what is no block of the pool is told of when its turn comes
  }
  const auto ahead = static_cast<Py_ssize_t>(blocks[at + kObjectsAhead].value());
  if (PyObject* object = ahead < PyList_Size(blocks_.ptr()) ? PyList_GetItem(blocks_.ptr(), ahead) : nullptr) {
    owners_.prefetch(object);
  }
}

GroupTable EnginePool::convert(nb::handle blocks, std::int64_t first_block) {
  if (first_block < 0) {
    throw nb::value_error("a table is read from a negative block on");
  }
  if (num_tables_ == tables_.size()) {
    tables_.emplace_back();
  }
  std::vector<BlockId>& table = tables_[num_tables_++];
  const nb::object fast =
      PyList_Check(blocks.ptr()) != 0 ? nb::borrow(blocks) : nb::steal(PySequence_List(blocks.ptr()));
  if (!fast.is_valid()) {
    throw nb::python_error();
  }
  const Py_ssize_t size = PyList_Size(fast.ptr());
  table.assign(static_cast<std::size_t>(size), kNullBlock);
  for (Py_ssize_t i = first_block; i < size; ++i) {
    if (i + Py_ssize_t{kObjectsAhead} < size) {
      id_.prefetch(PyList_GetItem(fast.ptr(), i + Py_ssize_t{kObjectsAhead}));
      id_.prefetch_value(PyList_GetItem(fast.ptr(), i + Py_ssize_t{kNumbersAhead}));
    }
    PyObject* block = PyList_GetItem(fast.ptr(), i);
    if (block == nullptr) {
      throw nb::python_error();
    }
    table[static_cast<std::size_t>(i)] = id_of(block);
  }
  return table;
}

bool EnginePool::holds_alone() const {
  for (std::size_t b = 0; num_pins_ > 0 && b < pins_.size(); ++b) {
    if (pins_[b] > 0 && owners_.number(block_object(BlockId{static_cast<std::uint32_t>(b)})) <= pins_[b]) {
      return true;
    }
  }
  return false;
}

// A block of somebody gets one owner more; one of the free queue is taken out of it by the engine's own code. What can
// raise comes first, so that a failure leaves nothing pinned.
void EnginePool::pin_all(std::span<const BlockId> blocks) {
  nb::list of_nobody;
  owned_.clear();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    prefetch(blocks, i);
    const nb::handle object = block_object(blocks[i]);
    if (!counts_accesses_ && owners_.number(object) > 0) {
      owned_.push_back(object);
    } else {
      of_nobody.append(object);
    }
  }
  if (nb::len(of_nobody) > 0) {
    shim_.attr("touch")(of_nobody);
  }
  for (const nb::handle object : owned_) {
    owners_.set_number(object, owners_.number(object) + 1);
  }
  for (const BlockId block : blocks) {
    ++pins_[block.value()];
  }
  num_pins_ += std::ssize(blocks);
}

void EnginePool::pin(std::span<const BlockId> blocks) {
  answer(0, [&] {
    pin_all(blocks);
    return 0;
  });
}

// The core may believe in a pin that failed: it has no owner to take back.
void EnginePool::drop_owner(BlockId block, nb::list& last) {
  if (block.value() >= pins_.size() || pins_[block.value()] == 0) {
    return;
  }
  --pins_[block.value()];
  --num_pins_;
  const nb::handle object = block_object(block);
  const std::int64_t owners = owners_.number(object);
  if (owners > 1) {
    owners_.set_number(object, owners - 1);
  } else {
    last.append(object);
  }
}

void EnginePool::drop_owners(std::span<const BlockId> blocks, const char* method) {
  nb::list last;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    answer(0, [&] {
      prefetch(blocks, i);
      drop_owner(blocks[i], last);
      return 0;
    });
  }
  answer(0, [&] {
    if (nb::len(last) > 0) {
      shim_.attr(method)(last);
    }
    return 0;
  });
}

void EnginePool::unpin(std::span<const BlockId> blocks) {
  drop_owners(blocks, "free");
}

void EnginePool::unpin_to_front(std::span<const BlockId> blocks) {
  drop_owners(blocks, "free_to_front");
}

GroupTable EnginePool::block_table(RequestId request, GroupIndex group, std::int64_t first_block) {
  const auto at = requests_.find(request);
  if (at == requests_.end()) {
    return {};
  }
  return answer(GroupTable(), [&] {
    const nb::object tables = shim_.attr("tables")(at->second);
    return convert(tables[group.value()], first_block);
  });
}

nb::object EnginePool::key_of(GroupIndex group, std::span<const std::byte> hash) const {
  const std::string& suffix = key_suffixes_[group.value()];
  nb::object key = nb::steal(PyBytes_FromStringAndSize(nullptr, std::ssize(hash) + std::ssize(suffix)));
  if (!key.is_valid()) {
    throw nb::python_error();
  }
  char* to = PyBytes_AsString(key.ptr());
  std::copy_n(reinterpret_cast<const char*>(hash.data()), hash.size(), to);
  std::copy(suffix.begin(), suffix.end(), to + hash.size());
  return key;
}

// Any of the blocks that carry the key. Invalid: none does.
nb::handle EnginePool::cached_block(nb::handle key) const {
  PyObject* found = PyDict_GetItemWithError(cached_.ptr(), key.ptr());
  if (found == nullptr) {
    if (PyErr_Occurred() != nullptr) {
      throw nb::python_error();
    }
    return {};
  }
  if (reinterpret_cast<PyObject*>(Py_TYPE(found)) == block_type_.ptr()) {
    return found;
  }
  Py_ssize_t position = 0;
  PyObject* block = nullptr;
  return PyDict_Check(found) != 0 && PyDict_Next(found, &position, nullptr, &block) != 0 ? nb::handle(block)
                                                                                         : nb::handle();
}

// A state whose key ends inside its block is written over in place by the request that owns the block.
bool EnginePool::may_be_copied(nb::handle block, GroupIndex group, nb::handle key) const {
  const std::int64_t span = state_spans_[group.value()];
  if (span == 0 || owners_.number(block) == 0) {
    return true;
  }
  const nb::object primary = key_.get(block);
  const nb::object tokens = key_tokens_.get(block);
  return same_bytes(primary, key) && !tokens.is_none() && number(tokens) % span == 0;
}

void EnginePool::find_cached(GroupIndex group, std::span<const std::byte> hashes, std::size_t hash_size_bytes,
                             std::span<BlockId> blocks) {
  std::ranges::fill(blocks, kNullBlock);
  if (PyDict_Size(cached_.ptr()) == 0) {
    return;
  }
  answer(0, [&] {
    find_all(group, hashes, hash_size_bytes, blocks);
    return 0;
  });
}

void EnginePool::find_all(GroupIndex group, std::span<const std::byte> hashes, std::size_t hash_size_bytes,
                          std::span<BlockId> blocks) const {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const nb::object key = key_of(group, hashes.subspan(i * hash_size_bytes, hash_size_bytes));
    const nb::handle block = cached_block(key);
    blocks[i] = block.is_valid() && may_be_copied(block, group, key) ? id_of(block) : kNullBlock;
  }
}

bool EnginePool::carries_key(BlockId block, GroupIndex group, std::span<const std::byte> hash) {
  return answer(false, [&] { return has_key(block, group, hash); });
}

bool EnginePool::has_key(BlockId block, GroupIndex group, std::span<const std::byte> hash) const {
  const nb::object key = key_of(group, hash);
  if (same_bytes(key_.get(block_object(block)), key)) {
    return true;
  }
  const nb::object number_of_block = nb::steal(PyLong_FromUnsignedLong(block.value()));
  PyObject* further = PyDict_GetItemWithError(secondary_.ptr(), number_of_block.ptr());
  const int contained = further == nullptr ? 0 : PySet_Contains(further, key.ptr());
  if (contained < 0) {
    throw nb::python_error();
  }
  return contained == 1;
}

std::int64_t EnginePool::num_free_blocks() const {
  return answer(std::int64_t{0}, [&] { return number(shim_.attr("num_free_blocks")()); });
}

std::uint64_t EnginePool::num_handed_out() const {
  return answer(std::uint64_t{0}, [&] { return static_cast<std::uint64_t>(number(shim_.attr("num_handed_out"))); });
}

void EnginePool::append_key(BlockId block, nb::object key, std::vector<CachedBlock>& victims) {
  const std::span<const std::byte> bytes = bytes_of(key);
  if (bytes.size() < kGroupSuffixBytes) {
    throw nb::value_error("a cache key must be a prefix hash and 4 bytes of group number");
  }
  std::uint32_t group = 0;
  for (const std::byte digit : bytes.last(kGroupSuffixBytes)) {
    group = (group << 8U) | static_cast<std::uint32_t>(digit);
  }
  if (group >= state_spans_.size()) {
    throw nb::value_error(("a cache key is of group " + std::to_string(group) + ", which the model lacks").c_str());
  }
  victims.push_back(CachedBlock{block, GroupIndex{group}, bytes.first(bytes.size() - kGroupSuffixBytes)});
  victim_keys_.push_back(std::move(key));
}

void EnginePool::append_victim(nb::handle block, std::vector<CachedBlock>& victims) {
  const BlockId id = id_of(block);
  nb::object primary = key_.get(block);
  if (primary.is_none()) {
    victims.push_back(CachedBlock{id, GroupIndex{0}, {}});
    return;
  }
  append_key(id, std::move(primary), victims);
  const nb::object number_of_block = nb::steal(PyLong_FromUnsignedLong(id.value()));
  if (PyObject* further = PyDict_GetItemWithError(secondary_.ptr(), number_of_block.ptr()); further != nullptr) {
    for (nb::handle key : nb::cast<nb::set>(nb::handle(further))) {
      append_key(id, nb::borrow(key), victims);
    }
  }
}

void EnginePool::next_victims(std::size_t max_blocks, std::vector<CachedBlock>& victims) {
  victim_keys_.clear();
  answer(0, [&] {
    append_victims(max_blocks, victims);
    return 0;
  });
}

void EnginePool::append_victims(std::size_t max_blocks, std::vector<CachedBlock>& victims) {
  nb::object block = shim_.attr("first_victim")();
  for (std::size_t n = 0; n < max_blocks && !block.is_none() && id_.number(block) >= 0; ++n) {
    append_victim(block, victims);
    block = next_free_.get(block);
  }
}

}  // namespace hostkv::python
