"""What travels between the scheduler side and the worker sides: plain values, small, picklable.

Downwards once a step (StepMessage), upwards with each rank's output (RankReport), and once before the first step
(CapacityMessage).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

# (epoch, job, rank, status, [(group, block), ...])
JobResult = tuple[int, int, int, int, list[tuple[int, int]]]


@dataclass
class StepMessage(KVConnectorMetadata):
    """One step, the same for every rank.

    step: the core's message, None where it holds no job. loads: whose load a job is, of `epoch`. ended: loads that end
    without a copy on any rank (True: nothing had to be copied; False: failed), to be reported by every rank.
    has_forward: a model runs in this step.
    """

    step: bytes | None = None
    loads: dict[int, str] = field(default_factory=dict)
    epoch: int = 0
    ended: dict[str, bool] = field(default_factory=dict)
    has_forward: bool = True


@dataclass
class CapacityMessage(KVConnectorHandshakeMetadata):
    """What one rank can hold. `pool_key` tells the pools of two HostKV connectors of one engine apart.

    interleave_tokens: with which the rank's model runs, 0 where it is not told; the scheduler's configuration may not
    know.
    """

    pool_key: str
    capacity: dict[str, Any]
    interleave_tokens: int = 0


@dataclass
class RankReport(KVConnectorWorkerMetadata):
    """What the ranks say in one step. The capacity goes along with a rank's first report, since MultiConnector hands on
    the handshake of one child only.

    broken: why a rank copies nothing any more; empty where all do. invalid: the blocks that it has told the engine to
    have failed, so that those of other connectors are known.
    """

    results: list[JobResult] = field(default_factory=list)
    capacities: list[CapacityMessage] = field(default_factory=list)
    broken: str = ""
    invalid: set[int] = field(default_factory=set)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """All ranks' lists one behind the other; the core merges by job and rank."""
        if not isinstance(other, RankReport):
            raise TypeError(f"cannot merge the report of a rank with {type(other).__name__}")
        broken = self.broken or other.broken
        results, capacities = self.results + other.results, self.capacities + other.capacities
        return RankReport(results, capacities, broken, self.invalid | other.invalid)
