"""What one connector's scheduler half costs on the scheduler's thread. Run by scripts/bench_vllm, a process a cell.

Real: configuration, cache manager, block pool, connector (vLLM's factory builds it), requests, scheduler outputs. Made
up: block hashes (random) and the worker (each copy has ended in the next call). A prompt is 8,192 blocks of 16 tokens.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rig import parts, worker
from rig.direct import Direct
from vllm.v1.request import Request, RequestStatus

BLOCK = 16
PROMPT = 8192  # blocks
STEP = 512  # blocks of one step of a chunked prefill
DECODING = 64
CONTEXT = 512  # blocks of a decoding request
DEVICE_BLOCKS = 100_001
SHAPES: dict[str, Callable[[], list[Any]]] = {
    "full": lambda: [parts.full(BLOCK)],
    "full+window": lambda: [parts.full(BLOCK), parts.window(BLOCK, 128)],
    "full+mamba": lambda: [parts.full(BLOCK), parts.mamba(BLOCK)],
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "hostkv": (parts.HOSTKV, {}),
    "hostkv-lazy": (parts.HOSTKV, {"store_mode": "lazy"}),
    "simple": (parts.SIMPLE, {}),
    "native-lru": (parts.NATIVE, {"eviction_policy": "lru", "offload_prompt_only": False}),
    "native-arc": (parts.NATIVE, {"eviction_policy": "arc", "offload_prompt_only": False}),
}


class Times:
    """Wall and processor microseconds of named calls. The processor's leave out what other processes did meanwhile."""

    def __init__(self) -> None:
        self._wall: dict[str, list[float]] = defaultdict(list)
        self._cpu: dict[str, list[float]] = defaultdict(list)

    def call(self, name: str, hook: Callable[..., Any], *arguments: Any) -> Any:
        cpu, wall = time.thread_time(), time.perf_counter()
        result = hook(*arguments)
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        self._wall[name].append(wall * 1e6)
        self._cpu[name].append(cpu * 1e6)
        return result

    def add_sum(self, name: str, of: tuple[str, ...]) -> None:
        """The last call of each, as one."""
        for times in (self._wall, self._cpu):
            times[name].append(sum(times[part][-1] for part in of))

    def rename_last(self, name: str, to: str) -> None:
        for times in (self._wall, self._cpu):
            times[to].append(times[name].pop())

    def report(self) -> dict[str, Any]:
        return {
            name: {
                "p50_us": statistics.median(wall),
                "p50_cpu_us": statistics.median(self._cpu[name]),
                "p99_us": statistics.quantiles(wall, n=100)[98] if len(wall) > 1 else wall[0],
                "p99_cpu_us": statistics.quantiles(self._cpu[name], n=100)[98] if len(wall) > 1 else self._cpu[name][0],
                "worst_us": max(wall),
                "worst_cpu_us": max(self._cpu[name]),
                "calls": len(wall),
            }
            for name, wall in self._wall.items()
            if wall
        }


class Cell(Direct):
    """One connector over one shape."""

    def __init__(self, kind: str, shape: str, host_blocks: int) -> None:
        connector, extra = KINDS[kind]
        config = parts.vllm_config(
            connector, host_blocks, BLOCK, batched_tokens=PROMPT * BLOCK + 64, align=shape == "full+mamba", **extra
        )
        kv = parts.kv_config(SHAPES[shape](), DEVICE_BLOCKS, config)
        super().__init__(config, kv, host_blocks, blocks_per_slab=500)
        self.num_groups = len(kv.kv_cache_groups)
        self.times = Times()
        self.facts: dict[str, int] = {}
        self.tokens = [0] * (PROMPT * BLOCK + 1)
        self.count = 0
        self.recording = ""  # the name that steps which store are timed under

    def new_request(self, hashes: list[bytes]) -> Request:
        self.count += 1
        return parts.request(f"r{self.count}", self.tokens[: len(hashes) * BLOCK + 1], hashes)

    def prefill(self, hashes: list[bytes], step_blocks: int | None = None) -> Request:
        """A cold prompt, in steps of step_blocks blocks, then one decode step."""
        request = self.new_request(hashes)
        self.connector.on_new_request(request)
        assert self.connector.get_num_new_matched_tokens(request, 0)[0] == 0
        prompt = len(hashes) * BLOCK
        done = 0
        while done < prompt + 1:
            take = min((step_blocks or len(hashes)) * BLOCK, prompt - done) or 1
            self.step_of(request, done, take)
            done += take
            request.num_computed_tokens = done
        return request

    def step_of(self, request: Request, done: int, take: int) -> None:
        before = len(self.manager.get_blocks(request.request_id).blocks[0]) if done else 0
        blocks = self.admit(request, take)
        if done == 0:
            self.connector.update_state_after_alloc(request, blocks, 0)
        ids = blocks.get_block_ids()
        output = parts.step_output(
            new=[(request, ids)] if done == 0 else (),
            cached=[(request.request_id, tuple(group[before:] for group in ids))] if done else (),
            tokens={request.request_id: take},
        )
        self.with_block_state(output)
        metadata = self.times.call("step", self.connector.build_connector_meta, output)
        answer = worker.answer(metadata)
        self.stored += answer.stored
        if answer.output is not None:
            self.times.call("done", self.connector.update_connector_output, answer.output)
        # A connector may store a step's blocks one step later, and a lone state in yet another step: the plan that counts
        # is the one that stores the step's blocks.
        if answer.stored >= STEP // 2 and self.recording:
            self.times.rename_last("step", self.recording)
            self.times.rename_last("done", self.recording + " completion")
            self.facts[self.recording] = answer.stored

    def drop(self, request: Request) -> None:
        """The request ends and its blocks leave the device."""
        ids = {block for group in self.manager.get_block_ids(request.request_id) for block in group}
        request.status = RequestStatus.FINISHED_STOPPED
        blocks = self.manager.get_block_ids_for_computed_tokens(request.request_id, request.num_computed_tokens)
        self.times.call("end of a request", self.connector.request_finished_all_groups, request, blocks)
        self.manager.free(request)
        self.plan(parts.step_output(finished=[request.request_id]))
        self.manager.evict_blocks(ids - {0})

    def fill(self, host_blocks: int) -> None:
        """From here on every store evicts."""
        while self.stored < host_blocks + PROMPT:
            before = self.stored
            self.drop(self.prefill(random_hashes(PROMPT)))
            if self.stored == before:
                raise RuntimeError("nothing was stored")

    def store(self, hashes: list[bytes]) -> None:
        self.recording = "store plan"
        request = self.prefill(hashes)
        self.recording = ""
        self.drop(request)

    def load(self, hashes: list[bytes]) -> None:
        times, connector = self.times, self.connector
        request = self.new_request(hashes)
        times.call("new request", connector.on_new_request, request)
        tokens, _ = times.call("lookup", connector.get_num_new_matched_tokens, request, 0)
        self.facts["hit tokens"] = tokens
        if not tokens:
            raise RuntimeError("a stored prompt was not found")
        blocks = self.admit(request, 0, num_external_computed_tokens=tokens, delay_cache_blocks=True)
        times.call("load: blocks", connector.update_state_after_alloc, request, blocks, tokens)
        output = self.with_block_state(parts.step_output())
        metadata = times.call("load: step", connector.build_connector_meta, output)
        times.add_sum("load plan", ("lookup", "load: blocks", "load: step"))
        answer = worker.answer(metadata)
        self.facts["load plan"] = answer.loaded
        times.call("load completion", connector.update_connector_output, answer.output)
        request.num_computed_tokens = tokens
        self.manager.cache_blocks(request, tokens)
        self.drop(request)

    def miss(self) -> None:
        request = self.new_request(random_hashes(PROMPT))
        self.connector.on_new_request(request)
        self.times.call("full miss", self.connector.get_num_new_matched_tokens, request, 0)
        request.status = RequestStatus.FINISHED_ABORTED
        self.connector.request_finished_all_groups(request, tuple([] for _ in range(self.num_groups)))
        self.plan(parts.step_output(finished=[request.request_id]))

    def chunked(self) -> None:
        self.recording = "step of 512 blocks"
        request = self.prefill(random_hashes(PROMPT), STEP)
        self.recording = ""
        self.drop(request)

    def idle(self, steps: int) -> None:
        live = [self.prefill(random_hashes(CONTEXT)) for _ in range(DECODING)]
        for request in live:
            request.num_computed_tokens = request.num_tokens
            request.append_output_token_ids(7)
        ids = [request.request_id for request in live]
        for _ in range(steps):
            output = parts.step_output(cached=[(of, None) for of in ids], tokens=dict.fromkeys(ids, 1))
            self.with_block_state(output)
            metadata = self.times.call("idle step", self.connector.build_connector_meta, output)
            if worker.answer(metadata).output is not None:
                raise RuntimeError("an idle step planned a copy")


def random_hashes(count: int) -> list[bytes]:
    return [os.urandom(32) for _ in range(count)]


def measure(kind: str, shape: str, host_blocks: int, plans: int, calls: int) -> dict[str, Any]:
    """plans: whole prompts stored and loaded; calls: misses, idle steps and (rounded up) steps of 512 blocks."""
    cell = Cell(kind, shape, host_blocks)
    cell.fill(host_blocks)
    gc.collect()
    gc.freeze()  # EngineCore does the same when it has started
    cell.times = Times()
    for _ in range(plans):
        hashes = random_hashes(PROMPT)
        cell.store(hashes)
        cell.load(hashes)
    for _ in range(calls):
        cell.miss()
    for _ in range(-(-calls * STEP // PROMPT)):
        cell.chunked()
    cell.idle(calls)
    return {"kind": kind, "shape": shape, "host_blocks": host_blocks, "facts": cell.facts, "us": cell.times.report()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--host-blocks", type=int, required=True)
    parser.add_argument("--plans", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    result = measure(arguments.kind, arguments.shape, arguments.host_blocks, arguments.plans, arguments.calls)
    arguments.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
