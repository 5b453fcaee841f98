"""Block hit rates of vLLM's device cache and one connector's host tier on a public trace. Run by scripts/bench_vllm.

A request at a time, in file order: device lookup, host lookup, load, prefill of the rest, one decode step, end, an empty
step. Copies end at once. An id of the trace is one block; G usable device blocks, C host blocks. Hits are leading
blocks; no output is inserted, and the token behind the prompt costs no block.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cost import BLOCK
from rig import parts
from rig.direct import Direct
from vllm.v1.request import Request

_ALL = {"offload_prompt_only": False}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "hostkv eager": (parts.HOSTKV, {"store_mode": "eager"}),
    "hostkv lazy": (parts.HOSTKV, {"store_mode": "lazy"}),
    "simple eager": (parts.SIMPLE, {}),
    "simple lazy": (parts.SIMPLE, {"lazy_offload": True}),
    "native lru": (parts.NATIVE, {"eviction_policy": "lru", **_ALL}),
    "native arc": (parts.NATIVE, {"eviction_policy": "arc", **_ALL}),
    "native lru, threshold 2": (parts.NATIVE, {"eviction_policy": "lru", "store_threshold": 2, **_ALL}),
    "native arc, threshold 2": (parts.NATIVE, {"eviction_policy": "arc", "store_threshold": 2, **_ALL}),
}
_TRIES = 3  # a connector may ask to be asked again


class Replay(Direct):
    def __init__(self, kind: str, device_blocks: int, host_blocks: int) -> None:
        connector, extra = KINDS[kind]
        config = parts.vllm_config(connector, host_blocks, BLOCK, **extra)
        super().__init__(config, parts.kv_config([parts.full(BLOCK)], device_blocks + 1, config), host_blocks)
        self.blocks = self.device = self.host = 0

    def one(self, request_id: str, hashes: list[bytes]) -> None:
        prompt = len(hashes) * BLOCK
        request = parts.request(request_id, [0] * (prompt + 1), hashes)
        self.manager.new_step_starts()
        self.connector.on_new_request(request)
        blocks, local = self.manager.get_computed_blocks(request)[:2]
        external = self.host_lookup(request, local)
        self.blocks += len(hashes)
        self.device += local // BLOCK
        self.host += external // BLOCK
        if external:
            self.load(request, blocks, local, external)
        self.compute(request, blocks, local, external, prompt)
        self.end(request)
        self.plan(parts.step_output(finished=[request_id]))

    def host_lookup(self, request: Request, local: int) -> int:
        for _ in range(_TRIES):
            tokens, _ = self.connector.get_num_new_matched_tokens(request, local)
            if tokens is not None:
                return int(tokens)
            self.plan(parts.step_output())
        return 0

    def load(self, request: Request, blocks: Any, local: int, external: int) -> None:
        self.admit(
            request,
            0,
            num_new_computed_tokens=local,
            new_computed_blocks=blocks,
            num_external_computed_tokens=external,
            delay_cache_blocks=True,
        )
        table = self.manager.get_blocks(request.request_id)
        self.connector.update_state_after_alloc(request, table, external)
        request.num_computed_tokens = local + external
        self.plan(parts.step_output())
        self.manager.cache_blocks(request, local + external)

    def compute(self, request: Request, blocks: Any, local: int, external: int, prompt: int) -> None:
        """What is missing of the prompt, in one step, and a decode step behind it."""
        request_id = request.request_id
        missing = prompt - local - external
        if missing or not external:
            how = {} if external else {"num_new_computed_tokens": local, "new_computed_blocks": blocks}
            table = self.admit(request, missing, **how)
            if not external:
                self.connector.update_state_after_alloc(request, table, 0)
        ids = self.manager.get_block_ids(request_id)
        request.num_computed_tokens = local + external
        if missing:
            self.plan(parts.step_output(new=[(request, ids)], tokens={request_id: missing}))
            request.num_computed_tokens = prompt
            self.plan(parts.step_output(cached=[(request_id, None)], tokens={request_id: 1}))
        else:
            self.plan(parts.step_output(new=[(request, ids)], tokens={request_id: 1}))
        request.num_computed_tokens = prompt


def prompts(path: Path, limit: int) -> Iterator[list[bytes]]:
    """Mooncake's format: a line a request, an id a block."""
    count = 0
    for line in path.open():
        ids = json.loads(line)["hash_ids"]
        if not ids:
            continue
        yield [block.to_bytes(32, "big") for block in ids]
        count += 1
        if count == limit:
            return


def replay(kind: str, trace: Path, device_blocks: int, host_blocks: int, limit: int) -> dict[str, Any]:
    cell = Replay(kind, device_blocks, host_blocks)
    begin = time.perf_counter()
    count = 0
    for count, hashes in enumerate(prompts(trace, limit), start=1):
        cell.one(f"r{count}", hashes)
    return {
        "kind": kind,
        "trace": trace.stem,
        "device_blocks": device_blocks,
        "host_blocks": host_blocks,
        "requests": count,
        "device_hit_rate": cell.device / cell.blocks,
        "host_hit_rate": cell.host / cell.blocks,
        "stored_blocks": cell.stored,
        "loaded_blocks": cell.loaded,
        "stores_per_block": cell.stored / cell.blocks,
        "wall_seconds": time.perf_counter() - begin,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--device-blocks", type=int, required=True)
    parser.add_argument("--host-blocks", type=int, required=True)
    parser.add_argument("--limit", type=int, default=0, help="requests; 0: all")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    result = replay(
        arguments.kind, arguments.trace, arguments.device_blocks, arguments.host_blocks, arguments.limit
    )
    arguments.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
