"""HostKVConnector: vLLM's connector interface, each hook handed to the half that serves it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.platforms import current_platform

from hostkv.vllm import compat, options, start_report, stats
from hostkv.vllm.scheduler_side import SchedulerSide
from hostkv.vllm.worker_side import WorkerSide


class HostKVConnector(KVConnectorBase_V1, SupportsHMA):
    """Keeps KV blocks in host memory and loads them back. One instance per role and process.

    Loads are asynchronous always. Raises ValueError at construction for options, versions and models that it cannot
    serve.
    """

    _cache_hit_source = compat.host_hit_source()

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        problem = compat.version_problem(vllm.__version__)
        if problem is not None:
            raise ValueError(problem)
        start_report.check_platform(current_platform)
        super().__init__(vllm_config, role, kv_cache_config)
        extra = dict(self._kv_transfer_config.kv_connector_extra_config or {})
        try:
            resolved = options.resolve(extra, vllm_config.parallel_config.world_size)
        except ValueError as error:
            raise ValueError(f"HostKV: kv_connector_extra_config: {error}") from None
        if role == KVConnectorRole.SCHEDULER:
            resolved.log()
        pool_key = hashlib.sha256(resolved.core_json.encode()).hexdigest()
        self.scheduler_side: SchedulerSide | None = None
        self.worker_side: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler_side = SchedulerSide(vllm_config, kv_cache_config, resolved, pool_key)
        else:
            self.worker_side = WorkerSide(vllm_config, kv_cache_config, resolved, pool_key)

    # A cache may lose what it was given: requests never wait for a store.
    @property
    def requires_kv_delivery(self) -> bool:
        return False

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        return False

    @property
    def _scheduler(self) -> SchedulerSide:
        assert self.scheduler_side is not None, "a hook of the scheduler was called on a worker's connector"
        return self.scheduler_side

    @property
    def _worker(self) -> WorkerSide:
        assert self.worker_side is not None, "a hook of a worker was called on the scheduler's connector"
        return self.worker_side

    # ------------------------------------------------------------------------------------------------ scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any, **kw: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager, **kw)
        self._scheduler.bind(kv_cache_manager)

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata], **kw: Any) -> None:
        self._scheduler.take_capacities(metadata.values())

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[Any, Any], **kw: Any) -> None:
        self._scheduler.take_capacities(metadata.values())

    def on_new_request(self, request: Any, **kw: Any) -> None:
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int, **kw: Any) -> tuple[int | None, bool]:
        return self._scheduler.match(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any, **kw: Any) -> tuple[int, ...]:
        return self._scheduler.loaded_groups()

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int, **kw: Any) -> None:
        self._scheduler.allocated(request, blocks.blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any, **kw: Any) -> KVConnectorMetadata:
        return self._scheduler.build(scheduler_output)

    def update_connector_output(self, connector_output: Any, **kw: Any) -> None:
        self._scheduler.results(connector_output)

    def register_finished_partial_tail(
        self, request: Any, block_ids: tuple[list[int], ...], partial_tail_offloads: Iterable[Any], **kw: Any
    ) -> bool:
        self._scheduler.offer_tail(request, partial_tail_offloads)
        return False

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...], **kw: Any
    ) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.finished(request)
        return False, None

    def request_finished(self, request: Any, block_ids: list[int], **kw: Any) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.finished(request)
        return False, None

    def has_pending_push_work(self, **kw: Any) -> bool:
        return self._scheduler.has_pending_work()

    def has_pending_block_frees(self, **kw: Any) -> bool:
        return self._scheduler.has_pending_block_frees()

    def reset_cache(self, **kw: Any) -> bool | None:
        return self._scheduler.reset()

    def take_events(self, **kw: Any) -> Iterable[Any]:
        return self._scheduler.take_events()

    # ------------------------------------------------------------------------------------------------ worker

    def register_kv_caches(self, kv_caches: dict[str, Any], **kw: Any) -> None:
        self._worker.register(kv_caches)

    def unregister_kv_caches(self, **kw: Any) -> None:
        self._worker.unregister()

    def restore_kv_caches(self, **kw: Any) -> None:
        self._worker.restore()

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any = None, **kw: Any) -> bool:
        return True

    def get_handshake_metadata(self, **kw: Any) -> KVConnectorHandshakeMetadata | None:
        return self._worker.handshake()

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata, **kw: Any) -> None:
        """Nothing to wait for: every block that a copy touches is pinned until the copy has ended."""

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata, **kw: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._worker.bind(connector_metadata)

    def clear_connector_metadata(self, **kw: Any) -> None:
        self._worker.end_step()
        super().clear_connector_metadata()

    def start_load_kv(self, forward_context: Any, **kw: Any) -> None:
        self._worker.start_loads()

    def wait_for_layer_load(self, layer_name: str, **kw: Any) -> None:
        """Loads are asynchronous: no layer of a scheduled request waits for one."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kw: Any) -> None:
        """Blocks are copied as a whole behind the forward."""

    def wait_for_save(self, **kw: Any) -> None:
        self._worker.start_stores()

    def get_finished(self, finished_req_ids: set[str], **kw: Any) -> tuple[set[str] | None, set[str] | None]:
        finished, _ = self._worker.take_finished()
        return None, finished or None

    def get_transfer_results(self, finished_req_ids: set[str], **kw: Any) -> KVConnectorTransferResults:
        finished, failed = self._worker.take_finished()
        return KVConnectorTransferResults(finished_recving=finished, failed_recving=failed)

    def get_block_ids_with_load_errors(self, **kw: Any) -> set[int]:
        return self._worker.take_invalid_blocks()

    def build_connector_worker_meta(self, **kw: Any) -> Any:
        return self._worker.take_report()

    # ------------------------------------------------------------------------------------------------ both

    def get_kv_connector_stats(self, **kw: Any) -> Any:
        return self._scheduler.take_stats() if self.scheduler_side is not None else self._worker.take_stats()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None, **kw: Any) -> Any:
        return stats.build_kv_connector_stats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
        **kw: Any,
    ) -> Any:
        return stats.build_prom_metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self, **kw: Any) -> None:
        if self.scheduler_side is not None:
            self.scheduler_side.shutdown()
        if self.worker_side is not None:
            self.worker_side.shutdown()
