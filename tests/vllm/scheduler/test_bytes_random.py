"""Random requests over vLLM's own scheduler, block pool and hybrid manager, with bytes on every rank.

Each run draws shapes of its family until it has made its share of steps and has seen everything that it must see. A
wrong byte fails with the request, the group, the rank and the token; so does a leak, when all is at rest. A failure
names the seed that repeats it.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from bytes_model.families import FAMILIES, draw_rig
from bytes_model.play import Play
from bytes_model.shapes import MODES

from hostkv.vllm import scheduler_side

NUM_STEPS = 24_000  # of all runs together
MOST_ENGINES = 40
FIRST_HASHES = (0, 1, 64)  # a lookup begins with so few of a prompt's, or with all of those of a short one
SEEN_BY_ALL = ("aborts", "resets", "device hits", "host hits", "preempted", "loads", "failures")
RUNS = [
    (family, mode)
    for family in FAMILIES
    for mode in MODES
    # vLLM sends drafts to a pipeline without run-ahead one step late.
    if not (FAMILIES[family].has_drafts and mode == "pipeline-v1")
]


def seed() -> int:
    return int(os.environ.get("HOSTKV_TEST_SEED") or "20")


def steps_of_one() -> int:
    return int(os.environ.get("HOSTKV_TEST_ROUNDS") or NUM_STEPS) // len(RUNS) + 1


@pytest.mark.parametrize(("family", "mode"), RUNS, ids=[f"{family}, {mode}" for family, mode in RUNS])
def test_every_rank_reads_what_was_computed(family: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_run = seed()
    numbers = random.Random(f"{of_run} {family} {mode}")
    seen: Counter[str] = Counter()
    needs = {*SEEN_BY_ALL, *FAMILIES[family].needs}
    if FAMILIES[family].has_drafts:
        needs |= {"drafts accepted", "drafts rejected"}
    for number in range(MOST_ENGINES):
        monkeypatch.setattr(scheduler_side, "_FIRST_HASHES", numbers.choice(FIRST_HASHES))
        try:
            seen += play_one(family, mode, numbers)
        except Exception as error:
            raise AssertionError(
                f"HOSTKV_TEST_SEED={of_run}, {family}, {mode}, engine {number}: {type(error).__name__}: {error}"
            ) from error
        if seen["steps"] >= steps_of_one() and all(seen[name] for name in needs):
            return
    missing = sorted(name for name in needs if not seen[name])
    pytest.fail(f"HOSTKV_TEST_SEED={of_run}, {family}, {mode}: never seen: {missing} in {dict(seen)}")


def play_one(family: str, mode: str, numbers: random.Random) -> Counter[str]:
    rig, span = draw_rig(FAMILIES[family], MODES[mode], numbers)
    print(rig.facts)
    play = Play(rig, numbers, span)
    for _ in range(4):
        play.play(40)
    worker, ranks = rig.worker, rig.ranks
    assert worker.rows_checked > 0
    assert worker.draft_layers.rows_checked > 0 or not rig.shape.draft_groups
    return play.counts + Counter({
        "loads": ranks.loads, "failures": ranks.failures, "device copies": ranks.device_copies,
        "exports": worker.exports, "drafts accepted": worker.drafts_accepted, "drafts rejected": worker.drafts_rejected,
    })  # fmt: skip
