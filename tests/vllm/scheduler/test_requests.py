"""What requests ask for themselves, and who may share what."""

from __future__ import annotations

import pytest
from rig import parts
from vllm.v1.request import RequestStatus


def with_salt(request_id, tokens, salt, hash_block):
    request = parts.request(request_id, tokens, hash_block=hash_block)
    return parts.Request(
        request_id=request_id,
        prompt_token_ids=tokens,
        sampling_params=request.sampling_params,
        pooling_params=None,
        cache_salt=salt,
        block_hasher=parts.kv_cache_utils.get_request_block_hasher(hash_block, parts.sha256),
    )


def run_request(engine, request):
    engine.scheduler.add_request(request)
    engine.run_until_idle()
    return engine.hits[request.request_id]


def test_another_salt_finds_nothing_and_the_same_one_everything(engine_of, tokens):
    engine = engine_of("full")
    a = tokens(1, 48)
    run_request(engine, with_salt("a", a, "x", 16))
    engine.forget_device()
    assert run_request(engine, with_salt("b", a, "y", 16)) == (0, 0)
    engine.forget_device()
    assert run_request(engine, with_salt("c", a, "x", 16)) == (0, 32)


def test_a_request_for_prompt_logprobs_reads_nothing_from_the_host(engine_of, tokens):
    engine = engine_of("full")
    a = tokens(1, 320)
    engine.run("a", a)
    engine.forget_device()
    request = parts.request("b", a, prompt_logprobs=2)
    assert request.skip_reading_prefix_cache
    assert run_request(engine, request) == (0, 0)
    assert engine.ranks.loaded == 0


@pytest.mark.parametrize(("limit", "blocks"), [(0, 0), (15, 0), (160, 10), (165, 10), (10_000, 20)])
def test_no_more_of_a_request_is_stored_than_it_allows(engine_of, tokens, limit, blocks):
    engine = engine_of("full")
    request = parts.request("a", tokens(1, 320))
    request.kv_transfer_params = {"max_offload_tokens": limit}
    run_request(engine, request)
    assert engine.ranks.stored == blocks


def test_a_limit_that_is_no_number_is_ignored(engine_of, tokens):
    engine = engine_of("full")
    request = parts.request("a", tokens(1, 320))
    request.kv_transfer_params = {"max_offload_tokens": "many"}
    run_request(engine, request)
    assert engine.ranks.stored == 20


def test_a_session_that_takes_hashes_back_is_looked_up_by_the_new_ones(engine_of, tokens):
    engine = engine_of("full")
    a, b = tokens(1, 320), tokens(2, 320)
    engine.run("a", a)
    engine.run("b", a[:160] + b[:160])
    engine.forget_device()
    request = parts.request("session", a)
    engine.connector.on_new_request(request)
    assert engine.connector.get_num_new_matched_tokens(request, 0)[0] == 304
    turned = parts.request("other", a[:160] + b[:160])
    request.block_hashes[:] = turned.block_hashes[:15]
    assert engine.connector.get_num_new_matched_tokens(request, 0)[0] == 240
    del request.block_hashes[4:]
    assert engine.connector.get_num_new_matched_tokens(request, 0)[0] == 64
    request.status = RequestStatus.FINISHED_ABORTED
    engine.connector.request_finished_all_groups(request, ([],))


def test_an_id_that_is_used_again_is_another_request(engine_of, tokens):
    engine = engine_of("full")
    engine.run("same", tokens(1, 320))
    engine.hits.clear()
    assert engine.run("same", tokens(2, 320)) == (0, 0)
    engine.forget_device()
    engine.hits.clear()
    assert engine.run("same", tokens(1, 320)) == (0, 304)


def test_a_prompt_shorter_than_a_block_is_served(engine_of, tokens):
    engine = engine_of("full")
    assert engine.run("a", tokens(1, 5), 3) == (0, 0)
    assert engine.run("b", tokens(1, 16), 3) == (0, 0)
    assert engine.connector.get_num_new_matched_tokens(parts.request("c", tokens(1, 5)), 0)[0] == 0
    engine.connector.request_finished_all_groups(finished(parts.request("c", tokens(1, 5))), ([],))


def finished(request):
    request.status = RequestStatus.FINISHED_ABORTED
    return request
