"""Another connector loads, as beside HostKV in a MultiConnector: what it has not brought, or brought wrong, is not
stored."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

BLOCK = 16
LOADED = 20 * BLOCK


def load_beside(engine: Any, is_async: bool) -> None:
    """MultiConnector's way: the one that loads is given the blocks, the other one learns of an admission without."""
    connector = engine.connector
    match, allocated = connector.get_num_new_matched_tokens, connector.update_state_after_alloc

    def foreign_hit(request: Any, num_local_tokens: int) -> tuple[int, bool]:
        match(request, num_local_tokens)
        return LOADED - num_local_tokens, is_async

    connector.get_num_new_matched_tokens = foreign_hit
    connector.update_state_after_alloc = lambda request, blocks, _: allocated(request, blocks.new_empty(), 0)


def load_nothing_more(engine: Any) -> None:
    del engine.connector.get_num_new_matched_tokens, engine.connector.update_state_after_alloc


def test_a_request_that_ends_while_another_connector_loads_stores_nothing(engine_of, tokens):
    engine = engine_of("full")
    load_beside(engine, is_async=True)
    engine.add("loading", tokens(1, LOADED + 10))
    engine.step()
    assert engine.scheduler.requests["loading"].status == RequestStatus.WAITING_FOR_REMOTE_KVS
    engine.scheduler.finish_requests(["loading"], RequestStatus.FINISHED_ABORTED)
    engine.step()
    engine.step()
    assert engine.ranks.stored == 0
    engine.used_up = True  # vLLM waits for the end of a load that nobody makes


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_what_was_computed_on_a_foreign_load_that_failed_is_not_found(policy, engine_of, tokens):
    engine = engine_of("full")
    engine.scheduler.recompute_kv_load_failures = policy == "recompute"
    prompt, other = tokens(1, LOADED + 10), tokens(2, LOADED + 10)
    engine.run("stored before", other)
    load_beside(engine, is_async=False)
    engine.add("loaded", prompt, 4)
    output = engine.scheduler.schedule()
    (table,) = engine.scheduler.kv_cache_manager.get_block_ids("loaded")
    (of_rank,) = engine.ranks.take(output.kv_connector_metadata)
    of_rank = of_rank or KVConnectorOutput()
    of_rank.invalid_block_ids = {table[10]}
    engine.scheduler.update_from_output(output, engine._run_model(output, [of_rank]))
    load_nothing_more(engine)
    engine.run_until_idle()
    engine.forget_device()
    assert engine.run("again", prompt) == (0, 0)
    engine.forget_device()
    assert engine.run("computed", prompt) == (0, LOADED)


def test_a_failed_load_that_nobody_has_read_costs_no_other_connector_anything(engine_of, tokens):
    engine = engine_of("full")
    prompt, other = tokens(1, LOADED + 10), tokens(2, LOADED + 10)
    engine.run("stored before", other)
    load_beside(engine, is_async=True)
    engine.add("loading", prompt)
    output = engine.scheduler.schedule()
    (table,) = engine.scheduler.kv_cache_manager.get_block_ids("loading")
    engine.ranks.take(output.kv_connector_metadata)
    of_rank = KVConnectorOutput(finished_recving={"loading"})
    of_rank.invalid_block_ids = {table[10]}
    engine.scheduler.update_from_output(output, engine._run_model(output, [of_rank]))
    load_nothing_more(engine)
    engine.run_until_idle()
    engine.forget_device()
    assert engine.run("other again", other) == (0, LOADED)
