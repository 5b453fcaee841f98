"""One block of a load fails, each group and each depth in turn: nothing below the longest boundary that is still whole
is computed again, and nothing wrong is computed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import cases
from support.compare import assert_right
from support.engine import Engine, EngineConfig
from support.hooks import CoreProxy, Job, Target, faults, flip_byte
from support.oracle import Oracle
from support.rest import assert_at_rest
from support.theory import Geometry, Group, resume_boundary

GRID = 64  # a recurrence in bfloat16 is equal to the last bit only where chunks end on it

pytestmark = [
    pytest.mark.run_ahead("granite"),
    pytest.mark.run_ahead_long("llama", "granite"),
    pytest.mark.v2_long("llama", "granite"),
]


@contextmanager
def counted_prompt_tokens(engine: Engine) -> Iterator[list[int]]:
    """How many tokens of the only request's prompt the engine schedules, one number a step."""
    schedule, counts = engine.scheduler.schedule, []

    def counting(*rest: Any, **more: Any) -> Any:
        output = schedule(*rest, **more)
        cached = output.scheduled_cached_reqs
        begins = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        begins.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name, count in output.num_scheduled_tokens.items():
            counts.append(max(0, min(begins[name] + count, len(cases.PROMPT)) - begins[name]))
        return output

    engine.scheduler.schedule = counting
    try:
        yield counts
    finally:
        engine.scheduler.schedule = schedule


@contextmanager
def noted_states(engine: Engine) -> Iterator[set[int]]:
    """Boundaries of the recurrent states that the engine hands over."""
    connector, boundaries = engine.connector, set()
    build, tail = connector.build_connector_meta, connector.register_finished_partial_tail

    def building(output: Any) -> Any:
        state = getattr(output, "kv_connector_block_state", None)
        for entries in (getattr(state, "boundary_state_offloads", None) or {}).values():
            boundaries.update(boundary for _, _, boundary in entries)
        return build(output)

    def finishing(request: Any, block_ids: Any, entries: Any, **more: Any) -> Any:
        entries = list(entries)
        boundaries.update(boundary for _, _, boundary in entries)
        return tail(request, block_ids, entries, **more)

    connector.build_connector_meta, connector.register_finished_partial_tail = building, finishing
    try:
        yield boundaries
    finally:
        connector.build_connector_meta, connector.register_finished_partial_tail = build, tail


def replay(engine: Engine, proxy: CoreProxy) -> Job:
    """The load of a prompt that the host has as a whole."""
    engine.evict_device()
    before = len(proxy.loads)
    _, loads = engine.ask_one(cases.PROMPT)
    assert loads == [(0, Geometry.of(engine).replay_boundary(len(cases.PROMPT)))]
    (job,) = proxy.loads[before:]
    return job


def depths_of(job: Job) -> list[tuple[int, int]]:
    """(group, how manyth block of the group in the job)."""
    found: dict[int, int] = {}
    depths = []
    for group, _, _ in job.blocks:
        depths.append((group, found.get(group, 0)))
        found[group] = found.get(group, 0) + 1
    return depths


def boundaries_of(engine: Engine, states: set[int]) -> list[int]:
    """Where the stored prompt can be resumed."""
    geometry = Geometry.of(engine)
    top = geometry.replay_boundary(len(cases.PROMPT))
    all_of_them = range(geometry.unit, top + 1, geometry.unit)
    return [boundary for boundary in all_of_them if boundary in states or not geometry.has_state]


@pytest.fixture
def engine(folder: Path, engines: Any) -> Engine:
    """Every loaded block is held against its checksum."""
    return engines.get(EngineConfig.of(folder, {"checksums": "all"}))


def test_a_block_of_each_group_fails_at_each_depth(engine: Engine, folder: Path, oracle: Oracle) -> None:
    (expected,) = oracle.answers(folder, [cases.PROMPT])
    resumed = set()
    with noted_states(engine) as states, faults(engine) as proxy:
        engine.ask(cases.PROMPT)
        engine.idle()
        depths = depths_of(replay(engine, proxy))
        assert {group for group, _ in depths} == set(range(len(Group.all_of(engine))))
        for depth in depths:
            # A request that computes anew leaves more states than the first one did.
            resumed.add(fail_at(engine, proxy, depth, boundaries_of(engine, states), expected))
            replay(engine, proxy)  # what was computed anew is stored anew
    assert_at_rest(engine)
    assert len(resumed) > 1 and max(resumed) > 0, "all failures cost the same: the test shows nothing"


def fail_at(engine: Engine, proxy: CoreProxy, depth: tuple[int, int], boundaries: list[int], expected: Any) -> int:
    """Answers where the request resumed."""
    group, ordinal = depth

    def torn_of(job: Job) -> list[Target]:
        return [(number, block) for number, block, _ in job.blocks if number == group][ordinal : ordinal + 1]

    engine.evict_device()
    before = len(engine.loads)
    proxy.torn_of, proxy.fail_loads = torn_of, 1
    jobs_before = len(proxy.loads)
    with counted_prompt_tokens(engine) as counts:
        answer = engine.ask(cases.PROMPT)[0]
    ((_, block),) = torn_of(proxy.loads[jobs_before])
    index = engine.loads[before].tables[group].index(block)
    resumed = resume_boundary(Group.all_of(engine), boundaries, (group, index))
    assert len(cases.PROMPT) - sum(counts) == resumed, f"group {group}, block {index}"
    if len(Group.all_of(engine)) == 1:
        assert len(proxy.loads) == jobs_before + 1, "the good prefix stays where it is"
    chunk_ends = list(itertools.accumulate(counts, initial=resumed))
    on_grid = all(end % GRID == 0 or end >= len(cases.PROMPT) for end in chunk_ends)
    assert_right(engine, expected, answer, on_grid=on_grid)
    return resumed


def test_flipped_byte_is_caught_before_a_token_is_computed(engine: Engine, folder: Path, oracle: Oracle) -> None:
    """Recovered, counted, and as exact as ever."""
    (expected,) = oracle.answers(folder, [cases.PROMPT])
    engine.ask(cases.PROMPT)
    with faults(engine) as proxy:
        job = replay(engine, proxy)
        core = engine.worker_connector.worker_side.core
        found = []
        for group in range(len(Group.all_of(engine))):
            slot = next(slot for number, _, slot in job.blocks if number == group)
            engine.evict_device()
            flip_byte(core, group, slot, 5)
            before = core.metrics()["changed_blocks"]
            assert_right(engine, expected, engine.ask(cases.PROMPT)[0], on_grid=True)
            found.append(core.metrics()["changed_blocks"] - before)
            job = replay(engine, proxy)
    assert found == [1] * len(found)
    assert core.metrics()["checked_blocks"] > 0
    assert_at_rest(engine)
