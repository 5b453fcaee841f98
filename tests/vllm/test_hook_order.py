"""The order of the engine's calls on both runners, as recorded: what the adapter is built on.

Both runners call every step, empty ones too; loads are started once a step, behind the forward where there is one. V2
zeroes blocks and copies states before `handle_preemptions`, and comes to the connector when it has sampled.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from conftest import Engines
from support import cases, mode
from support.compare import BATCH_TOLERANCE, assert_same
from support.engine import Engine, EngineConfig, sampling
from support.hook_order import RESULT_HOOKS, Step, recorded
from support.oracle import Oracle
from support.rest import assert_at_rest
from vllm_on_cpu import models

pytestmark = pytest.mark.v2

# Three requests of eight blocks each (and those of the recurrent group): the ninth blocks do not fit.
TIGHT_BLOCKS = {"llama": 25, "granite": 28}
TIGHT_PROMPTS = [cases.random_tokens(f"tight {i}", 250) for i in range(3)]
RUN_AHEAD = pytest.mark.parametrize("run_ahead", [False, True], ids=["sync", "run ahead"])


@pytest.fixture(scope="module", params=[models.LLAMA, models.GRANITE], ids=lambda model: model.name)
def model(request: pytest.FixtureRequest) -> models.Model:
    return request.param


def expected_order(step: Step, has_states: bool) -> list[str]:
    zero = ["zero"] * bool(step.output.new_block_ids_to_zero)
    copies = ["pre-copy"] * has_states
    results = ["start_load_kv", "wait_for_save", *RESULT_HOOKS]
    if mode.runner() == "v1":
        if not step.has_forward:
            return ["handle_preemptions", *zero, "bind_connector_metadata", *results]
        return ["handle_preemptions", *zero, *copies, "bind_connector_metadata", "model", "layers", *results, "sample"]
    if not step.has_forward:
        return [*zero, "handle_preemptions", "bind_connector_metadata", "finish_forward", *results]
    return [*zero, *copies, "handle_preemptions", "bind_connector_metadata", "model", "layers", "finish_forward",
            "sample", *results]  # fmt: skip


def cold_and_replay(engine: Engine) -> list[Step]:
    """The steps of one prompt computed, then loaded; empty ones in between and at the end."""
    with recorded(engine) as steps:
        engine.ask(cases.PROMPT, params=sampling(4))
        engine.evict_device()
        engine.ask(cases.PROMPT, params=sampling(4))
        engine.idle()
        assert len(engine.loads) == 1
    assert_at_rest(engine)
    return steps


@RUN_AHEAD
def test_worker_hooks_of_every_step(run_ahead: bool, model: models.Model, folder: Path, engines: Engines) -> None:
    engine = engines.get(EngineConfig.of(folder, {}, async_scheduling=run_ahead))
    steps = cold_and_replay(engine)
    has_states = model is models.GRANITE
    for number, step in enumerate(steps):
        assert step.worker_order() == expected_order(step, has_states), f"step {number}"
        (loads,) = step.of("start_load_kv")
        in_v2_forward = mode.runner() == "v2" and step.has_forward
        kwargs = {"num_tokens", "request_ids", "request_state_indices", "scheduler_output"} if in_v2_forward else set()
        assert set(loads.named) == kwargs
        (transfers,) = step.of("get_transfer_results")
        assert transfers.arguments[0] == step.output.finished_req_ids
    assert {step.has_forward for step in steps} == {True, False}
    assert any(step.of("zero") for step in steps) == has_states, "fresh blocks of hybrids are zeroed"
    assert sum(bool(step.of("get_transfer_results")[0].result.finished_recving) for step in steps) == 1


@pytest.mark.v2("llama")
@RUN_AHEAD
def test_messages_are_built_before_the_results_of_the_step_before(
    run_ahead: bool, folder: Path, engines: Engines
) -> None:
    """Running ahead, the message of a step is built while the results of the one before are not known yet."""
    engine = engines.get(EngineConfig.of(folder, {}, async_scheduling=run_ahead))
    steps = cold_and_replay(engine)
    told_late = 0
    for before, step in itertools.pairwise(steps):
        (build,) = step.of("build_connector_meta")
        for update in step.of("update_from_output"):
            late = update.arguments[0] is before.output
            assert late or update.arguments[0] is step.output
            assert step.calls.index(build) < step.calls.index(update)
            told_late += late
        assert before.order("build_connector_meta", "handle_preemptions") == [
            "build_connector_meta", "handle_preemptions",
        ]  # fmt: skip
    assert (told_late > 6) == run_ahead and (told_late == 0) != run_ahead


@pytest.mark.v2("llama")
def test_scheduler_hooks_around_a_load(model: models.Model, folder: Path, engines: Engines) -> None:
    """Looked up, given blocks; later, with the load ended, given them again with no external tokens."""
    engine = engines.get(EngineConfig.of(folder, {}))
    steps = cold_and_replay(engine)
    calls = [
        (call.name, call.arguments[2] if call.name == "update_state_after_alloc" else call.result)
        for step in steps
        for call in step.calls
        if call.name in ("get_num_new_matched_tokens", "update_state_after_alloc")
    ]
    lookup, alloc = "get_num_new_matched_tokens", "update_state_after_alloc"
    assert calls == [(lookup, (0, False)), (alloc, 0), (lookup, (288, True)), (alloc, 288), (alloc, 0)]


@RUN_AHEAD
def test_preempted_request_comes_back(
    run_ahead: bool, model: models.Model, folder: Path, engines: Engines, oracle: Oracle
) -> None:
    """On V2 as a new one, with the tokens it has given so far as part of its prefill; on V1 as a resumed one."""
    engine = engines.get(EngineConfig.of(
        folder, {}, async_scheduling=run_ahead, num_gpu_blocks_override=TIGHT_BLOCKS[model.name], max_model_len=512,
    ))  # fmt: skip
    with recorded(engine) as steps:
        answers = engine.ask(*TIGHT_PROMPTS, params=sampling(20))
        engine.idle()
    outputs = [step.output for step in steps]
    preempted = {name for output in outputs for name in output.preempted_req_ids or ()}
    assert preempted, "the pool was not tight enough to test anything"
    as_new = [new for at, output in enumerate(outputs) for new in output.scheduled_new_reqs
              if any(new.req_id in (earlier.preempted_req_ids or ()) for earlier in outputs[: at + 1])]  # fmt: skip
    resumed = {name for output in outputs for name in output.scheduled_cached_reqs.resumed_req_ids}
    if mode.runner() == "v2":
        assert {new.req_id for new in as_new} == preempted and not resumed
        assert all(len(new.prefill_token_ids) > 250 for new in as_new), "prompt and outputs"
        assert any(new.num_computed_tokens >= 224 for new in as_new), "served from the host"
    else:
        assert resumed == preempted and not as_new
    assert engine.loads
    for one, other in zip(oracle.answers(folder, TIGHT_PROMPTS, tokens=20), answers, strict=True):
        assert_same(one, other, BATCH_TOLERANCE)
    assert_at_rest(engine)
