"""Faults planted between the worker half and its core: failed, held and torn loads, flipped host bytes.

The proxy takes the place of `worker_side.core`, so what the adapter and the engine do with a fault is the real path.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

GARBAGE = 0x3E  # as an exponent it gives small finite floats: a wrong answer, never a nan
DEVICE_ERROR = 10  # StatusCode::kDeviceError of include/hostkv/status.h
Target = tuple[int, int]  # (group, device block)


@dataclass(frozen=True)
class LoadJob:
    epoch: int
    job: int
    blocks: tuple[tuple[int, int, int], ...]  # (group, device block, host slot)


class CoreProxy:
    """Passes every call on. Faults apply to loads from the host that end after the fault was set.

    `fail_next`: so many load jobs end as failed; half of their targets then hold garbage, as a torn copy leaves them.
    `silent`: the same bytes, but the result still says that all went well.
    `hold_polls`: a load's result is given to the adapter only after so many polls.
    """

    def __init__(self, connector: Any) -> None:
        self._side = connector.worker_side
        self._core = self._side.core
        self._groups = [group.layer_names for group in connector._kv_cache_config.kv_cache_groups]
        self._jobs: dict[tuple[int, int], LoadJob] = {}
        self._held: list[list[Any]] = []  # [polls left, result]
        self.loads: list[LoadJob] = []
        self.stored_slots: set[tuple[int, int]] = set()
        self.fail_next = 0
        self.silent = False
        self.hold_polls = 0
        self.failed: list[LoadJob] = []

    def install(self) -> CoreProxy:
        self._side.core = self
        return self

    def remove(self) -> None:
        self._side.core = self._core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def bind_step(self, step: Any) -> Any:
        from hostkv import _core

        described = _core.describe_step(step)
        for job in described["jobs"]:
            blocks = tuple(tuple(block) for block in job["blocks"])
            if job["direction"] == "load":
                load = LoadJob(described["epoch"], job["id"], blocks)
                self._jobs[load.epoch, load.job] = load
                self.loads.append(load)
            elif job["direction"] == "store":
                self.stored_slots.update((group, slot) for group, _, slot in blocks)
        return self._core.bind_step(step)

    def poll(self) -> list[Any]:
        ready = [held[1] for held in self._held if held[0] <= 0]
        self._held = [[polls - 1, result] for polls, result in self._held if polls > 0]
        for result in self._core.poll():
            load = self._jobs.pop((result[0], result[1]), None)
            if load is not None:
                result = self._spoil(load, result)
                if self.hold_polls > 0:
                    self._held.append([self.hold_polls - 1, result])
                    continue
            ready.append(result)
        return ready

    def _spoil(self, load: LoadJob, result: Any) -> Any:
        if self.fail_next <= 0:
            return result
        self.fail_next -= 1
        self.failed.append(load)
        torn = [(group, block) for group, block, _ in load.blocks[len(load.blocks) // 2 :]]
        for target in torn:
            self.write_garbage(target)
        return result if self.silent else (*result[:3], DEVICE_ERROR, torn)

    def write_garbage(self, target: Target) -> None:
        import torch

        group, block = target
        for layer in self._groups[group]:
            self._side.kv_caches[layer][block].view(torch.int8).fill_(GARBAGE)


@contextmanager
def faults(engine: Any) -> Iterator[CoreProxy]:
    """A proxy in the worker half of an engine of one process, taken out at the end."""
    proxy = CoreProxy(engine.worker_connector).install()
    try:
        yield proxy
    finally:
        proxy.remove()


def flip_byte(core: Any, group: int, slot: int, offset: int) -> None:
    """Turns one byte of a host slot around; a second call restores it."""
    view = core.host_block(group, slot)
    view[offset] ^= 0x21
