"""The byte model without a connector: what vLLM's scheduler does by itself.

The tests of a connector's bytes run on a scheduler with three corrections (vllm_on_cpu.byte_worker_corrections). The
faults of started blocks and of drafts are frequent; where their tests find no wrong byte any more, vLLM has mended them
and the corrections can go. The other one takes a few thousand steps, too long for a test.
"""

from __future__ import annotations

import random

import pytest
from bytes_model import shapes
from bytes_model.families import FAMILIES, draw_rig
from bytes_model.play import Play
from bytes_model.shapes import MODES
from vllm_on_cpu import byte_worker_corrections as corrections
from vllm_on_cpu.byte_worker_memory import WrongByte

from hostkv.vllm import options
from hostkv.vllm.messages import StepMessage
from hostkv.vllm.scheduler_side import SchedulerSide

MOST_ENGINES = 30


@pytest.fixture
def _without_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchedulerSide, "match", lambda side, request, tokens: (0, False))
    monkeypatch.setattr(SchedulerSide, "build", lambda side, output: StepMessage())
    monkeypatch.setattr(SchedulerSide, "has_pending_work", lambda side: False)
    # A request that ends may offer its tail without a step.
    monkeypatch.setattr(options, "request_limits", lambda request, prompt_only: 0)


def run(family: str, mode: str, engines: int, seed: int) -> Play:
    numbers = random.Random(f"{seed} {family} {mode}")
    for _ in range(engines):
        rig, span = draw_rig(FAMILIES[family], MODES[mode], numbers)
        play = Play(rig, numbers, span)
        for _ in range(4):
            play.play(40)
    return play


@pytest.mark.usefixtures("_without_connector")
@pytest.mark.parametrize("family", ["states with unit", "checkpoints", "drafts", "draft group beside states"])
def test_the_corrected_engine_reads_what_was_computed(family: str) -> None:
    play = run(family, "ahead-v1", 2, random.SystemRandom().randrange(1 << 32))
    assert play.rig.worker.states_checked > 0


@pytest.mark.usefixtures("_without_connector")
@pytest.mark.parametrize("family", ["draft group", "draft group beside windows", "draft window"])
def test_the_corrected_engine_drafts_from_rows_of_its_own_text(family: str) -> None:
    play = run(family, "sync-v2", 2, random.SystemRandom().randrange(1 << 32))
    assert play.rig.worker.draft_layers.rows_checked > 0


@pytest.mark.usefixtures("_without_connector")
def test_the_engine_finds_draft_rows_of_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "hash_drafts_up_to", lambda scheduler, groups, most_tokens: None)
    with pytest.raises(WrongByte, match=r"\(full, draft\)"):
        run("draft group", "sync-v1", MOST_ENGINES, 1)


@pytest.mark.usefixtures("_without_connector")
def test_the_engine_hashes_states_of_started_blocks_as_those_of_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "correct", corrections.refuse_hits_in_unwritten_blocks)
    with pytest.raises(WrongByte, match=r"\(state\)"):
        run("checkpoints", "ahead-v1", MOST_ENGINES, 2)
