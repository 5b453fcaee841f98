"""HostKV's ranks with bytes: jobs copy between the byte worker's memory and host slots, at the worst moments.

A load spoils its targets when it begins and fills them when it ends. A store reads when it begins or when it ends, each
rank as it happens, and until it has ended the slot holds nothing right. What fails leaves its targets spoilt.
"""

from __future__ import annotations

import random

import numpy as np
from rig.ranks import Job, Ranks
from vllm_on_cpu.byte_worker import ByteWorker
from vllm_on_cpu.byte_worker_memory import SPOILT


class ByteRanks(Ranks):
    """hold and fail are chances here, for play; a test may still set its own functions."""

    def __init__(self, worker: ByteWorker, numbers: random.Random) -> None:
        super().__init__(worker.setup.layout.num_ranks)
        self._words = worker.memory.words
        self._widths = [group.num_words for group in worker.groups]
        self.kinds = [group.kind for group in worker.groups]
        self._numbers = numbers
        self._slots: dict[tuple[int, int], np.ndarray] = {}  # (group, slot) -> words[rank, word]
        self._short: dict[tuple[int, int, int], list[tuple[int, int]]] = {}  # (epoch, job, rank) -> what has failed
        self.failed_rows = lambda job, rank: self._short.pop((job.epoch, job.id, rank), [])
        self._read_late: set[tuple[int, int, int]] = set()  # (epoch, job, rank)
        self.hold_chance = self.fail_chance = 0.0
        self.hold = lambda job, rank: self._numbers.random() < self.hold_chance
        self.fail = lambda job, rank: self._numbers.random() < self.fail_chance
        self.loads = self.failures = self.device_copies = 0

    def _slot(self, group: int, slot: int) -> np.ndarray:
        shape = (self.num_ranks, self._widths[group])
        return self._slots.setdefault((group, slot), np.full(shape, SPOILT))

    def begin(self, job: Job) -> None:
        if job.direction != "store":
            for _, block, _ in job.blocks:
                self._words[:, block] = SPOILT
            return
        for group, _, slot in job.blocks:
            self._slot(group, slot)[:] = SPOILT
        for rank in range(self.num_ranks):
            if self._numbers.random() < 0.5:
                self._read_late.add((job.epoch, job.id, rank))
            else:
                self._store(job, rank)

    def end(self, job: Job, rank: int, failed: bool) -> None:
        self.failures += failed
        late = (job.epoch, job.id, rank) in self._read_late
        self._read_late.discard((job.epoch, job.id, rank))
        if job.direction == "store":
            if failed:
                for group, _, slot in job.blocks:
                    self._slot(group, slot)[rank] = SPOILT
            elif late:
                self._store(job, rank)
        else:
            self.loads += job.direction == "load" and not failed
            self.device_copies += job.direction == "device_copy" and not failed
            self._fill(job, rank, self._short_rows(job, rank) if failed else [])

    def _store(self, job: Job, rank: int) -> None:
        for group, block, slot in job.blocks:
            self._slot(group, slot)[rank] = self._words[rank, block, : self._widths[group]]

    def _short_rows(self, job: Job, rank: int) -> list[tuple[int, int]]:
        """All of a failed load, or some; the others have arrived."""
        rows = [(group, block) for group, block, _ in job.blocks]
        count = self._numbers.choice([len(rows), self._numbers.randint(1, len(rows))])
        self._short[job.epoch, job.id, rank] = self._numbers.sample(rows, count)
        return self._short[job.epoch, job.id, rank]

    def _fill(self, job: Job, rank: int, short: list[tuple[int, int]]) -> None:
        for group, block, place in job.blocks:
            if (group, block) in short:
                continue
            width = self._widths[group]
            from_host = job.direction == "load"
            source = self._slot(group, place)[rank] if from_host else self._words[rank, place, :width]
            self._words[rank, block, :width] = source
