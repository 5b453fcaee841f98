"""Statistics of a connector for vLLM's own hooks: what is shipped, how it adds up, what the log line says.

Purpose: HostKVStats is vLLM's KVConnectorStats; StatsSource turns the core's ever-growing counters into what changed.
The payload is plain JSON-like data, so it survives to_dict(), msgpack, pickling and rebuilding by class name:

    counters        field -> growth            add up over ranks and time
    lost_tokens     group -> growth            add up
    gauges          field -> value             scheduler side; the last one counts
    worker_gauges   rank -> field -> value     each rank's last one counts
    observations    name -> list of numbers    are joined
    seconds         source -> time covered     add up per source
    info            label -> text              the last one counts

Thread-safety: none needed; one object belongs to one thread at a time. Cost: a few dozen dictionary entries a step in
which something changed, nothing else.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from hostkv.vllm import metric_names as names
from hostkv.vllm.prometheus import HostKVPromMetrics, build_prom_metrics

__all__ = ["HostKVPromMetrics", "HostKVStats", "StatsSource", "build_kv_connector_stats", "build_prom_metrics"]

_COUNTER_FIELDS = names.fields_of(names.COUNTERS)
_SCHEDULER_GAUGE_FIELDS = names.fields_of(names.SCHEDULER_GAUGES)
_WORKER_GAUGE_FIELDS = names.fields_of(names.WORKER_GAUGES)
_GB = 1e9
# An engine without requests takes no steps: the hours before a burst are not time that its transfers took.
_LONGEST_COVERED_SECONDS = 10.0


@dataclass
class HostKVStats(KVConnectorStats):
    """What changed since the last shipment, of one source or of several that were added up."""

    def reset(self) -> None:
        """Forgets everything."""
        self.data: dict[str, Any] = {}

    def is_empty(self) -> bool:
        """True when there is nothing to report."""
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Adds `other`, of another rank, of the scheduler side or later in time, and returns self."""
        theirs = other.data
        for part in ("counters", "lost_tokens", "seconds"):
            _add(self.data, part, theirs)
        for part in ("gauges", "info"):
            if part in theirs:
                self.data.setdefault(part, {}).update(theirs[part])
        for rank, gauges in theirs.get("worker_gauges", {}).items():
            self.data.setdefault("worker_gauges", {}).setdefault(rank, {}).update(gauges)
        for name, values in theirs.get("observations", {}).items():
            self.data.setdefault("observations", {}).setdefault(name, []).extend(values)
        return self

    def reduce(self) -> dict[str, int | float]:
        """The numbers of the periodic log line, each with its unit in its name."""
        counters: dict[str, int] = self.data.get("counters", {})
        gauges: dict[str, int] = self.data.get("gauges", {})
        line: dict[str, int | float] = {}
        if queried := counters.get("queried_tokens", 0):
            line["hit rate (%)"] = round(100 * counters.get("hit_tokens", 0) / queried, 1)
        line["hit tokens"] = counters.get("hit_tokens", 0)
        for name, verb in (("stored", "store"), ("loaded", "load")):
            line[f"{name} (GB)"] = round(counters.get(f"{name}_bytes", 0) / _GB, 3)
            if (rate := self._rate(verb, counters.get(f"{name}_bytes", 0))) is not None:
                line[f"{verb} rate (GB/s)"] = rate
        line["evicted blocks"] = counters.get("evicted_blocks", 0)
        if failures := counters.get("failed_jobs", 0):
            line["failed transfers"] = failures
        if lost := sum(self.data.get("lost_tokens", {}).values()):
            line["tokens lost to groups that lacked them"] = lost
        if capacity := gauges.get("capacity_bytes", 0):
            line["pool used (%)"] = round(100 * gauges.get("used_bytes", 0) / capacity, 1)
        return line

    def _rate(self, verb: str, size_bytes: int) -> float | None:
        """GB/s while copying where durations are known, else averaged over the time that the numbers cover."""
        observations = self.data.get("observations", {})
        busy = sum(observations.get(f"{verb}_seconds", []))
        covered = busy or max(self.data.get("seconds", {}).values(), default=0.0)
        return round(size_bytes / _GB / covered, 3) if size_bytes and covered > 0 else None


def _add(data: dict[str, Any], part: str, theirs: Mapping[str, Any]) -> None:
    for name, growth in theirs.get(part, {}).items():
        mine = data.setdefault(part, {})
        mine[name] = mine.get(name, 0) + growth


def build_kv_connector_stats(data: dict[str, Any] | None = None) -> HostKVStats:
    """vLLM's hook: an object around `data`, or an empty one.

    The data is copied: vLLM hands the same payload to several loggers, and adding up writes into it.
    """
    return HostKVStats(data=copy.deepcopy(data) if data else {})


class StatsSource:
    """Keeps the last snapshot of one side's counters and yields what changed.

    `rank` is the worker's rank, None on the scheduler side. `info` is shipped once, with the first snapshot.
    """

    def __init__(
        self,
        rank: int | None = None,
        info: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank = rank
        self._info = dict(info or {})
        self._clock = clock
        self._since = clock()
        self._last: dict[str, int] = {}
        self._last_gauges: dict[str, int] | None = None
        self._last_lost: list[int] = []

    def take(
        self,
        metrics: Mapping[str, Any],
        lost_tokens_by_group: Sequence[int] = (),
    ) -> HostKVStats | None:
        """What changed since the last call, or None when nothing did (an idle connector ships nothing).

        metrics: the fields of the core's metrics; a list under "load_seconds" are observations since
        the last call.
        """
        data: dict[str, Any] = {}
        _put(data, "counters", self._take_counters(metrics))
        _put(data, "lost_tokens", self._take_lost(lost_tokens_by_group))
        _put(data, "observations", {name: list(metrics[name]) for name in names.HISTOGRAMS if metrics.get(name)})
        self._put_gauges(data, metrics)
        now = self._clock()
        covered, self._since = min(now - self._since, _LONGEST_COVERED_SECONDS), now
        if not data:
            return None
        data["seconds"] = {"scheduler" if self._rank is None else f"rank{self._rank}": covered}
        _put(data, "info", self._info)
        self._info = {}
        return HostKVStats(data=data)

    def _take_counters(self, metrics: Mapping[str, Any]) -> dict[str, int]:
        changed: dict[str, int] = {}
        for name in _COUNTER_FIELDS:
            if name in metrics and metrics[name] != self._last.get(name, 0):
                changed[name] = _growth(self._last.get(name, 0), metrics[name])
                self._last[name] = metrics[name]
        return changed

    def _take_lost(self, now: Sequence[int]) -> dict[str, int]:
        before = self._last_lost + [0] * (len(now) - len(self._last_lost))
        self._last_lost = list(now)
        return {str(group): _growth(before[group], value) for group, value in enumerate(now) if value != before[group]}

    def _put_gauges(self, data: dict[str, Any], metrics: Mapping[str, Any]) -> None:
        fields = _SCHEDULER_GAUGE_FIELDS if self._rank is None else _WORKER_GAUGE_FIELDS
        gauges = {name: metrics[name] for name in fields if name in metrics}
        if gauges == self._last_gauges:
            return
        self._last_gauges = gauges
        _put(data, *(("gauges", gauges) if self._rank is None else ("worker_gauges", {str(self._rank): gauges})))


def _growth(before: int, now: int) -> int:
    """A counter that fell belongs to a new core, which began at zero."""
    return now - before if now >= before else now


def _put(data: dict[str, Any], part: str, values: Mapping[str, Any]) -> None:
    if values:
        data[part] = dict(values)
