"""Loads in flight: aborts, failures, several ranks, and hosts that change between lookup and allocation."""

from __future__ import annotations

import pytest
from rig import parts
from rig.ranks import never
from vllm.v1.request import RequestStatus


def is_load(job, rank):
    return job.direction != "store"


def stored(engine, tokens, count=330, seed=1):
    """A prompt that only the host has."""
    a = tokens(seed, count)
    engine.run(f"first{seed}", a)
    engine.forget_device()
    return a


@pytest.mark.parametrize("shape", ["full", "full+window", "full+mamba"])
def test_an_abort_while_loading_keeps_the_engine_stepping_until_the_copy_has_ended(engine_of, tokens, shape):
    engine = engine_of(shape)
    a = stored(engine, tokens)
    assert not engine.connector.has_pending_push_work()
    engine.ranks.hold = is_load
    engine.add("b", a)
    engine.step()
    assert engine.scheduler.requests["b"].status == RequestStatus.WAITING_FOR_REMOTE_KVS
    engine.scheduler.finish_requests(["b"], RequestStatus.FINISHED_ABORTED)
    for _ in range(3):
        assert engine.connector.has_pending_push_work()
        assert engine.scheduler.has_requests()
        assert engine.num_free < engine.free_at_start
        engine.step()
    engine.ranks.hold = never
    engine.step()
    assert not engine.connector.has_pending_push_work()
    assert not engine.scheduler.has_requests()
    assert engine.num_free == engine.free_at_start


@pytest.mark.parametrize("shape", ["full", "full+mamba"])
def test_an_abort_before_the_load_was_sent_frees_everything(engine_of, tokens, shape):
    engine = engine_of(shape)
    a = stored(engine, tokens)
    request = parts.request("b", a, hash_block=engine.hash_block)
    engine.scheduler.add_request(request)
    tokens_found, is_async = engine.connector.get_num_new_matched_tokens(request, 0)
    assert tokens_found > 0 and is_async
    engine.scheduler.finish_requests(["b"], RequestStatus.FINISHED_ABORTED)
    engine.run_until_idle()


def test_a_load_ends_when_the_last_rank_has_ended(engine_of, tokens):
    engine = engine_of("full", num_ranks=2)
    a = stored(engine, tokens)
    engine.ranks.hold = lambda job, rank: job.direction != "store" and rank == 1
    engine.add("b", a)
    for _ in range(3):
        engine.step()
        assert engine.scheduler.requests["b"].status == RequestStatus.WAITING_FOR_REMOTE_KVS
    engine.ranks.hold = never
    engine.run_until_idle()
    assert engine.hits["b"] == (0, 320)


def test_a_failure_on_one_rank_surfaces_with_the_last_and_the_retry_is_not_offered_the_rows(engine_of, tokens):
    engine = engine_of("full", num_ranks=2)
    a = stored(engine, tokens)
    engine.ranks.hold = lambda job, rank: job.direction != "store" and rank == 1
    engine.ranks.fail = lambda job, rank: job.direction != "store" and rank == 0
    engine.add("b", a)
    for _ in range(3):
        engine.step()
        assert engine.scheduler.requests["b"].status == RequestStatus.WAITING_FOR_REMOTE_KVS
    engine.ranks.hold = never
    engine.run_until_idle()
    loads = [job for job in engine.ranks.seen if job.direction != "store"]
    assert len(loads) == 1
    assert engine.metrics["failed_load_blocks"] > 0
    assert engine.outputs["b"].finish_reason is not None
    assert str(engine.outputs["b"].finish_reason) != "error"


@pytest.mark.parametrize("shape", ["full", "full+window", "full+mamba", "full+mamba, fine"])
def test_after_a_failed_load_the_prompt_is_computed_and_stored_again(engine_of, tokens, shape):
    engine = engine_of(shape)
    a = stored(engine, tokens)
    engine.ranks.fail = is_load
    engine.run("b", a)
    assert [job.request for job in engine.ranks.seen if job.direction != "store"] == ["b"]
    engine.ranks.fail = never
    engine.forget_device()
    device, host = engine.run("c", a)
    assert device == 0 and host == 329 // engine.hash_block * engine.hash_block


def test_with_policy_fail_the_request_ends_in_error_and_the_next_one_is_served(engine_of, tokens):
    engine = engine_of("full", load_failure_policy="fail")
    a = stored(engine, tokens)
    engine.ranks.fail = is_load
    engine.add("b", a)
    engine.run_until_idle()
    assert str(engine.outputs["b"].finish_reason) == "error"
    engine.ranks.fail = never
    assert engine.run("c", a[:161])[0] == 0


def test_what_was_found_stays_until_it_is_allocated(engine_of, tokens):
    """Other requests fill the host between lookup and allocation: what was promised is pinned."""
    engine = engine_of("full", host_blocks=40)
    a = stored(engine, tokens)
    request = parts.request("b", a, hash_block=engine.hash_block)
    assert engine.connector.get_num_new_matched_tokens(request, 0)[0] == 320
    for seed in range(10, 16):
        engine.run(f"x{seed}", tokens(seed, 330))
    assert engine.connector.get_num_new_matched_tokens(request, 0)[0] == 320
    engine.scheduler.add_request(request)
    engine.run_until_idle()
    assert engine.hits["b"][0] + engine.hits["b"][1] == 320


def test_a_lookup_that_is_never_allocated_gives_its_rows_back(engine_of, tokens):
    engine = engine_of("full", host_blocks=40)
    a = stored(engine, tokens)
    request = parts.request("b", a, hash_block=engine.hash_block)
    engine.connector.on_new_request(request)
    assert engine.connector.get_num_new_matched_tokens(request, 0)[0] == 320
    request.status = RequestStatus.FINISHED_ABORTED
    engine.connector.request_finished_all_groups(request, ([],))
    assert engine.metrics["pinned_slots"] == 0


def test_two_requests_load_the_same_prompt_at_once(engine_of, tokens):
    engine = engine_of("full")
    a = stored(engine, tokens)
    engine.add("b", a)
    engine.add("c", a)
    engine.run_until_idle()
    assert engine.hits["b"] == (0, 320)
    assert sum(engine.hits["c"]) == 320


def test_a_failed_load_does_not_stand_in_front_of_those_that_are_loaded(engine_of, tokens):
    """vLLM keeps it at the head of the queue, with blocks reserved for it as if its load were still running."""
    engine = engine_of("full", device_blocks=45)
    a, b = stored(engine, tokens, 320, 1), stored(engine, tokens, 240, 2)
    engine.ranks.hold = is_load
    engine.add("a", a)
    engine.step()
    engine.add("b", b)
    engine.step()
    assert {r.status for r in engine.scheduler.requests.values()} == {RequestStatus.WAITING_FOR_REMOTE_KVS}
    engine.ranks.hold, engine.ranks.fail = never, lambda job, rank: job.request == "a"
    engine.ranks.failed_rows = lambda job, rank: [job.blocks[-1][:2]]  # the next lookup still finds much
    engine.step()
    engine.ranks.fail = never
    engine.run_until_idle(limit=20)
    assert engine.hits["b"] == (0, 224)
    assert engine.outputs["a"].new_token_ids == engine.outputs["b"].new_token_ids


def test_one_that_is_preempted_does_not_wait_for_failed_loads_behind_it(engine_of, tokens):
    """It is put in front of them, and vLLM would never give its load the blocks that it keeps for theirs."""
    engine = engine_of("full", device_blocks=60)
    a, b = stored(engine, tokens, 400, 1), stored(engine, tokens, 320, 2)
    engine.ranks.hold = is_load
    for name, prompt in (("a", a), ("b", b)):
        engine.add(name, prompt)
        engine.step()
    assert {r.status for r in engine.scheduler.requests.values()} == {RequestStatus.WAITING_FOR_REMOTE_KVS}
    engine.ranks.hold, engine.ranks.fail = never, is_load
    engine.step()
    engine.ranks.fail = never
    engine.add("c", tokens(3, 640), 20)
    engine.step()  # the failed ones ask again, and this one takes their room
    assert [request.request_id for request in engine.scheduler.running] == ["c"]
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert [request.request_id for request in engine.scheduler.waiting] == ["c", "a", "b"]
    engine.run_until_idle(limit=50)
    assert set(engine.outputs) >= {"a", "b", "c"}


def test_a_load_of_two_jobs_that_a_reset_has_made_void_is_not_gone_on_behind(engine_of, tokens):
    """One job has failed in part before the reset, the other one ends well behind it."""
    engine = engine_of("full")
    prompt = tokens(1, 330)
    engine.run("first", prompt)
    probe = engine.add("probe", prompt)
    (head,) = engine.pool.get_cached_block(probe.block_hashes[0], [0])
    engine.run_until_idle()
    engine.pool.evict_blocks({head.block_id})  # the rest of the chain is copied from block to block
    engine.ranks.hold = lambda job, rank: job.direction != "store"
    engine.add("again", prompt)
    engine.step()
    assert {job.direction for job in engine.ranks.seen if job.request == "again"} == {"load", "device_copy"}
    engine.ranks.hold = lambda job, rank: job.direction == "load"
    engine.ranks.fail = lambda job, rank: job.direction == "device_copy"
    engine.ranks.failed_rows = lambda job, rank: [job.blocks[4][:2]]
    engine.step()
    engine.scheduler.reset_prefix_cache(reset_connector=True)
    engine.ranks.hold = engine.ranks.fail = lambda job, rank: False
    scheduled = 0
    while engine.scheduler.has_requests():
        scheduled += engine.step().total_num_scheduled_tokens
    assert scheduled == len(prompt), "nothing of before the reset is used"
