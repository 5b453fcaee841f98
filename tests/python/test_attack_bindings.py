"""Bad input to hostkv._core: an exception of Python's or the core's own, never a crash, nothing left pinned."""

from __future__ import annotations

import ctypes
import gc
import math
import random
from contextlib import suppress
from typing import Any

import pytest

from hostkv import _core

OPTIONS = '{"cpu_bytes_to_use": 1048576}'
PAGE_BYTES = 64
ALLOWED = (TypeError, ValueError, IndexError, AttributeError, KeyError, _core.HostKVError)


class Block:
    __slots__ = ("_block_hash", "_block_hash_num_tokens", "block_id", "next_free_block", "ref_cnt")

    def __init__(self, number: Any, owners: Any = 0) -> None:
        self.block_id, self.ref_cnt = number, owners
        self._block_hash = self._block_hash_num_tokens = self.next_free_block = None


class Pool:
    """The smallest pool that the binding takes; `breaks` raises in the method of that name."""

    name_of_id, name_of_owners, name_of_next_free = "block_id", "ref_cnt", "next_free_block"
    name_of_key, name_of_key_tokens = "_block_hash", "_block_hash_num_tokens"
    block_type, shows_cache, counts_accesses, num_handed_out = Block, True, False, 0

    def __init__(self, num_blocks: int = 16, breaks: str = "") -> None:
        self.blocks = [Block(number) for number in range(num_blocks)]
        self.cached: Any = {}
        self.secondary_keys: Any = {}
        self.table: list[Block] = []
        self.breaks = breaks

    def _enter(self, method: str) -> None:
        if self.breaks == method:
            raise OSError(method)

    def key_suffix(self, group: int) -> bytes:
        return group.to_bytes(4, "big")

    def tables(self, engine_id: str) -> Any:
        self._enter("tables")
        return [self.table]

    def touch(self, blocks: list[Block]) -> None:
        self._enter("touch")
        for block in blocks:
            block.ref_cnt += 1

    def free(self, blocks: list[Block]) -> None:
        self._enter("free")
        for block in blocks:
            block.ref_cnt -= 1

    free_to_front = free

    def num_free_blocks(self) -> int:
        self._enter("num_free_blocks")
        return len(self.blocks) - 1

    def first_victim(self) -> None:
        return None


def geometry() -> _core.Geometry:
    return _core.Geometry([{"kind": "full", "block_tokens": 16, "page_bytes": PAGE_BYTES}], {})


def scheduler(pool: Pool) -> _core.Scheduler:
    """Over one rank with room for a few blocks, and with request 1 of four blocks."""
    made = _core.Scheduler(geometry(), OPTIONS, 1, pool)
    made.on_worker_capacity(0, 4, 4096, [8], geometry().fingerprint)
    made.add_request(1, "one", 64)
    made.append_block_hashes(1, [bytes([i]) * 32 for i in range(4)], 0)
    return made


def worker() -> tuple[_core.Worker, bytearray]:
    made = _core.Worker(geometry(), OPTIONS, 0, 1)
    memory = bytearray(16 * PAGE_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    made.register_layout(16, [(address, len(memory))], [[(0, 0, PAGE_BYTES, PAGE_BYTES)]])
    return made, memory


@pytest.mark.parametrize(
    "tables", [[[Block(-1)] * 4], [[Block(1 << 20)] * 4], [[Block("x")] * 4], [[None] * 4], [7], 7]
)
def test_a_table_of_wrong_blocks_is_refused(tables: Any) -> None:
    core = scheduler(Pool())
    with pytest.raises(ALLOWED):
        core.on_blocks_allocated(1, tables, 0, 16)


def test_negative_local_tokens_are_refused() -> None:
    core = scheduler(Pool())
    with pytest.raises(ValueError, match="num_local_tokens is -1000"):
        core.on_blocks_allocated(1, [[Block(1), Block(2)]], -1000, 16)


@pytest.mark.parametrize("groups", [[{"kind": 7}], [{"kind": "full", "block_tokens": "x"}], [None], None])
def test_a_geometry_of_wrong_types_is_a_type_error(groups: Any) -> None:
    with pytest.raises(TypeError):
        _core.Geometry(groups, {})


@pytest.mark.parametrize("name", ["blocks", "cached", "secondary_keys", "shows_cache"])
def test_a_pool_of_wrong_types_is_a_type_error(name: str) -> None:
    pool = Pool()
    setattr(pool, name, 7)
    with pytest.raises(TypeError):
        _core.Scheduler(geometry(), OPTIONS, 1, pool)


def test_scheduled_numbers_come_in_threes() -> None:
    with pytest.raises(ValueError, match="three"):
        scheduler(Pool()).build_step([1, 0], [], [])


def test_a_pool_that_fails_to_pin_leaves_no_pin() -> None:
    pool = Pool(breaks="touch")
    core = scheduler(pool)
    pool.table = pool.blocks[1:5]
    pool.table[0].ref_cnt = 1  # owned: counted without the pool; the others are of nobody
    core.on_blocks_allocated(1, [[]], 0, 0)
    with pytest.raises(OSError, match="touch"):
        core.build_step([1, 0, 64], [], [])
    assert core.num_pins() == 0
    assert [block.ref_cnt for block in pool.table] == [1, 0, 0, 0]


@pytest.mark.parametrize("method", ["tables", "touch", "free", "num_free_blocks"])
def test_a_pool_that_raises_leaves_the_core_usable(method: str) -> None:
    pool = Pool(breaks=method)
    core = scheduler(pool)
    pool.table = pool.blocks[1:5]
    for block in pool.table:
        block.ref_cnt = 1
    core.on_blocks_allocated(1, [[]], 0, 0)
    for call in (lambda: core.build_step([1, 0, 64], [], []), core.reset, lambda: core.request_finished(1, 64),
                 core.shutdown):  # fmt: skip
        with suppress(OSError):
            call()
    pool.breaks = ""
    core.shutdown()
    core.check_conservation()
    assert core.num_pins() == 0
    assert all(block.ref_cnt == 1 for block in pool.table)


def test_a_scheduler_that_dies_in_an_exception_gives_its_pins_back() -> None:
    pool = Pool()
    pool.table = pool.blocks[1:5]
    for block in pool.table:
        block.ref_cnt = 1

    def dies() -> None:
        core = scheduler(pool)
        core.on_blocks_allocated(1, [[]], 0, 0)
        assert core.build_step([1, 0, 64], [], [])
        assert core.num_pins() == 4
        raise LookupError

    with pytest.raises(LookupError):
        dies()
    gc.collect()
    assert all(block.ref_cnt == 1 for block in pool.table)


def test_a_scheduler_whose_pool_fails_to_take_back_dies_quietly() -> None:
    pool = Pool(breaks="free")
    pool.table = pool.blocks[1:5]
    core = scheduler(pool)
    core.on_blocks_allocated(1, [[]], 0, 0)
    assert core.build_step([1, 0, 64], [], [])
    with pytest.raises(LookupError):
        try:
            raise LookupError
        finally:
            del core


def test_a_view_of_host_memory_keeps_it_mapped() -> None:
    core, memory = worker()
    view = core.host_block(0, 0)
    part = view[8:16]
    view.release()
    with pytest.raises(BufferError, match="views of host blocks are alive: 1"):
        core.shutdown(5.0)
    del core
    gc.collect()
    part[:] = b"unmapped"
    assert bytes(part) == b"unmapped"
    assert len(memory) == 16 * PAGE_BYTES


def test_shutdown_goes_on_once_views_are_gone() -> None:
    core, memory = worker()
    view = core.host_block(0, 0)
    with pytest.raises(BufferError):
        core.shutdown(5.0)
    del view
    core.shutdown(5.0)
    core.shutdown(5.0)
    with pytest.raises(_core.HostKVError):
        core.host_block(0, 0)
    assert len(memory) == 16 * PAGE_BYTES


@pytest.mark.parametrize("timeout", [math.nan, -1.0, -math.inf, None, "x"])
def test_a_timeout_that_is_no_time_is_refused(timeout: Any) -> None:
    core, _ = worker()
    with pytest.raises((ValueError, TypeError)):
        core.wait_idle(timeout)


def test_an_endless_timeout_is_a_long_one() -> None:
    core, _ = worker()
    core.wait_idle(math.inf)
    core.shutdown(1e300)


def test_garbage_messages_are_refused() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    numbers = random.Random(seed)
    core, _ = worker()
    empty = _core.describe_step
    for _ in range(500):
        garbage = numbers.randbytes(numbers.randrange(120))
        for taker in (core.bind_step, empty):
            with pytest.raises(ValueError):
                taker(garbage)


def test_wrong_values_never_crash() -> None:
    """Every method with every kind of wrong value; what is accepted may be."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    numbers = random.Random(seed)
    values: list[Any] = [
        None, -1, 0, 1, 2**31, 2**32, 2**62, 2**63, 2**64, 1.5, "x", b"x", [], {}, (), object(), [None], [[]],
        [1, 2, 3], [(1, 2, 3, 4)],
        [(0, 1, 0, 0, [(0, 0)])], [(2**63, 2**63, 2**31, 999, [(2**31, 2**32 - 1)])], "[" * 100000,
    ]  # fmt: skip
    arity = {
        "on_worker_capacity": 5, "add_request": 5, "append_block_hashes": 3, "truncate_block_hashes": 2,
        "match_prefix": 3, "on_blocks_allocated": 4, "cancel_match": 1, "build_step": 3, "on_worker_results": 1,
        "request_finished": 3, "reset": 0, "metrics": 0, "holds_alone": 0, "unregister_layout": 1, "bind_step": 1,
        "start_loads": 0, "start_stores": 0, "poll": 0, "host_block": 2,
    }  # fmt: skip
    refused = 0
    schedules, (works, _) = scheduler(Pool()), worker()
    for _ in range(3000):
        name = numbers.choice(list(arity))
        method = getattr(schedules, name, None) or getattr(works, name)
        try:
            method(*numbers.choices(values, k=arity[name]))
        except ALLOWED:
            refused += 1
    assert refused > 0
    schedules.check_conservation()
