"""Over HTTP, with the flag as documented: completions, metrics, a clean end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import cases
from support.server import STOP_SECONDS, Server, wait_until
from vllm_on_cpu import models

FLAG = {
    "kv_connector": "HostKVConnector", "kv_connector_module_path": "hostkv.vllm", "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"cpu_bytes_to_use": "64MiB"},
}  # fmt: skip
BOUNDARY = 288  # of a prompt of 300 tokens in blocks of 32


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


@pytest.fixture
def shared_before() -> set[str]:
    return shared_memory()


@pytest.fixture
def server(shared_before: set[str], checkpoints: Path, version: str, tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "server"
    folder.mkdir()
    running = Server(cases.checkpoint(models.LLAMA, checkpoints, version), FLAG, folder)
    yield running
    running.kill()


def test_server_answers_counts_and_ends_cleanly(server: Server, shared_before: set[str]) -> None:
    answers = [server.complete(cases.PROMPT), server.complete(cases.PROMPT)]
    server.evict_device()
    answers.append(server.complete(cases.PROMPT))
    tokens = [answer["choices"][0]["token_ids"] for answer in answers]
    assert tokens[0] == tokens[1] == tokens[2] and len(tokens[0]) == 8
    cached = [(answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0) for answer in answers]
    assert cached == [0, BOUNDARY, BOUNDARY]

    check_metrics(server)
    log = server.log.read_text()
    assert "HostKV" in log, "one line at the start says what was resolved"

    existing = server.processes()
    assert len(existing) >= 2, "front end and engine core"
    assert server.stop() == 0
    wait_until(lambda: not server.processes(), STOP_SECONDS, "the end of every process of the server")
    assert shared_memory() <= shared_before
    assert not [path for path in server.folder.rglob("*") if "hostkv" in path.name.lower()]


def check_metrics(server: Server) -> None:
    """vLLM's own counters see the hits as the host's, ours agree. They arrive with the step after."""
    wait_until(lambda: server.metric("vllm:external_prefix_cache_hits_total") > 0, 30, "the external hits")
    # 300 tokens, then 300 - 288 found on the device, then 300 again.
    assert server.metric("vllm:external_prefix_cache_queries_total") == 300 + 12 + 300
    assert server.metric("vllm:external_prefix_cache_hits_total") == BOUNDARY
    assert server.metric("vllm:prompt_tokens_cached_by_source_total", source="host") == BOUNDARY
    assert server.metric("vllm:prompt_tokens_cached_by_source_total", source="external_unspecified") == 0
    wait_until(lambda: server.metric("vllm:hostkv_hit_tokens_total") == BOUNDARY, 30, "HostKV's own hits")
    assert server.metric("vllm:hostkv_load_blocks_total", outcome="loaded") == BOUNDARY / 32
    assert server.metric("vllm:hostkv_store_blocks_total", outcome="stored") >= BOUNDARY / 32
    assert server.metric("vllm:hostkv_loaded_bytes_total") > 0
    assert server.metric("vllm:hostkv_failed_jobs_total") == 0
    assert server.metric("vllm:hostkv_pinned_slots") == 0
