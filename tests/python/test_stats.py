"""What the connector reports: growth only, added up over ranks and time, on the log line and on /metrics."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from hostkv.vllm import metric_names
from hostkv.vllm.stats import HostKVStats, StatsSource, build_kv_connector_stats, build_prom_metrics

REPOSITORY = Path(__file__).resolve().parents[2]
SCHEDULER = {
    "queried_tokens": 1000, "hit_tokens": 600, "stored_blocks": 5, "planned_load_blocks": 9,
    "planned_device_copies": 2, "used_bytes": 30, "capacity_bytes": 120, "jobs_in_flight": 3,
}  # fmt: skip
WORKER = {"stored_bytes": 4_000_000_000, "loaded_bytes": 2_000_000_000, "jobs_in_flight": 1, "pool_bytes": 64}


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def fields(struct: str) -> set[str]:
    header = (REPOSITORY / "include" / "hostkv" / "metrics.h").read_text()
    body = re.search(rf"struct {struct} {{(.*?)\n}};", header, re.DOTALL)
    assert body is not None
    return set(re.findall(r"std::int64_t (\w+) = 0;", body[1]))


def test_every_field_of_the_core_is_shown_by_exactly_one_side_of_the_table():
    scheduler, worker = fields("SchedulerMetrics"), fields("WorkerMetrics")
    assert len(scheduler) > 20 and len(worker) > 5
    counters = metric_names.fields_of(metric_names.COUNTERS)
    scheduler_gauges = metric_names.fields_of(metric_names.SCHEDULER_GAUGES)
    worker_gauges = metric_names.fields_of(metric_names.WORKER_GAUGES)
    assert scheduler | worker == counters | scheduler_gauges | worker_gauges
    assert scheduler_gauges <= scheduler and worker_gauges <= worker
    assert not counters & (scheduler_gauges | worker_gauges)
    assert not (scheduler - scheduler_gauges) & (worker - worker_gauges), "counters of both sides share one dictionary"


def test_an_idle_connector_ships_nothing():
    source = StatsSource()
    assert source.take(SCHEDULER, [0, 4]) is not None
    assert source.take(dict(SCHEDULER), [0, 4]) is None
    worker = StatsSource(rank=0)
    assert worker.take(WORKER) is not None
    assert worker.take(WORKER | {"load_seconds": []}) is None


def test_counters_ship_their_growth_and_gauges_their_value():
    source = StatsSource()
    source.take(SCHEDULER, [1, 0])
    shipped = source.take(SCHEDULER | {"hit_tokens": 610, "used_bytes": 20}, [1, 7])
    assert shipped.data["counters"] == {"hit_tokens": 10}
    assert shipped.data["gauges"]["used_bytes"] == 20
    assert shipped.data["lost_tokens"] == {"1": 7}


def test_a_counter_that_fell_began_again_at_zero():
    source = StatsSource()
    source.take(SCHEDULER, [9])
    shipped = source.take(SCHEDULER | {"hit_tokens": 4}, [2])
    assert shipped.data["counters"] == {"hit_tokens": 4}
    assert shipped.data["lost_tokens"] == {"0": 2}


def test_the_info_is_shipped_once():
    source = StatsSource(info={"version": "1"})
    assert source.take(SCHEDULER).data["info"] == {"version": "1"}
    assert "info" not in source.take(SCHEDULER | {"hit_tokens": 601}).data


def whole_shipment():
    source = StatsSource(info={"version": "1", "store_mode": "lazy"})
    shipped = source.take(SCHEDULER, [0, 3])
    return shipped.aggregate(StatsSource(rank=1).take(WORKER | {"load_seconds": [0.5]}))


def test_a_shipment_survives_json_msgpack_pickling_and_rebuilding():
    data = whole_shipment().to_dict()
    assert json.loads(json.dumps(data)) == data
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(data)) == data
    assert pickle.loads(pickle.dumps(whole_shipment())).data.keys() == data.keys()
    assert build_kv_connector_stats(data).data == data
    assert build_kv_connector_stats(None).is_empty()


def test_rebuilding_copies_because_vllm_hands_one_payload_to_several_loggers():
    data = whole_shipment().to_dict()
    before = json.dumps(data, sort_keys=True)
    first, second = build_kv_connector_stats(data), build_kv_connector_stats(data)
    first.aggregate(build_kv_connector_stats(data))
    assert json.dumps(data, sort_keys=True) == before == json.dumps(second.data, sort_keys=True)


def test_counters_add_up_over_ranks_and_each_rank_keeps_its_gauges():
    total = StatsSource(rank=0).take(WORKER)
    total = total.aggregate(StatsSource(rank=1).take(WORKER | {"pool_bytes": 32}))
    total = total.aggregate(StatsSource().take(SCHEDULER))
    assert total.data["counters"]["stored_bytes"] == 8_000_000_000
    assert {rank: gauges["pool_bytes"] for rank, gauges in total.data["worker_gauges"].items()} == {"0": 64, "1": 32}
    assert total.data["gauges"]["jobs_in_flight"] == 3


def test_gauges_of_a_later_shipment_replace_those_before():
    total = HostKVStats(data={"gauges": {"used_bytes": 5}, "worker_gauges": {"0": {"pool_bytes": 1}}})
    total.aggregate(HostKVStats(data={"gauges": {"used_bytes": 3}, "worker_gauges": {"0": {"pool_bytes": 2}}}))
    assert total.data == {"gauges": {"used_bytes": 3}, "worker_gauges": {"0": {"pool_bytes": 2}}}


def test_reset_forgets_everything():
    stats = whole_shipment()
    stats.reset()
    assert stats.is_empty()


def test_the_log_line_says_hit_rate_and_rates_over_the_time_covered():
    clock = Clock()
    scheduler, worker = StatsSource(clock=clock), StatsSource(rank=0, clock=clock)
    clock.now = 4.0
    line = scheduler.take(SCHEDULER).aggregate(worker.take(WORKER)).reduce()
    assert line["hit rate (%)"] == 60.0
    assert line["pool used (%)"] == 25.0
    assert (line["stored (GB)"], line["store rate (GB/s)"]) == (4.0, 1.0)
    assert (line["loaded (GB)"], line["load rate (GB/s)"]) == (2.0, 0.5)


def test_known_durations_give_the_rate_while_loading():
    line = StatsSource(rank=0).take(WORKER | {"load_seconds": [0.25, 0.25]}).reduce()
    assert line["load rate (GB/s)"] == 4.0


def test_hours_without_steps_before_a_burst_are_not_its_time():
    clock = Clock()
    worker = StatsSource(rank=0, clock=clock)
    clock.now = 36000.0
    assert worker.take(WORKER).reduce()["store rate (GB/s)"] == 0.4


def test_an_interval_without_lookups_has_no_hit_rate():
    assert "hit rate (%)" not in StatsSource(rank=0).take(WORKER).reduce()


CONFIG = SimpleNamespace(kv_transfer_config=None)
ENGINES = {0: ["tiny", "0"], 1: ["tiny", "1"]}
LABELNAMES = ["model_name", "engine"]


def metric_types(registry):
    """vLLM's metric classes, bound to a registry of the test."""

    def bound(kind):
        return type(f"Bound{kind.__name__}", (), {"__new__": lambda cls, **kw: kind(registry=registry, **kw)})

    return {kind: bound(kind) for kind in (Gauge, Counter, Histogram)}


@pytest.fixture
def page():
    """A front end's metrics, and a reader of one sample of its page."""
    registry = CollectorRegistry()
    metrics = build_prom_metrics(CONFIG, metric_types(registry), LABELNAMES, ENGINES)

    def read(name, engine="0", **labels):
        return registry.get_sample_value(f"vllm:hostkv_{name}", {"model_name": "tiny", "engine": engine, **labels})

    return metrics, read


def test_counters_read_zero_before_anything_happened(page):
    _, read = page
    for outcome in ("stored", "present", "dropped_full", "dropped_failed", "dropped_reset"):
        assert read("store_blocks_total", outcome=outcome) == 0
    assert read("hit_tokens_total", engine="1") == 0


def test_a_shipment_lands_on_the_page_of_its_engine(page):
    metrics, read = page
    metrics.observe(whole_shipment().to_dict(), engine_idx=1)
    assert read("hit_tokens_total", engine="1") == 600
    assert read("hit_tokens_total", engine="0") == 0
    assert read("store_blocks_total", engine="1", outcome="stored") == 5
    assert read("planned_load_blocks_total", engine="1", source="host") == 7
    assert read("planned_load_blocks_total", engine="1", source="device") == 2
    assert read("used_bytes", engine="1") == 30
    assert read("jobs_in_flight", engine="1") == 3
    assert read("rank_jobs_in_flight", engine="1", rank="1") == 1
    assert read("pool_bytes", engine="1", rank="1") == 64
    assert read("lost_tokens_total", engine="1", group="1", reason="group_mismatch") == 3
    assert read("load_seconds_sum", engine="1") == 0.5
    info = {"version": "1", "store_mode": "lazy", "boundaries": "", "block_sizes": "", "hash_block_size": ""}
    assert read("info", engine="1", **info) == 1


def test_shipments_add_up_on_the_page(page):
    metrics, read = page
    source = StatsSource()
    for hits in (600, 650, 700):
        metrics.observe(source.take(SCHEDULER | {"hit_tokens": hits, "used_bytes": hits}).to_dict())
    assert read("hit_tokens_total") == 700
    assert read("used_bytes") == 700


def test_one_ranks_silence_does_not_change_another_ranks_gauge(page):
    metrics, read = page
    metrics.observe({"worker_gauges": {"0": {"pool_bytes": 1}, "1": {"pool_bytes": 2}}})
    metrics.observe({"worker_gauges": {"1": {"pool_bytes": 3}}})
    assert (read("pool_bytes", rank="0"), read("pool_bytes", rank="1")) == (1, 3)


def test_fields_that_are_not_known_are_left_out(page):
    metrics, _ = page
    metrics.observe({"counters": {"new": 1}, "gauges": {"new": 1}, "observations": {"new": [1]}, "new": 3})


def test_several_front_ends_are_merged_by_prometheus_multiprocess_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    process = iter([11, 12])
    for hits in (600, 100):
        pid = next(process)
        monkeypatch.setattr(values, "ValueClass", values.MultiProcessValue(process_identifier=lambda pid=pid: pid))
        monkeypatch.setattr("prometheus_client.metrics.values", values)
        metrics = build_prom_metrics(CONFIG, metric_types(CollectorRegistry()), LABELNAMES, ENGINES)
        metrics.observe(StatsSource().take(SCHEDULER | {"hit_tokens": hits, "used_bytes": hits}).to_dict())
    merged = CollectorRegistry()
    MultiProcessCollector(merged, path=str(tmp_path))
    text = generate_latest(merged).decode()
    assert re.search(r'vllm:hostkv_hit_tokens_total\{[^}]*engine="0"[^}]*\} 700\.0', text)
    assert re.search(r'vllm:hostkv_used_bytes\{[^}]*engine="0"[^}]*\} 100\.0', text)


def test_vllms_own_logger_and_exporter_take_a_shipment(monkeypatch):
    from vllm.distributed.kv_transfer.kv_connector.v1 import metrics as vllm_metrics

    connector = SimpleNamespace(build_kv_connector_stats=build_kv_connector_stats)
    monkeypatch.setattr(vllm_metrics.KVConnectorFactory, "get_connector_class", lambda config: connector)
    logger = vllm_metrics.KVConnectorLogging(SimpleNamespace(kv_connector="HostKVConnector"))
    lines: list[str] = []
    logger.observe(whole_shipment().to_dict())
    logger.observe(whole_shipment().to_dict())
    logger.log(lambda text, values: lines.append(text % values))
    logger.log(lambda text, values: lines.append(text % values))
    (line,) = lines
    assert "hit rate (%)=60.0" in line and "hit tokens=1200" in line


def test_the_documentation_holds_the_table_of_metrics():
    assert metric_names.metrics_markdown() in (REPOSITORY / "docs" / "vllm.md").read_text()
