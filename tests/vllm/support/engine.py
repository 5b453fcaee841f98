"""A tiny vLLM engine in this process, with or without the connector, and what the tests ask of it."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_on_cpu import run_ahead

import support.environment  # noqa: F401  (before vllm)
from support import mode
from support.compare import Answer

OUTPUT_TOKENS = 16
HOST_BYTES = 64 << 20  # ample for the tiny models; the product's default would map gigabytes
Prompt = Sequence[int]


@dataclass(frozen=True)
class EngineConfig:
    """What makes two engines the same. `options` None: no connector. `arguments` go to vllm.LLM."""

    checkpoint: Path
    options: str | None = None  # JSON of kv_connector_extra_config: hashable
    policy: str = "recompute"
    arguments: str = "{}"
    patch: str = "no_export"
    connector: str = "HostKVConnector"
    patches: tuple[str, ...] = ()  # names of vllm_on_cpu.start_patches

    @staticmethod
    def of(checkpoint: Path, options: dict[str, Any] | None = None, *, policy: str = "recompute",
           patch: str = "no_export", connector: str = "HostKVConnector", patches: Sequence[str] = (),
           **arguments: Any) -> EngineConfig:  # fmt: skip
        own = options is not None and connector == "HostKVConnector"
        if options is not None and own:
            options = {"checksums": "off", **options}  # else a flipped byte is caught now and then
        if options is not None and own and not any(name.startswith("cpu_bytes") for name in options):
            options = {"cpu_bytes_to_use": HOST_BYTES, **options}
        if options is not None and mode.run_ahead:
            arguments = {"async_scheduling": True, **arguments}
        text = None if options is None else json.dumps(options, sort_keys=True)
        told = json.dumps(arguments, sort_keys=True)
        return EngineConfig(checkpoint, text, policy, told, patch, connector, tuple(patches))

    @property
    def runs_ahead(self) -> bool:
        return bool(json.loads(self.arguments).get("async_scheduling"))

    def transfer_config(self) -> Any:
        from vllm.config import KVTransferConfig

        if self.options is None:
            return None
        return KVTransferConfig(
            kv_connector=self.connector,
            kv_connector_module_path="hostkv.vllm" if self.connector == "HostKVConnector" else None,
            kv_role="kv_both",
            kv_load_failure_policy=self.policy,
            kv_connector_extra_config=json.loads(self.options),
        )

    def llm_arguments(self) -> dict[str, Any]:
        dtype = json.loads((self.checkpoint / "config.json").read_text())["dtype"]
        arguments: dict[str, Any] = {
            "model": str(self.checkpoint), "skip_tokenizer_init": True, "load_format": "safetensors", "dtype": dtype,
            "enforce_eager": True, "block_size": 32, "max_model_len": 1024, "max_num_seqs": 8,
            "max_num_batched_tokens": 256,
            # Groups share the pool: four of them need more blocks for one request of max_model_len.
            "num_gpu_blocks_override": 128 if "gemma" in self.checkpoint.name else 64,
            "kv_cache_memory_bytes": 256 << 20, "enable_prefix_caching": True,
        }  # fmt: skip
        transfer = self.transfer_config()
        if transfer is not None:
            arguments["kv_transfer_config"] = transfer
        arguments.update(json.loads(self.arguments))
        if "kv_events_config" in arguments:
            from vllm.config import KVEventsConfig

            arguments["kv_events_config"] = KVEventsConfig(**arguments["kv_events_config"])
        return arguments


def sampling(tokens: int = OUTPUT_TOKENS, **more: Any) -> Any:
    from vllm import SamplingParams

    fixed: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "detokenize": False, "logprobs": 1}
    return SamplingParams(max_tokens=tokens, **{**fixed, **more})


@dataclass
class Lookup:
    """One load that the engine accepted: from the device's hit to the boundary, and the request's blocks by group."""

    request: str
    device_tokens: int
    host_tokens: int
    tables: tuple[list[int], ...]


@dataclass
class Engine:
    """Owns one LLM. close() ends it; several may follow each other in a process, never two at once."""

    config: EngineConfig
    loads: list[Lookup] = field(default_factory=list)

    def __post_init__(self) -> None:
        from vllm import LLM
        from vllm_on_cpu import cpu_patches, start_patches

        cpu_patches.apply(self.config.patch)
        start_patches.apply(self.config.patches)
        try:
            (run_ahead.apply if self.config.runs_ahead else run_ahead.restore)()
            self.llm = LLM(**self.config.llm_arguments())
        except BaseException:
            _clean_up()  # a connector left behind would serve the next engine with the memory of this one
            raise
        assert run_ahead.runs_ahead(self.llm) == self.config.runs_ahead
        self.free_blocks_at_start = self.free_blocks
        if self.scheduler.connector is not None:
            self._watch_lookups(self.scheduler.connector)

    # What stands behind the front end.

    @property
    def core(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    @property
    def connector(self) -> Any:
        """The scheduler half."""
        return self.scheduler.connector

    @property
    def worker_connector(self) -> Any:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()

    @property
    def free_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    @property
    def scheduler_halves(self) -> list[Any]:
        """HostKV's, also where they stand inside a MultiConnector."""
        children = getattr(self.connector, "_connectors", [self.connector])
        return [child for child in children if hasattr(child, "scheduler_side")]

    def metrics(self) -> dict[str, int]:
        """Of the only half; several have metrics of their own."""
        (half,) = self.scheduler_halves
        return dict(half.scheduler_side.core.metrics())

    def _watch_lookups(self, connector: Any) -> None:
        """Notes what the engine itself accepts, apart from any counter of the connector's own."""
        plain_lookup, plain_alloc = connector.get_num_new_matched_tokens, connector.update_state_after_alloc
        asked: dict[str, int] = {}

        def lookup(request: Any, num_computed_tokens: int) -> Any:
            asked[request.request_id] = num_computed_tokens
            return plain_lookup(request, num_computed_tokens)

        def alloc(request: Any, blocks: Any, num_external_tokens: int, *rest: Any, **more: Any) -> Any:
            if num_external_tokens:
                device = asked[request.request_id]
                tables = tuple(list(table) for table in blocks.get_block_ids())
                self.loads.append(Lookup(request.request_id, device, num_external_tokens, tables))
            return plain_alloc(request, blocks, num_external_tokens, *rest, **more)

        connector.get_num_new_matched_tokens, connector.update_state_after_alloc = lookup, alloc

    # Requests.

    def ask(self, *prompts: Prompt, params: Any = None, salt: str | None = None, **more: Any) -> list[Answer]:
        """All prompts at once, to the end of the last."""
        inputs = [{"prompt_token_ids": list(prompt), **({"cache_salt": salt} if salt else {})} for prompt in prompts]
        outputs = self.llm.generate(inputs, params or sampling(), use_tqdm=False, **more)
        return [Answer.of(output) for output in outputs]

    def ask_one(self, prompt: Prompt, **more: Any) -> tuple[Answer, list[tuple[int, int]]]:
        """The answer and the loads that served it: (tokens found on the device, tokens from the host)."""
        before = len(self.loads)
        answer = self.ask(prompt, **more)[0]
        return answer, [(load.device_tokens, load.host_tokens) for load in self.loads[before:]]

    def start(self, prompt: Prompt, request_id: str, params: Any = None) -> None:
        """Queues a request under a number as text; nothing runs until step()."""
        self.llm.llm_engine.add_request(request_id, {"prompt_token_ids": list(prompt)}, params or sampling())

    def abort(self, request_id: str) -> None:
        self.llm.llm_engine.abort_request([request_id])

    def step(self) -> list[Any]:
        """One step; the pause is the real busy loop's, and lets copy threads have the interpreter lock."""
        outputs = self.llm.llm_engine.step()
        time.sleep(0.001)
        return list(outputs)

    def finish(self) -> dict[str, Answer]:
        """Steps to the end of every started request: outer request id -> answer."""
        finished: dict[str, Answer] = {}
        while self.llm.llm_engine.has_unfinished_requests():
            for output in self.step():
                if output.finished:
                    finished[output.request_id.split("-")[0]] = Answer.of(output)
        return finished

    def step_until(self, reached: Callable[[], bool], limit: int = 2000) -> None:
        for _ in range(limit):
            if reached():
                return
            self.step()
        raise AssertionError(f"not reached within {limit} steps")

    def idle(self, limit: int = 2000) -> int:
        """Steps that only the connector asks for, until the engine would sleep. Returns how many."""
        for count in range(limit):
            if not self.scheduler.has_requests() and not self.core.batch_queue:
                return count
            self.core.step_fn()
            time.sleep(0.001)
        raise AssertionError(f"the engine does not become idle within {limit} steps")

    # Caches.

    def evict_device(self) -> None:
        self.idle()
        assert self.llm.reset_prefix_cache(), "the engine refuses to reset its prefix cache"

    def forget_all(self) -> None:
        """Device and host."""
        self.idle()
        assert self.llm.reset_prefix_cache(reset_connector=True), "the engine refuses to reset its caches"

    def rest(self) -> None:
        """As after the start: caches empty, nothing noted."""
        self.forget_all()
        self.loads.clear()

    def evict_by_use(self, prompts: Sequence[Prompt]) -> None:
        """Other requests, one by one, push what is cached off the device."""
        for prompt in prompts:
            self.ask(prompt, params=sampling(1))
        self.idle()

    def close(self) -> None:
        try:
            self.llm.llm_engine.engine_core.shutdown()
        finally:
            del self.llm
            _clean_up()


def _clean_up() -> None:
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

    ensure_kv_transfer_shutdown()
    gc.collect()
    cleanup_dist_env_and_memory()
