"""vLLM's real Scheduler with HostKV's real scheduler half and ranks that copy nothing. Every step samples token 7."""

from __future__ import annotations

from typing import Any

from rig import parts, worker
from rig.ranks import Ranks
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from hostkv.vllm.geometry import can_be_cut_in_place

SAMPLED = 7


class Engine:
    """step() is EngineCore's: schedule, run, update. hits: request -> (device, host) tokens of its last admission."""

    def __init__(
        self,
        config: Any,
        kv: Any,
        host_blocks: int,
        num_ranks: int = 1,
        scheduler_class: type[Scheduler] | None = None,
        short_of: dict[int, int] | None = None,
    ) -> None:
        scheduler_block, self.hash_block = resolve_kv_cache_block_sizes(kv, config)
        self.scheduler = (scheduler_class or Scheduler)(
            vllm_config=config,
            kv_cache_config=kv,
            structured_output_manager=StructuredOutputManager(config),
            block_size=scheduler_block,
            hash_block_size=self.hash_block,
            log_stats=False,
        )
        self.ranks = Ranks(num_ranks)
        self.ranks.cuts_in_place = can_be_cut_in_place(kv)
        self.aggregator = KVOutputAggregator(num_ranks)
        self.hits: dict[str, tuple[int, int]] = {}
        self.outputs: dict[str, Any] = {}  # request -> its last EngineCoreOutput
        worker.tell_capacity(self.connector, host_blocks, num_ranks=num_ranks, short_of=short_of)
        self.free_at_start = self.num_free

    @property
    def connector(self) -> Any:
        return self.scheduler.connector

    @property
    def side(self) -> Any:
        return self.connector.scheduler_side

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    @property
    def num_free(self) -> int:
        return int(self.pool.get_num_free_blocks())

    @property
    def metrics(self) -> dict[str, int]:
        return self.side.core.metrics()  # type: ignore[no-any-return]

    def add(self, request_id: str, tokens: list[int], max_tokens: int = 1, **how: Any) -> Request:
        request = parts.request(request_id, tokens, hash_block=self.hash_block, max_tokens=max_tokens, **how)
        self.scheduler.add_request(request)
        return request

    def step(self) -> Any:
        output = self.scheduler.schedule()
        self.note_hits(output)
        done = self._run_model(output, self.ranks.take(output.kv_connector_metadata))
        for of_client in self.scheduler.update_from_output(output, done).values():
            for one in of_client.outputs:
                self.outputs[one.request_id] = one
        return output

    def note_hits(self, output: Any) -> None:
        """Right behind schedule(): statistics of an admission go out with its first answer."""
        for request_id in output.num_scheduled_tokens:
            stats = self.scheduler.requests[request_id].prefill_stats
            if stats is not None and stats.num_prompt_tokens:
                self.hits[request_id] = (stats.num_local_cached_tokens, stats.num_external_cached_tokens)

    def _run_model(self, output: Any, of_ranks: list[Any]) -> ModelRunnerOutput:
        ids = list(output.num_scheduled_tokens)
        sampled = []
        for request_id in ids:
            request = self.scheduler.requests[request_id]
            end = request.num_computed_tokens  # schedule() has moved it behind this step
            sampled.append([SAMPLED] if end >= request.num_tokens else [])
        return self.merge(ids, sampled, of_ranks)

    def merge(self, ids: list[str], sampled: list[list[int]], of_ranks: list[Any]) -> ModelRunnerOutput:
        """What the executor makes of the outputs of all ranks."""
        outputs = [
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
                sampled_token_ids=sampled,
                kv_connector_output=of_rank,
            )
            for of_rank in of_ranks
        ]
        if len(outputs) == 1:
            return outputs[0]
        return self.aggregator.aggregate(outputs)  # type: ignore[return-value, arg-type]

    def run_until_idle(self, limit: int = 5000) -> None:
        """As EngineCore does: while there are requests, or the connector says that there is work."""
        for _ in range(limit):
            if not self.scheduler.has_requests():
                return
            self.step()
        raise RuntimeError(f"not idle after {limit} steps: {list(self.scheduler.requests)}")

    def run(self, request_id: str, tokens: list[int], max_tokens: int = 1, **how: Any) -> tuple[int, int]:
        """One request to its end and all copies: (device, host) hit in tokens."""
        self.add(request_id, tokens, max_tokens, **how)
        self.run_until_idle()
        return self.hits[request_id]

    def forget_device(self) -> None:
        """Empties the device's prefix cache; the host keeps what it has."""
        if not self.pool.reset_prefix_cache():
            raise RuntimeError("the device cache is in use")

    def check_rest(self) -> None:
        """Nothing is pinned, nothing is in flight, all blocks are free, and the counters agree."""
        side = self.side
        if side._guard.broken:
            raise AssertionError(f"the connector broke: {side._guard.cause}")
        side.core.check_conservation()
        metrics = self.metrics
        left = {name: metrics[name] for name in ("jobs_in_flight", "pinned_slots", "pinned_device_blocks") if metrics[name]}
        if left or side.core.num_pins() or self.num_free != self.free_at_start:
            raise AssertionError(f"not at rest: {left}, pins {side.core.num_pins()}, free {self.num_free} of "
                                 f"{self.free_at_start}")  # fmt: skip
