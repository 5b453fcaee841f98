"""Speculative decoding with n-gram drafts on Llama, in step and running ahead.

A random tiny model accepts only drafts that are forged from its own answer. Recurrent hybrids with drafts are left out:
on a CPU they are wrong without a connector already.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Engines
from support import cases
from support.compare import BATCH_TOLERANCE, assert_same, difference
from support.engine import EngineConfig, sampling
from support.oracle import Oracle
from support.records import ReplayRun, Report
from support.rest import assert_at_rest, leaked_pins
from support.theory import Geometry
from vllm_on_cpu import models, v2_drafts

pytestmark = pytest.mark.v2

NUM_DRAFTS = 3


def drafting(method: str) -> dict[str, Any]:
    return {"method": method, "num_speculative_tokens": NUM_DRAFTS, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@pytest.mark.parametrize(
    ("method", "run_ahead"), [("ngram", False), ("ngram_gpu", True)], ids=["ngram-sync", "ngram_gpu-run ahead"]
)
def test_replay_with_drafts_is_exact(
    method: str, run_ahead: bool, engines: Engines, oracle: Oracle, checkpoints: Path, report: Report, version: str
) -> None:
    folder = cases.checkpoint(models.LLAMA, checkpoints, version)
    engine = engines.get(EngineConfig.of(folder, {}, async_scheduling=run_ahead, speculative_config=drafting(method)))
    prompts = [cases.PROMPT, *cases.OTHERS]
    answers = dict(zip(map(tuple, prompts), oracle.answers(folder, prompts), strict=True))
    geometry = Geometry.of(engine)
    expected = answers[tuple(cases.PROMPT)]

    def continuation(prompt: tuple[int, ...]) -> tuple[int, ...] | None:
        found = answers.get(prompt)
        return None if found is None else found.tokens

    with v2_drafts.forged(engine.llm, continuation) as counts:
        assert_same(expected, engine.ask(cases.PROMPT)[0])
        assert counts["accepted"] > 0 and counts["rejected"] > 0, counts
        engine.evict_device()
        replay, loads = engine.ask_one(cases.PROMPT)
        found, boundary = difference(expected, replay), geometry.replay_boundary(len(cases.PROMPT))
        report.results.append(ReplayRun(
            models.LLAMA.label, version, found.tokens_equal, found.logprob == 0.0, sum(host for _, host in loads),
            boundary, leaked_pins(engine), variant=method, runner="v2", run_ahead=run_ahead,
        ))  # fmt: skip
        assert found.exact and loads == [(0, boundary)]
        for hits in ([], [geometry.replay_boundary(len(prompt)) for prompt in cases.OTHERS]):
            engine.evict_device()
            engine.loads.clear()
            for prompt, answer in zip(cases.OTHERS, engine.ask(*cases.OTHERS), strict=True):
                assert_same(answers[tuple(prompt)], answer, BATCH_TOLERANCE)
            assert sorted(load.host_tokens for load in engine.loads) == sorted(hits)
    assert_at_rest(engine)


def test_answer_with_rejected_drafts_is_stored_right(
    engines: Engines, oracle: Oracle, checkpoints: Path, version: str
) -> None:
    """Rejected drafts stood in the blocks of the answer for a while: the next turn hits them and is exact."""
    folder = cases.checkpoint(models.LLAMA, checkpoints, version)
    engine = engines.get(EngineConfig.of(folder, {}, async_scheduling=True, speculative_config=drafting("ngram_gpu")))
    (expected,) = oracle.answers(folder, [cases.PROMPT], tokens=70)
    known = {tuple(cases.PROMPT): expected.tokens}
    with v2_drafts.forged(engine.llm, known.get) as counts:
        answer = engine.ask(cases.PROMPT, params=sampling(70))[0]
        assert_same(expected, answer)
        assert counts["accepted"] > 10 and counts["rejected"] > 10, counts
        turn = [*cases.PROMPT, *answer.tokens, *cases.random_tokens("drafted turn", 20)]
        engine.evict_device()
        second, loads = engine.ask_one(turn)
    # The last token was given and never computed.
    assert loads == [(0, Geometry.of(engine).down(len(cases.PROMPT) + 69))]
    assert_same(oracle.answers(folder, [turn])[0], second)
    assert_at_rest(engine)
