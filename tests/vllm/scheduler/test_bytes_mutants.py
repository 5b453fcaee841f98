"""Faults that the byte model must find: each is planted into the adapter or the ranks, and random runs end in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from bytes_model.families import FAMILIES, draw_rig
from bytes_model.host import ByteRanks
from bytes_model.play import Play, Steps
from bytes_model.shapes import MODES
from vllm_on_cpu import byte_worker
from vllm_on_cpu.byte_worker_memory import SPOILT, WrongByte

from hostkv.vllm import compat, geometry
from hostkv.vllm.scheduler_side import SchedulerSide

MOST_ENGINES = 30
Planter = Callable[[pytest.MonkeyPatch], None]


def around(name: str, of: Any, change: Callable[..., Any]) -> Planter:
    """change(the function that was there, self, arguments)."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        before = getattr(of, name)
        patch.setattr(of, name, lambda *arguments: change(before, *arguments))

    return plant


def _other_owner(before: Any, group: Any, layout: Any, begin: int, end: int) -> Any:
    """Rows of whole chunks are taken for those of the next rank."""
    right = before(group, layout, begin, end)
    if right.owners is None or end - begin <= 1:
        return right
    return replace(right, owners=(right.owners + 1) % layout.dcp)


def _block_off(before: Any, ranks: ByteRanks, job: Any, rank: int, short: Any) -> None:
    slots = [slot for _, _, slot in job.blocks]
    moved = [(group, block, slots[index - 1]) for index, (group, block, _) in enumerate(job.blocks)]
    before(ranks, replace(job, blocks=moved), rank, short)


def _bytes_of_next_rank(before: Any, ranks: ByteRanks, job: Any, rank: int, short: Any) -> None:
    for group, block, slot in job.blocks:
        if job.direction == "load":
            width = ranks._widths[group]
            ranks._words[rank, block, :width] = ranks._slot(group, slot)[(rank + 1) % ranks.num_ranks]


def _one_rank_forgotten(before: Any, ranks: ByteRanks, job: Any, rank: int, short: Any) -> None:
    if rank != ranks.num_ranks - 1 or job.direction != "load":
        before(ranks, job, rank, short)


def _failure_untold(before: Any, ranks: ByteRanks, job: Any, rank: int, failed: bool) -> None:
    """The rank says that the copy went well."""
    before(ranks, job, rank, failed or (job.direction == "load" and ranks._numbers.random() < 0.05))


def _reads_late(before: Any, ranks: ByteRanks, job: Any, rank: int) -> None:
    """A store reads two jobs later than it says."""
    late = ranks.__dict__.setdefault("late", [])
    late.append((job, rank))
    if len(late) > 2 * ranks.num_ranks:
        before(ranks, *late.pop(0))


def _state_of_another_boundary(before: Any, ranks: ByteRanks, job: Any, rank: int, short: Any) -> None:
    before(ranks, job, rank, short)
    for group, block, slot in job.blocks:
        others = [other for other in ranks._slots if other[0] == group and other[1] != slot]
        if job.direction == "load" and ranks.kinds[group] == "state" and others:
            ranks._words[rank, block, : ranks._widths[group]] = ranks._slots[others[-1]][rank]


def _too_early(before: Any, steps: Steps) -> None:
    """Jobs of a step begin in front of its forward pass."""
    ranks, worker = steps.rig.ranks, steps.rig.worker
    take, execute = ranks.take, worker.execute
    of_ranks: list[Any] = []

    def execute_late(received: Any, processed: int) -> Any:
        of_ranks[:] = take(received.kv_connector_metadata)
        return execute(received, processed)

    worker.execute, ranks.take = execute_late, lambda message: of_ranks
    try:
        before(steps)
    finally:
        worker.execute, ranks.take = execute, take


def _kept_as_spoilt(before: Any, ranks: ByteRanks, job: Any, rank: int) -> None:
    before(ranks, job, rank)
    group, _, slot = job.blocks[-1]
    ranks._slot(group, slot)[rank, -1:] = SPOILT


def _first_row_unnamed(before: Any, ranks: ByteRanks, rank: int, request: Any, rows: list[Any]) -> None:
    """Of the blocks that a load has failed to bring, the engine hears of all but one."""
    before(ranks, rank, request, rows[1:] or rows)


def _drops_nothing(patch: pytest.MonkeyPatch) -> None:
    """HostKV takes the groups of a draft model for others."""
    before = geometry._group
    patch.setattr(geometry, "_group", lambda *arguments: {**before(*arguments), "eagle": False})
    patch.setattr(compat, "drops_draft_blocks", lambda config: False)


def _drops_where_marked(patch: pytest.MonkeyPatch) -> None:
    """HostKV sees draft models only where the engine marks their groups."""
    patch.setattr(compat, "drops_draft_blocks", lambda config: False)


def on_ranks(name: str, change: Callable[..., Any]) -> Planter:
    return around(name, ByteRanks, change)


# name: (family, mode, planter, what the wrong byte's text says)
FAULTS: dict[str, tuple[str, str, Planter, str]] = {
    "rows go to another rank": ("full", "sync-v1", around("places", byte_worker, _other_owner), r"\(full\)"),
    "a load is one block off": ("full", "ahead-v1", on_ranks("_fill", _block_off), r"\(full\), rank"),
    "a load takes another rank's bytes": (
        "states dealt out", "ahead-v2", on_ranks("_fill", _bytes_of_next_rank), "rank",
    ),
    "a load takes another boundary's state": (
        "states with unit", "sync-v1", on_ranks("_fill", _state_of_another_boundary), r"\(state\)",
    ),
    "one rank forgets its load": ("full and whole window", "sync-v2", on_ranks("_fill", _one_rank_forgotten), "rank"),
    "a rank calls a failed load good": ("full and window", "sync-v1", on_ranks("end", _failure_untold), "rank"),
    "a failed block is not named": ("full", "sync-v1", on_ranks("_note_failed", _first_row_unnamed), r"\(full\)"),
    "a store reads after its answer": ("full and window", "ahead-v1", on_ranks("_store", _reads_late), "rank"),
    "a store reads before the forward pass": ("full", "sync-v1", around("execute", Steps, _too_early), r"\(full\)"),
    "a store loses the last row of a block": ("five groups", "sync-v1", on_ranks("_store", _kept_as_spoilt), "rank"),
    "nothing is dropped for a draft group": ("draft group", "sync-v1", _drops_nothing, r"\(full, draft\)"),
    "nothing is dropped for a draft window": ("draft window", "ahead-v1", _drops_nothing, r"\(window, draft\)"),
    "nothing is dropped beside states": ("draft group beside states", "ahead-v2", _drops_nothing, r"\(full, draft\)"),
    "nothing is dropped for drafts that the engine does not name": (
        "draft group", "sync-v2", _drops_where_marked, r"\(full, draft\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_ends_in_a_wrong_byte(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, mode, plant, text = FAULTS[fault]
    numbers = random.Random(fault)
    plant(monkeypatch)
    with pytest.raises(WrongByte, match=text):
        for _ in range(MOST_ENGINES):
            rig, span = draw_rig(FAMILIES[family], MODES[mode], numbers)
            if rig.worker.setup.layout.num_ranks == 1:
                continue
            play = Play(rig, numbers, span)
            for _ in range(4):
                play.play(40)


def test_an_answer_that_is_lost_keeps_the_engine_from_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = random.Random(1)
    rig, span = draw_rig(FAMILIES["full"], MODES["sync-v1"], numbers)
    play = Play(rig, numbers, span)
    lost: list[int] = []

    def without_first(side: Any, results: Any, output: Any) -> None:
        if not lost:
            lost.append(results.pop(0)[1])
        before(side, results, output)

    before = SchedulerSide._take_results
    monkeypatch.setattr(SchedulerSide, "_take_results", without_first)
    with pytest.raises(AssertionError, match="at rest"):
        for _ in range(10):
            play.play(40)
    assert lost
