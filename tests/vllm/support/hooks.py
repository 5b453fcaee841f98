"""Faults planted between the worker half and its core: failed, held and torn loads, flipped host bytes.

The proxy takes the place of `worker_side.core`, so what the adapter and the engine do with a fault is the real path.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hostkv import _core

GARBAGE = 0x3E  # as an exponent it gives small finite floats: a wrong answer, never a nan
DEVICE_ERROR = 10  # StatusCode::kDeviceError of include/hostkv/status.h
UNTIL_RELEASED = 1 << 30
Target = tuple[int, int]  # (group, device block)


@dataclass(frozen=True)
class Job:
    """`blocks`: (group, device block, host slot or source block) each."""

    epoch: int
    job: int
    direction: str
    blocks: tuple[tuple[int, int, int], ...]

    @property
    def slots(self) -> set[tuple[int, int]]:
        return {(group, slot) for group, _, slot in self.blocks}

    @property
    def targets(self) -> set[Target]:
        return {(group, block) for group, block, _ in self.blocks}


def later_half(job: Job) -> list[Target]:
    return [(group, block) for group, block, _ in job.blocks[len(job.blocks) // 2 :]]


class CoreProxy:
    """Passes every call on. Faults apply to jobs that end after the fault was set.

    `fail_loads`: so many load jobs end as failed; the targets that `torn_of` chooses, the later half if nothing else is
    said, then hold garbage, as a torn copy leaves them. `silent`: the same bytes, but the result says that all went
    well.
    `hold_loads`, `hold_stores`: a result of that direction reaches the adapter only after so many polls.
    """

    def __init__(self, connector: Any) -> None:
        self._side = connector.worker_side
        self._core = self._side.core
        self._groups = [group.layer_names for group in connector._kv_cache_config.kv_cache_groups]
        self._open: dict[tuple[int, int], Job] = {}
        self._held: list[tuple[int, Any]] = []  # (polls left, result)
        self.jobs: list[Job] = []
        self.fail_loads = 0
        self.silent = False
        self.torn_of = later_half
        self.hold_loads = 0
        self.hold_stores = 0
        self.torn: list[tuple[Job, list[Target]]] = []

    def install(self) -> CoreProxy:
        self._side.core = self
        return self

    def remove(self) -> None:
        assert not self._held, "results are still held"
        self._side.core = self._core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    @property
    def loads(self) -> list[Job]:
        return [job for job in self.jobs if job.direction == "load"]

    @property
    def stores(self) -> list[Job]:
        return [job for job in self.jobs if job.direction == "store"]

    @property
    def num_held(self) -> int:
        return len(self._held)

    def release(self) -> None:
        """Held results are given out with the next poll, and nothing more is held."""
        self.hold_loads = self.hold_stores = 0
        self._held = [(0, result) for _, result in self._held]

    def metrics(self) -> dict[str, int]:
        """The adapter polls while jobs are in flight; held ones are."""
        found = dict(self._core.metrics())
        found["jobs_in_flight"] += len(self._held)
        return found

    def bind_step(self, step: Any) -> Any:
        described = _core.describe_step(step)
        for found in described["jobs"]:
            blocks = tuple(tuple(block) for block in found["blocks"])
            job = Job(described["epoch"], found["id"], found["direction"], blocks)
            self._open[job.epoch, job.job] = job
            self.jobs.append(job)
        return self._core.bind_step(step)

    def poll(self) -> list[Any]:
        ready = [result for polls, result in self._held if polls <= 0]
        self._held = [(polls - 1, result) for polls, result in self._held if polls > 0]
        for result in self._core.poll():
            job = self._open.pop((result[0], result[1]))
            result = self._spoil(job, result)
            polls = {"load": self.hold_loads, "store": self.hold_stores}.get(job.direction, 0)
            if polls > 0:
                self._held.append((polls - 1, result))
            else:
                ready.append(result)
        return ready

    def _spoil(self, job: Job, result: Any) -> Any:
        if job.direction != "load" or self.fail_loads <= 0:
            return result
        self.fail_loads -= 1
        torn = self.torn_of(job)
        self.torn.append((job, torn))
        for target in torn:
            self.write_garbage(target)
        return result if self.silent else (*result[:3], DEVICE_ERROR, torn)

    def torn_slots(self) -> set[tuple[int, int]]:
        """Host slots whose rows were reported as failed."""
        return {(group, slot) for job, torn in self.torn for group, block, slot in job.blocks if (group, block) in torn}

    def write_garbage(self, target: Target) -> None:
        import torch

        group, block = target
        for layer in self._groups[group]:
            if layer in self._side.kv_caches:
                self._side.kv_caches[layer][block].view(torch.int8).fill_(GARBAGE)


@contextmanager
def faults(engine: Any) -> Iterator[CoreProxy]:
    """A proxy in the worker half of an engine of one process, taken out at the end."""
    proxy = CoreProxy(engine.worker_connector).install()
    try:
        yield proxy
    finally:
        proxy.release()
        engine.idle()
        proxy.remove()


def flip_byte(core: Any, group: int, slot: int, offset: int) -> None:
    """Turns bits of one byte of a host slot around; a second call restores it."""
    view = core.host_block(group, slot)
    view[offset] ^= 0x21
