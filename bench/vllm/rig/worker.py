"""A worker that copies nothing: it answers every connector's metadata with what a real one reports once all is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import rig  # noqa: F401  (the environment, before vllm)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadMetadata, SimpleCPUOffloadWorkerMetadata


@dataclass
class Answer:
    """output: None where the worker has nothing to say. stored, loaded: blocks copied."""

    output: KVConnectorOutput | None = None
    stored: int = 0
    loaded: int = 0


def answer(metadata: Any) -> Answer:
    """All copies of this step, done. One rank."""
    if isinstance(metadata, SimpleCPUOffloadMetadata):
        return _simple(metadata)
    if isinstance(metadata, OffloadingConnectorMetadata):
        return _native(metadata)
    return _hostkv(metadata)


def _simple(metadata: Any) -> Answer:
    loads = set(metadata.load_event_to_reqs.get(metadata.load_event, ())) if metadata.load_event >= 0 else set()
    stores = SimpleCPUOffloadWorkerMetadata({metadata.store_event: 1}) if metadata.store_event >= 0 else None
    if not loads and stores is None:
        return Answer()
    output = KVConnectorOutput(finished_recving=loads, kv_connector_worker_meta=stores)
    return Answer(output, len(metadata.store_gpu_blocks), len(metadata.load_gpu_blocks))


def _native(metadata: Any) -> Answer:
    if not metadata.load_jobs and not metadata.store_jobs:
        return Answer()
    output = KVConnectorOutput(
        finished_recving={job.req_id for job in metadata.load_jobs.values()},
        kv_connector_worker_meta=OffloadingWorkerMetadata(
            completed_jobs={job: 1 for job in (*metadata.load_jobs, *metadata.store_jobs)}
        ),
    )
    return Answer(
        output,
        sum(len(job.src_spec.block_ids) for job in metadata.store_jobs.values()),
        sum(len(job.dst_spec.block_ids) for job in metadata.load_jobs.values()),
    )


def _hostkv(metadata: Any) -> Answer:
    if metadata.step is None and not metadata.ended:
        return Answer()
    from hostkv import _core
    from hostkv.vllm.messages import RankReport

    described = _core.describe_step(metadata.step) if metadata.step is not None else {"epoch": 0, "jobs": []}
    blocks = {"store": 0, "load": 0, "device_copy": 0}
    results = []
    for job in described["jobs"]:
        blocks[job["direction"]] += len(job["blocks"])
        results.append((described["epoch"], job["id"], 0, 0, []))
    output = KVConnectorOutput(
        finished_recving={*metadata.loads.values(), *metadata.ended},
        kv_connector_worker_meta=RankReport(results) if results else None,
    )
    return Answer(output, blocks["store"], blocks["load"])


def tell_capacity(
    connector: Any, host_blocks: int, blocks_per_slab: int = 1, num_ranks: int = 1, short_of: dict[int, int] | None = None
) -> None:
    """HostKV's pool as the ranks would report it: exactly host_blocks blocks, of every group. short_of: rank -> slabs
    that it has less."""
    from hostkv.vllm.messages import CapacityMessage

    side = connector.scheduler_side
    geometry = side.geometry
    while host_blocks % blocks_per_slab:
        blocks_per_slab -= 1
    slots = [blocks_per_slab if geometry.offloadable(group) else 0 for group in range(geometry.num_groups)]
    connector.set_xfer_handshake_metadata({
        rank: CapacityMessage(
            side._pool_key,
            {
                "rank": rank,
                "num_slabs": host_blocks // blocks_per_slab - (short_of or {}).get(rank, 0),
                "slab_bytes": 4096 * blocks_per_slab,
                "slots_per_slab": slots,
                "fingerprint": geometry.fingerprint,
            },
        )
        for rank in range(num_ranks)
    })
