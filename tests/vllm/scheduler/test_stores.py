"""What is stored, once, and what leaves a full host."""

from __future__ import annotations

import pytest
from rig import parts
from rig.ranks import never
from vllm.v1.request import RequestStatus

NULL = 0


def is_store(job, rank):
    return job.direction == "store"


def store_blocks(engine):
    return [block for job in engine.ranks.seen if job.direction == "store" for block in job.blocks]


def test_a_prompt_that_the_host_has_is_not_stored_again(engine_of, tokens):
    engine = engine_of("full")
    a = tokens(1, 320)
    engine.run("a", a)
    stored = engine.ranks.stored
    assert stored == 20
    engine.run("b", a)
    engine.forget_device()
    engine.run("c", a)
    assert engine.ranks.stored == stored


def test_two_requests_that_compute_the_same_prompt_at_once_store_it_once(engine_of, tokens):
    engine = engine_of("full")
    engine.ranks.hold = is_store
    a = tokens(1, 320)
    engine.add("a", a)
    engine.add("b", a)
    for _ in range(3):
        engine.step()
    engine.ranks.hold = never
    engine.run_until_idle()
    slots = [slot for _, _, slot in store_blocks(engine)]
    assert len(slots) == len(set(slots)) == 20


def test_a_copy_in_flight_is_not_offered(engine_of, tokens):
    engine = engine_of("full")
    engine.ranks.hold = is_store
    a = tokens(1, 320)
    engine.add("a", a)
    for _ in range(3):
        engine.step()
    engine.scheduler.kv_cache_manager.evict_blocks({block for _, block, _ in store_blocks(engine)})
    other = parts.request("probe", a, hash_block=engine.hash_block)
    assert engine.connector.get_num_new_matched_tokens(other, 0) == (0, False)
    other.status = RequestStatus.FINISHED_ABORTED
    engine.connector.request_finished_all_groups(other, ([],))
    engine.ranks.hold = never
    engine.run_until_idle()


def test_blocks_of_a_finished_request_are_kept_until_their_copy_has_ended(engine_of, tokens):
    engine = engine_of("full")
    engine.ranks.hold = is_store
    engine.add("a", tokens(1, 320))
    for _ in range(4):
        engine.step()
    assert not engine.scheduler.running
    assert engine.num_free == engine.free_at_start - 20
    assert engine.connector.has_pending_push_work()
    engine.ranks.hold = never
    engine.run_until_idle()
    assert engine.num_free == engine.free_at_start


def test_null_blocks_are_never_copied(engine_of, tokens):
    engine = engine_of("full+window")
    a = tokens(1, 640)
    engine.run("a", a, 40)
    engine.forget_device()
    engine.run("b", a, 4)
    assert all(block != NULL for job in engine.ranks.seen for _, block, _ in job.blocks)
    assert {group for group, _, _ in store_blocks(engine)} == {0, 1}


def test_the_least_recently_used_prompt_leaves_first(engine_of, tokens):
    engine = engine_of("full", host_blocks=60)
    a, b, c, d = (tokens(seed, 320) for seed in (1, 2, 3, 4))
    for name, prompt in (("a", a), ("b", b), ("c", c)):
        engine.run(name, prompt)
    engine.forget_device()
    assert engine.run("a again", a) == (0, 304)
    engine.run("d", d)
    engine.forget_device()
    assert engine.run("a third", a)[1] == 304
    engine.forget_device()
    assert engine.run("b again", b)[1] < 304


def test_a_full_host_loses_the_end_of_a_prompt_first(engine_of, tokens):
    engine = engine_of("full", host_blocks=30)
    a = tokens(1, 320)
    engine.run("a", a)
    engine.run("b", tokens(2, 240))
    engine.forget_device()
    assert 0 < engine.run("a again", a)[1] < 304


def test_a_preempted_request_leaves_no_copy_behind(engine_of, tokens):
    engine = engine_of("full", device_blocks=44)
    engine.ranks.hold = is_store
    for seed in (1, 2):
        engine.add(f"r{seed}", tokens(seed, 300), 100)
    for _ in range(60):
        engine.step()
    engine.ranks.hold = never
    engine.run_until_idle()
    assert all(str(output.finish_reason) == "length" for output in engine.outputs.values())


def test_tokens_of_decode_are_stored_as_their_blocks_fill(engine_of, tokens):
    engine = engine_of("full")
    a = tokens(1, 100)
    engine.run("a", a, 60)
    assert engine.ranks.stored == 159 // 16
    engine.forget_device()
    assert engine.run("b", a + [7] * 59 + [9] * 20) == (0, 144)


def test_a_prompt_in_chunks_is_stored_as_a_whole(engine_of, tokens):
    engine = engine_of("full", batched_tokens=100)
    a = tokens(1, 640)
    engine.run("a", a)
    assert engine.ranks.stored == 40
    engine.forget_device()
    assert engine.run("b", a) == (0, 624)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_host_far_too_small_neither_leaks_nor_lies(engine_of, tokens, lazy):
    engine = engine_of("full+window", device_blocks=80, host_blocks=24, lazy_offload=lazy)
    for seed in range(30):
        engine.run(f"r{seed}", tokens(seed % 7, 200 + seed), 5)
    assert engine.metrics["evicted_blocks"] > 0


def test_lazy_stores_what_the_device_is_about_to_drop(engine_of, tokens):
    engine = engine_of("full", device_blocks=60, store_mode="lazy", batched_tokens=256)
    a = tokens(1, 320)
    engine.run("a", a)
    for seed in range(10, 16):
        engine.run(f"x{seed}", tokens(seed, 320))
    assert engine.ranks.stored > 0
    assert engine.run("again", a)[1] > 0
