"""Which of the core's counters and gauges becomes which Prometheus metric.

Purpose: one table from the fields of include/hostkv/metrics.h to names, labels and help; the statistics, the
Prometheus registration and the section of docs/vllm.md are made from it. Counters of both sides are disjoint by name;
the only name on both sides is the gauge jobs_in_flight, and gauges are kept per side.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PREFIX = "vllm:hostkv_"


@dataclass(frozen=True)
class Metric:
    """One time series (a family with one combination of labels) and the fields that feed it."""

    name: str
    help: str
    fields: tuple[str, ...]  # their sum is the value
    minus: tuple[str, ...] = ()  # fields that are taken off that sum
    labels: dict[str, str] = field(default_factory=dict)

    def value(self, numbers: dict[str, int]) -> int:
        """The value in a dictionary of fields; fields that are missing count as zero."""
        return sum(numbers.get(name, 0) for name in self.fields) - sum(numbers.get(name, 0) for name in self.minus)


def _family(name: str, label: str, text: str, rows: dict[str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(name, text, (source,), labels={label: value}) for value, source in rows.items())


_STORE_BLOCKS = _family(
    "store_blocks_total",
    "outcome",
    "Blocks whose store was wanted, by what became of them: stored; present already; dropped because no slot could be "
    "freed, a rank failed, or a reset came first.",
    {
        "stored": "stored_blocks",
        "present": "present_blocks",
        "dropped_full": "dropped_full_blocks",
        "dropped_failed": "dropped_failed_blocks",
        "dropped_reset": "dropped_reset_blocks",
    },
)
_LOAD_BLOCKS = _family(
    "load_blocks_total",
    "outcome",
    "Blocks of loads that ended, by outcome.",
    {"loaded": "loaded_blocks", "failed": "failed_load_blocks"},
)
_PLANNED_LOADS_HELP = "Blocks of planned loads, by where their bytes come from: host memory, or another device block."
_HAND_OFFS = _family(
    "hand_offs_total",
    "outcome",
    "State boundaries that the engine handed over and that were not stored: dropped found no slot, ignored were for "
    "requests or blocks that no longer exist.",
    {"dropped": "dropped_hand_offs", "ignored": "ignored_hand_offs"},
)

COUNTERS: tuple[Metric, ...] = (
    Metric("lookups_total", "Prefix lookups that searched.", ("lookups",)),
    Metric(
        "delayed_lookups_total",
        "Lookups that must be asked again: loads fill the device already.",
        ("delayed_lookups",),
    ),
    Metric("queried_tokens_total", "Tokens asked for that the device had not computed.", ("queried_tokens",)),
    Metric("hit_tokens_total", "Tokens served by HostKV: their load was planned.", ("hit_tokens",)),
    Metric("planned_store_blocks_total", "Blocks whose store was planned.", ("planned_store_blocks",)),
    *_STORE_BLOCKS,
    Metric(
        "planned_load_blocks_total",
        _PLANNED_LOADS_HELP,
        ("planned_load_blocks",),
        ("planned_device_copies",),
        {"source": "host"},
    ),
    Metric("planned_load_blocks_total", _PLANNED_LOADS_HELP, ("planned_device_copies",), labels={"source": "device"}),
    *_LOAD_BLOCKS,
    Metric("evicted_blocks_total", "Blocks that left a full pool.", ("evicted_blocks",)),
    Metric(
        "unstorable_boundaries_total",
        "Boundaries with a source block gone before it was stored.",
        ("unstorable_boundaries",),
    ),
    *_HAND_OFFS,
    Metric(
        "ignored_results_total",
        "Transfer results ignored: repeats, unknown jobs, ranks or epochs.",
        ("ignored_results",),
    ),
    Metric("stored_bytes_total", "Bytes copied from device to host, over all ranks.", ("stored_bytes",)),
    Metric("loaded_bytes_total", "Bytes copied from host to device, over all ranks.", ("loaded_bytes",)),
    Metric(
        "device_copied_bytes_total", "Bytes copied between device blocks, over all ranks.", ("device_copied_bytes",)
    ),
    Metric("failed_jobs_total", "Transfers of a rank that failed.", ("failed_jobs",)),
    Metric("checked_blocks_total", "Loaded blocks held against their checksum.", ("checked_blocks",)),
    Metric("changed_blocks_total", "Loaded blocks whose bytes had changed in host memory.", ("changed_blocks",)),
)

SCHEDULER_GAUGES: tuple[Metric, ...] = (
    Metric("capacity_bytes", "Host memory that one rank may use.", ("capacity_bytes",)),
    Metric("used_bytes", "Host memory of one rank that holds blocks, in whole slabs.", ("used_bytes",)),
    Metric("stored_keys", "Keys that a lookup can find.", ("stored_keys",)),
    Metric("pinned_slots", "Slots that must not be evicted: promised, loading or being stored.", ("pinned_slots",)),
    Metric("jobs_in_flight", "Transfers sent and not yet answered by every rank.", ("jobs_in_flight",)),
    Metric("pinned_device_blocks", "Device blocks held until a transfer is done with them.", ("pinned_device_blocks",)),
)

# With a label `rank`.
WORKER_GAUGES: tuple[Metric, ...] = (
    Metric("pool_bytes", "Host memory that a rank has mapped.", ("pool_bytes",)),
    Metric("rank_jobs_in_flight", "Transfers that a rank is working on.", ("jobs_in_flight",)),
)

LOST_TOKENS = "lost_tokens_total"
LOST_TOKENS_HELP = "Tokens whose bytes some groups held and that were not served, by the group that lacked them."
LOST_TOKENS_REASON = "group_mismatch"
INFO = "info"
INFO_HELP = "How HostKV runs here; always 1."
INFO_LABELS = ("version", "store_mode", "boundaries", "block_sizes", "hash_block_size")

# name -> (help, bucket bounds)
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "load_seconds": (
        "Time of one load on a rank, from its start to the step that saw its end.",
        (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
    ),
}


def fields_of(metrics: tuple[Metric, ...]) -> set[str]:
    """The core's fields that a set of metrics reads."""
    return {name for metric in metrics for name in metric.fields + metric.minus}


def metrics_markdown() -> str:
    """The table of docs/vllm.md, made from the rows above."""
    families: dict[str, tuple[str, str, str]] = {}
    groups = ((COUNTERS, "counter", ()), (SCHEDULER_GAUGES, "gauge", ()), (WORKER_GAUGES, "gauge", ("rank",)))
    for metrics, kind, extra in groups:
        for metric in metrics:
            label = next(iter(metric.labels), None)
            values = "|".join(m.labels[label] for m in metrics if m.name == metric.name) if label else ""
            families[metric.name] = (kind, f"{label}={values}" if label else ", ".join(extra), metric.help)
    families[LOST_TOKENS] = ("counter", f"group, reason={LOST_TOKENS_REASON}", LOST_TOKENS_HELP)
    families |= {name: ("histogram", "", text) for name, (text, _) in HISTOGRAMS.items()}
    families[INFO] = ("gauge", ", ".join(INFO_LABELS), INFO_HELP)
    lines = ["| metric | kind | labels beside engine and model_name | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{PREFIX}{name}` | {kind} | {labels.replace('|', ', ')} | {text} |"
        for name, (kind, labels, text) in families.items()
    ]
    return "\n".join(lines) + "\n"
