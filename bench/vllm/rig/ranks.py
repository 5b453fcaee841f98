"""HostKV's ranks as the scheduler sees them: jobs that end, stay in flight or fail, as a test decides. Copies nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import rig  # noqa: F401  (the environment, before vllm)
from vllm.v1.outputs import KVConnectorOutput

OK, FAILED = 0, 7


@dataclass
class Job:
    """One job of a step. blocks: (group, device block, host slot). request: of loads."""

    epoch: int
    id: int
    direction: str
    blocks: list[tuple[int, int, int]]
    request: str | None
    waiting: set[int] = field(default_factory=set)  # ranks that have not answered


def never(job: Job, rank: int) -> bool:
    return False


def all_rows(job: Job, rank: int) -> list[tuple[int, int]]:
    return [(group, block) for group, block, _ in job.blocks]


class Ranks:
    """hold: which jobs a rank still works on; fail: which of those that end have failed; failed_rows: the (group, block)
    that a failed one is short of. All may change at any time. begin and end are there for those who copy.
    cuts_in_place: as HostKV's workers do for a model of one attention group, failed loads are told by block ids.
    """

    def __init__(self, num_ranks: int = 1) -> None:
        self.num_ranks = num_ranks
        self.hold: Callable[[Job, int], bool] = never
        self.fail: Callable[[Job, int], bool] = never
        self.failed_rows: Callable[[Job, int], list[tuple[int, int]]] = all_rows
        self.cuts_in_place = False
        self.seen: list[Job] = []
        self._open: list[Job] = []
        # (rank, load that is not at its end) -> its bad blocks, None: not all of them are known
        self._failed: dict[tuple[int, str | None], set[int] | None] = {}

    def begin(self, job: Job) -> None:
        """Every rank has begun with it: behind the forward pass of its step."""

    def end(self, job: Job, rank: int, failed: bool) -> None:
        """One rank is through with it."""

    @property
    def stored(self) -> int:
        return sum(len(job.blocks) for job in self.seen if job.direction == "store")

    @property
    def loaded(self) -> int:
        return sum(len(job.blocks) for job in self.seen if job.direction != "store")

    def take(self, message: Any) -> list[KVConnectorOutput | None]:
        """One step of every rank."""
        from hostkv import _core

        if message.step is not None:
            described = _core.describe_step(message.step)
            for job in described["jobs"]:
                found = Job(described["epoch"], job["id"], job["direction"], job["blocks"], message.loads.get(job["id"]))
                found.waiting = set(range(self.num_ranks))
                self.seen.append(found)
                self._open.append(found)
                self.begin(found)
        outputs = [self._answer(rank, message.ended) for rank in range(self.num_ranks)]
        self._open = [job for job in self._open if job.waiting]
        return outputs

    def _note_failed(self, rank: int, request: str | None, rows: list[tuple[int, int]]) -> None:
        before = self._failed.get((rank, request), set())
        known = self.cuts_in_place and bool(rows) and before is not None
        self._failed[rank, request] = (before or set()) | {block for _, block in rows} if known else None

    def _answer(self, rank: int, ended: dict[str, bool]) -> KVConnectorOutput | None:
        from hostkv.vllm.messages import RankReport

        finished = set(ended)
        failed = {request for request, good in ended.items() if not good}
        results = []
        ended_loads: set[str | None] = set()
        for job in self._open:
            if rank not in job.waiting or self.hold(job, rank):
                continue
            job.waiting.discard(rank)
            bad = self.fail(job, rank)
            self.end(job, rank, bad)
            rows = self.failed_rows(job, rank) if bad else []
            results.append((job.epoch, job.id, rank, FAILED if bad else OK, rows))
            if job.request is not None:
                ended_loads.add(job.request)
                if bad:
                    self._note_failed(rank, job.request, rows)
        # A load may be two jobs: a rank reports it with the last of them.
        ended_loads -= {job.request for job in self._open if rank in job.waiting}
        finished |= ended_loads
        bad_blocks = {request: self._failed.pop((rank, request)) for request in ended_loads
                      if (rank, request) in self._failed}  # fmt: skip
        failed |= {request for request, blocks in bad_blocks.items() if not blocks}
        if not finished and not results:
            return None
        output = KVConnectorOutput(finished_recving=finished or None)
        output.failed_recving = failed
        output.invalid_block_ids = {block for blocks in bad_blocks.values() for block in blocks or ()}
        output.kv_connector_worker_meta = RankReport(results) if results else None
        return output
