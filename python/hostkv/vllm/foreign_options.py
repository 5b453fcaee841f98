"""Options of vLLM's own offloading connectors, and what HostKV does with each.

Purpose: someone who comes from SimpleCPUOffloadConnector or OffloadingConnector keeps the same JSON. Every option of
both is a row here: accepted with the same meaning, mapped to something of ours with one log line, or refused with our
equivalent or the reason. The rows also make the section of docs/vllm.md. Options that HostKV has under the same name
(cpu_bytes_to_use, lazy_offload, ...) are rows of the core's table, not of this one.

Failure: a rule raises OptionRefused with the sentence for the user; nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SIMPLE = "SimpleCPUOffloadConnector"
OFFLOADING = "OffloadingConnector"
MULTI = "MultiConnector"


class OptionRefused(ValueError):
    """The value cannot be honoured; the text says what to do instead."""


@dataclass(frozen=True)
class Outcome:
    """What became of one option: our options that it sets, and a line for the log (none when nothing changed)."""

    sets: dict[str, Any]
    note: str | None = None


@dataclass(frozen=True)
class ForeignOption:
    """A row: the option's name, whose it is, what HostKV does with it, and the rule that does so."""

    name: str
    owner: str
    treatment: str
    meaning: str
    apply: Callable[[Any], Outcome]


ACCEPTED = Outcome({})


def _refuse(reason: str) -> Callable[[Any], Outcome]:
    """Refused whatever the value."""

    def rule(value: Any) -> Outcome:
        raise OptionRefused(reason)

    return rule


def _only(allowed: tuple[Any, ...], reason: str) -> Callable[[Any], Outcome]:
    """The values that ask for nothing are accepted, all others refused."""

    def rule(value: Any) -> Outcome:
        if any(type(value) is type(good) and value == good for good in allowed):
            return ACCEPTED
        raise OptionRefused(reason)

    return rule


def _positive_integer(value: Any, unit: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise OptionRefused(f"a positive number of {unit} is needed")
    return value


def _chunk_tokens(value: Any) -> Outcome:
    tokens = _positive_integer(value, "tokens")
    return Outcome({}, f"not needed: HostKV stores single blocks of the engine, never chunks of {tokens} tokens")


def _chunk_blocks(value: Any) -> Outcome:
    blocks = _positive_integer(value, "blocks")
    if blocks == 1:
        return ACCEPTED
    return Outcome({}, f"not needed: HostKV stores single blocks of the engine, never chunks of {blocks} blocks")


def _prompt_only(value: Any) -> Outcome:
    if not isinstance(value, bool):
        raise OptionRefused("true or false is needed")
    return Outcome({"offload_prompt_only": value}, "stores end with each request's prompt" if value else None)


def _store_threshold(value: Any) -> Outcome:
    if isinstance(value, int) and not isinstance(value, bool) and value in (0, 1):
        return ACCEPTED
    raise OptionRefused(
        "HostKV has no admission by offer count yet; leave it out or set 0, and store_mode lazy to store "
        "only what the device drops"
    )


def _tracker_size(value: Any) -> Outcome:
    _positive_integer(value, "tracked blocks")
    return ACCEPTED


def _self_describing(value: Any) -> Outcome:
    if value is True:
        return ACCEPTED
    if value is False:
        return Outcome({}, "HostKV's KV events are always self-describing")
    raise OptionRefused("true or false is needed")


_NO_DISK = "HostKV has no disk tier yet; leave it out (host memory is cpu_bytes_to_use)"
_NO_TIERS = "HostKV has no secondary tiers yet; leave it out"

FOREIGN_OPTIONS: tuple[ForeignOption, ...] = (
    ForeignOption(
        "num_cpu_blocks",
        SIMPLE,
        "refused",
        "HostKV's slots have the size of their group's block, so one "
        "count of blocks says nothing: set cpu_bytes_to_use_per_rank.",
        _refuse("slots differ in size by group, so the pool is given in bytes: set cpu_bytes_to_use_per_rank"),
    ),
    ForeignOption(
        "kv_offload_backend",
        SIMPLE,
        "cpu accepted, disk refused",
        "Host memory is the only tier so far.",
        _only(("cpu",), f'only "cpu" is served: {_NO_DISK}'),
    ),
    ForeignOption("disk_path", SIMPLE, "refused", "No disk tier yet.", _refuse(_NO_DISK)),
    ForeignOption("disk_capacity_bytes", SIMPLE, "refused", "No disk tier yet.", _refuse(_NO_DISK)),
    ForeignOption("disk_buffer_slots", SIMPLE, "refused", "No disk tier yet.", _refuse(_NO_DISK)),
    ForeignOption(
        "use_page_cache", SIMPLE, "false accepted, true refused", "No disk tier yet.", _only((False,), _NO_DISK)
    ),
    ForeignOption(
        "spec_name",
        OFFLOADING,
        "CPUOffloadingSpec accepted, others refused",
        "HostKV is itself what a spec chooses there.",
        _only(("CPUOffloadingSpec",), 'only "CPUOffloadingSpec" (host memory) has an equivalent here'),
    ),
    ForeignOption(
        "spec_module_path",
        OFFLOADING,
        "refused",
        "HostKV loads no offloading specs.",
        _refuse("HostKV loads no offloading specs; leave it out"),
    ),
    ForeignOption(
        "block_size",
        OFFLOADING,
        "mapped",
        "A chunk size there. HostKV stores single blocks of the engine, "
        "so its hits are never coarser; the value is checked and not used.",
        _chunk_tokens,
    ),
    ForeignOption(
        "blocks_per_chunk", OFFLOADING, "1 accepted, more mapped", "As block_size, counted in blocks.", _chunk_blocks
    ),
    ForeignOption(
        "cache_policy_module_path",
        OFFLOADING,
        "refused",
        "Policies are part of the core: eviction_policy.",
        _refuse("HostKV loads no policies from Python modules; choose one by eviction_policy"),
    ),
    ForeignOption(
        "store_threshold",
        OFFLOADING,
        "0 and 1 accepted (off), more refused",
        "Admission after that many offers does not exist here yet.",
        _store_threshold,
    ),
    ForeignOption(
        "max_tracker_size",
        OFFLOADING,
        "accepted",
        "Has an effect with store_threshold only, as there.",
        _tracker_size,
    ),
    ForeignOption(
        "offload_prompt_only",
        OFFLOADING,
        "false accepted, true mapped",
        "true ends each request's stores with its prompt. "
        "The default is false here (there it is true): decoded blocks are stored too.",
        _prompt_only,
    ),
    ForeignOption(
        "self_describing_kv_events",
        OFFLOADING,
        "true accepted, false mapped",
        "HostKV's KV events always carry tokens, parent and group.",
        _self_describing,
    ),
    ForeignOption(
        "canonical_layout",
        OFFLOADING,
        "false accepted, true refused",
        "Slots keep the engine's own bytes of one rank.",
        _only((False,), "slots keep the engine's own layout; leave it out"),
    ),
    ForeignOption(
        "secondary_tiers",
        OFFLOADING,
        "an empty list accepted, others refused",
        "Host memory is the only tier so far.",
        _only(([],), _NO_TIERS),
    ),
    ForeignOption("backpressure", OFFLOADING, "refused", "Belongs to secondary tiers.", _refuse(_NO_TIERS)),
    ForeignOption("tier_poll_interval_s", OFFLOADING, "refused", "Belongs to secondary tiers.", _refuse(_NO_TIERS)),
    ForeignOption(
        "enable_telemetry",
        OFFLOADING,
        "false accepted, true refused",
        "Belongs to a secondary tier.",
        _only((False,), _NO_TIERS),
    ),
    ForeignOption(
        "sync_load_budget_bytes",
        OFFLOADING,
        "0 accepted, others refused",
        "Loads are always asynchronous: a synchronous load of a recurrent state gives wrong output.",
        _only(
            (0,),
            "HostKV loads asynchronously only (a synchronous load of a recurrent state gives wrong "
            "output, without any error); leave it out",
        ),
    ),
    ForeignOption(
        "connectors",
        MULTI,
        "refused",
        "HostKV is a child of MultiConnector, never its parent.",
        _refuse(
            'child connectors belong to kv_connector "MultiConnector"; name HostKVConnector as one of its children'
        ),
    ),
)


def foreign_options_markdown() -> str:
    """The table of docs/vllm.md, made from the rows."""
    lines = ["| option | of | HostKV | why |", "|---|---|---|---|"]
    lines += [f"| `{row.name}` | {row.owner} | {row.treatment} | {row.meaning} |" for row in FOREIGN_OPTIONS]
    return "\n".join(lines) + "\n"
