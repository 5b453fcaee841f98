"""Loads of another connector, beside this one in a MultiConnector, that have failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.logger import init_logger

from hostkv.vllm.tracked import Tracked

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name

_WAITS_FOR_ITS_LOAD = "WAITING_FOR_REMOTE_KVS"


def were_computed_on(output: Any, report: Any, requests: Mapping[str, Tracked], pool: Any) -> bool:
    """Does this step's output name bad blocks that a forward may have read, so that what was computed is bad as well?

    Blocks that this connector has named itself, and those of requests that wait for their load, were read by nobody. Of
    a request that has ended meanwhile nothing can be told any more: its blocks count.
    """
    named = getattr(output, "invalid_block_ids", None)
    if not named:
        return False
    bad = set(named) - getattr(report, "invalid", set())
    for request_id, tracked in requests.items():
        if tracked.request.status.name == _WAITS_FOR_ITS_LOAD:
            bad.difference_update(block.block_id for table in pool.tables(request_id) for block in table)
    if bad:
        logger.warning("HostKV forgets all it holds: another connector's load of blocks %s has failed", sorted(bad)[:8])
    return bool(bad)
