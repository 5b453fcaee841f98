"""The hooks of a connector's scheduler half in the order of Scheduler.schedule(), over a real KVCacheManager."""

from __future__ import annotations

from typing import Any

from rig import parts, worker
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.core.sched.output import KVConnectorBlockState
from vllm.v1.request import Request, RequestStatus


class Direct:
    """One step at a time, without the Scheduler. Copies end in the step that plans them."""

    def __init__(self, config: Any, kv: Any, host_blocks: int, blocks_per_slab: int = 1) -> None:
        scheduler_block, hash_block = resolve_kv_cache_block_sizes(kv, config)
        self.manager = KVCacheManager(
            kv,
            max_model_len=parts.MAX_TOKENS,
            scheduler_block_size=scheduler_block,
            hash_block_size=hash_block,
            max_in_flight_tokens=config.max_in_flight_tokens,
            enable_caching=True,
        )
        self.connector = parts.scheduler_half(config, kv)
        self.connector.bind_kv_cache_manager(self.manager)
        if config.kv_transfer_config.kv_connector == parts.HOSTKV:
            worker.tell_capacity(self.connector, host_blocks, blocks_per_slab)
        self.stored = self.loaded = 0

    def with_block_state(self, output: Any) -> Any:
        output.kv_connector_block_state = KVConnectorBlockState(
            req_ids=set(),
            resolve_block_ids=self.manager.get_block_ids,
            boundary_state_offloads=self.manager.take_boundary_state_offloads(),
        )
        return output

    def plan(self, output: Any) -> None:
        """One step as the connector sees it."""
        self.finish(self.connector.build_connector_meta(self.with_block_state(output)))

    def finish(self, metadata: Any) -> None:
        answer = worker.answer(metadata)
        self.stored += answer.stored
        self.loaded += answer.loaded
        if answer.output is not None:
            self.connector.update_connector_output(answer.output)

    def end(self, request: Request) -> None:
        """Scheduler._free_request: the connector first, then the blocks."""
        request.status = RequestStatus.FINISHED_STOPPED
        blocks = self.manager.get_block_ids_for_computed_tokens(request.request_id, request.num_computed_tokens)
        self.connector.request_finished_all_groups(request, blocks)
        self.manager.free(request)

    def admit(self, request: Request, num_tokens: int, **how: Any) -> Any:
        """allocate_slots; the blocks of the request afterwards."""
        self.manager.new_step_starts()
        if self.manager.allocate_slots(request, num_tokens, **how) is None:
            raise RuntimeError("the device pool is too small for this benchmark")
        return self.manager.get_blocks(request.request_id)
