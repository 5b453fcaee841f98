"""Preempted requests: resumed, new again, loaded again; hand-offs of requests that are gone."""

from __future__ import annotations

import pytest
from rig import parts
from rig.ranks import never


def run_two(engine, tokens, max_tokens=150):
    """Two requests that do not fit together: one is preempted and comes back."""
    preempted = 0
    for seed in (1, 2):
        engine.add(f"r{seed}", tokens(seed, 300), max_tokens)
    for _ in range(5000):
        if not engine.scheduler.has_requests():
            break
        preempted += len(engine.step().preempted_req_ids or ())
    return preempted


@pytest.mark.parametrize("shape", ["full", "full+window"])
def test_a_preempted_request_resumes_from_the_host_and_ends(engine_of, tokens, shape):
    engine = engine_of(shape, device_blocks=44 if shape == "full" else 70)
    assert run_two(engine, tokens) > 0
    assert {str(output.finish_reason) for output in engine.outputs.values()} == {"length"}


def test_what_a_preempted_request_had_stored_is_found_by_others(engine_of, tokens):
    engine = engine_of("full", device_blocks=44)
    assert run_two(engine, tokens) > 0
    engine.forget_device()
    for seed in (1, 2):
        engine.forget_device()
        assert engine.run(f"again{seed}", tokens(seed, 300) + [7] * 140)[1] == 432


@pytest.mark.parametrize("shape", ["full", "full+window"])
def test_a_resumed_request_that_comes_as_new_is_served_the_same(engine_of, tokens, shape):
    """The second runner's way: resumed requests stand among the new ones."""
    engine = engine_of(shape, device_blocks=44 if shape == "full" else 70)
    build = engine.connector.build_connector_meta
    moved = []

    def as_new(output):
        cached = output.scheduled_cached_reqs
        for request_id in list(cached.resumed_req_ids):
            at = cached.req_ids.index(request_id)
            request = engine.scheduler.requests[request_id]
            ids = engine.scheduler.kv_cache_manager.get_block_ids(request_id)
            output.scheduled_new_reqs.append(parts.NewRequestData.from_request(request, ids))
            for values in (cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens):
                del values[at]
            cached.resumed_req_ids.discard(request_id)
            moved.append(request_id)
        return build(output)

    engine.connector.build_connector_meta = as_new
    assert run_two(engine, tokens) > 0
    assert moved
    assert {str(output.finish_reason) for output in engine.outputs.values()} == {"length"}


def test_a_load_of_a_resumed_request_that_fails_is_computed_again(engine_of, tokens):
    engine = engine_of("full", device_blocks=44)
    engine.ranks.fail = lambda job, rank: job.direction != "store"
    assert run_two(engine, tokens) > 0
    engine.ranks.fail = never
    assert {str(output.finish_reason) for output in engine.outputs.values()} == {"length"}


@pytest.mark.parametrize("gone", ["finished", "preempted"])
def test_a_hand_off_of_a_request_that_is_gone_is_dropped(engine_of, tokens, gone):
    """The state's block may be somebody else's by now: nothing of it is stored."""
    engine = engine_of("full+mamba")
    build = engine.connector.build_connector_meta
    dropped = []

    def late(output):
        state = output.kv_connector_block_state
        offered = state.boundary_state_offloads if state is not None else {}
        if "a" in offered:
            (output.finished_req_ids if gone == "finished" else output.preempted_req_ids).add("a")
            output.num_scheduled_tokens = {
                name: count for name, count in output.num_scheduled_tokens.items() if name != "a"
            }
            dropped.append(offered["a"])
        return build(output)

    engine.connector.build_connector_meta = late
    engine.add("a", tokens(1, 320), 3)
    for _ in range(2):
        engine.step()
    assert dropped
    assert not any(group == 0 for job in engine.ranks.seen for group, _, _ in job.blocks)
    engine.connector.build_connector_meta = build
    engine.run_until_idle()
