"""HostKV's metrics on vLLM's /metrics page.

Purpose: vLLM's KVConnectorPromMetrics: makes every family once, with every known label value at zero, and adds what a
shipment says. Runs in the front-end process. The metric classes are the ones that vLLM passes (plain, multiprocess or
Ray's), so gauges say how several processes are merged.
Thread-safety: as prometheus_client. Failure: fields that are not known here are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics

from hostkv.vllm import metric_names as names


class HostKVPromMetrics(KVConnectorPromMetrics):
    """Every family of HostKV, for all engines of one front end."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._families: dict[str, Any] = {}
        for metric in names.COUNTERS:
            self._counter(metric.name, metric.help, list(metric.labels))
        for metric in names.SCHEDULER_GAUGES:
            self._gauge(metric.name, metric.help, [])
        for metric in names.WORKER_GAUGES:
            self._gauge(metric.name, metric.help, ["rank"])
        self._counter(names.LOST_TOKENS, names.LOST_TOKENS_HELP, ["group", "reason"])
        self._gauge(names.INFO, names.INFO_HELP, list(names.INFO_LABELS))
        for name, (text, buckets) in names.HISTOGRAMS.items():
            self._families[name] = self._histogram_cls(
                name=names.PREFIX + name, documentation=text, labelnames=list(labelnames), buckets=list(buckets)
            )
        self._show_zeros()

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds one shipment of the engine `engine_idx`."""
        counters = transfer_stats_data.get("counters", {})
        for metric in names.COUNTERS:
            if growth := metric.value(counters):
                self._child(metric.name, engine_idx, metric.labels).inc(growth)
        self._set_gauges(names.SCHEDULER_GAUGES, transfer_stats_data.get("gauges", {}), engine_idx, {})
        for rank, gauges in transfer_stats_data.get("worker_gauges", {}).items():
            self._set_gauges(names.WORKER_GAUGES, gauges, engine_idx, {"rank": rank})
        for group, growth in transfer_stats_data.get("lost_tokens", {}).items():
            labels = {"group": group, "reason": names.LOST_TOKENS_REASON}
            self._child(names.LOST_TOKENS, engine_idx, labels).inc(growth)
        for name, values in transfer_stats_data.get("observations", {}).items():
            if name in names.HISTOGRAMS:
                for value in values:
                    self._child(name, engine_idx, {}).observe(value)
        if info := transfer_stats_data.get("info"):
            self._child(names.INFO, engine_idx, {name: info.get(name, "") for name in names.INFO_LABELS}).set(1)

    def _set_gauges(
        self, metrics: tuple[names.Metric, ...], values: Mapping[str, int], engine_idx: int, labels: Mapping[str, str]
    ) -> None:
        for metric in metrics:
            if any(name in values for name in metric.fields):
                self._child(metric.name, engine_idx, labels).set(metric.value(dict(values)))

    def _child(self, name: str, engine_idx: int, labels: Mapping[str, str]) -> Any:
        engine_labels = dict(zip(self._labelnames, self.per_engine_labelvalues[engine_idx], strict=True))
        return self._families[name].labels(**engine_labels, **labels)

    def _counter(self, name: str, text: str, labels: list[str]) -> None:
        if name not in self._families:
            self._families[name] = self._counter_cls(
                name=names.PREFIX + name, documentation=text, labelnames=self._labelnames + labels
            )

    def _gauge(self, name: str, text: str, labels: list[str]) -> None:
        self._families[name] = self._gauge_cls(
            name=names.PREFIX + name,
            documentation=text,
            labelnames=self._labelnames + labels,
            multiprocess_mode="mostrecent",
        )

    def _show_zeros(self) -> None:
        """A series that has not happened yet reads as zero, not as missing."""
        for engine_idx in self.per_engine_labelvalues:
            for metric in names.COUNTERS:
                self._child(metric.name, engine_idx, metric.labels)


def build_prom_metrics(
    vllm_config: Any,
    metric_types: dict[Any, Any],
    labelnames: list[str],
    per_engine_labelvalues: dict[int, list[object]],
) -> HostKVPromMetrics:
    """vLLM's hook of the same name."""
    return HostKVPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
