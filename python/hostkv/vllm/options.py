"""Resolves kv_connector_extra_config: HostKV's own options, and those of vLLM's offloading connectors.

Purpose: one place where JSON becomes values. HostKV's options are parsed by the core (its table, its errors); foreign
ones by the rows of foreign_options. Every error names the option, its value and what is allowed.
Thread-safety: functions without state, but for the set of values already warned about.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hostkv import _core
from hostkv.vllm.foreign_options import FOREIGN_OPTIONS, OptionRefused

logger = logging.getLogger("vllm.hostkv.options")

_PREFIX = "kv_connector_extra_config"
_SIZE_OPTIONS = ("cpu_bytes_to_use", "cpu_bytes_to_use_per_rank")
# What a request may say in kv_transfer_params of other offloading connectors, and HostKV does not serve.
_UNSERVED_REQUEST_KEYS = {
    "max_load_tokens": "HostKV loads whatever it holds",
    "kv_load_tiers": "HostKV has one tier, host memory",
}
_MAX_REMEMBERED_WARNINGS = 64
_MAX_SHOWN_CHARACTERS = 80
_warned: set[str] = set()


@dataclass(frozen=True)
class ResolvedOptions:
    """Everything as resolved.

    core_json: the core's options as JSON text, for the constructors of the core's two sides.
    values: the same as the core resolved them, defaults included.
    bytes_per_rank: host memory of one rank. offload_prompt_only: stores end with each request's prompt.
    notes: lines for the log, one per option that was mapped. warnings: lines that need a reader.
    """

    core_json: str
    values: dict[str, Any]
    bytes_per_rank: int
    offload_prompt_only: bool
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    def log(self) -> None:
        """Writes the notes and warnings to vLLM's log."""
        for note in self.notes:
            logger.info("HostKV: %s", note)
        for warning in self.warnings:
            logger.warning("HostKV: %s", warning)


def resolve(extra_config: Mapping[str, Any] | None, world_size: int = 1) -> ResolvedOptions:
    """Resolves the options of one engine whose cache is spread over `world_size` ranks.

    Raises ValueError for an unknown option, a value out of its range, or an option that HostKV cannot honour.
    """
    own_names = {row["name"] for row in _core.option_table()}
    own: dict[str, Any] = {}
    sets: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in (extra_config or {}).items():
        if name in own_names:
            own[name] = _whole_number(value) if name in _SIZE_OPTIONS else value
        else:
            note = _apply_foreign(name, value, own_names, sets)
            notes += [note] if note else []
    core_json = _to_json(own)
    values = dict(_core.parse_options(core_json))
    bytes_per_rank, warnings = _bytes_per_rank(values, own, world_size)
    return ResolvedOptions(
        core_json=core_json,
        values=values,
        bytes_per_rank=bytes_per_rank,
        offload_prompt_only=bool(sets.get("offload_prompt_only", False)),
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def known_names() -> list[str]:
    """Every name that resolve() knows, HostKV's first."""
    return [row["name"] for row in _core.option_table()] + [row.name for row in FOREIGN_OPTIONS]


def _apply_foreign(name: str, value: Any, own_names: set[str], sets: dict[str, Any]) -> str | None:
    """Applies one option of another connector; returns the line for the log."""
    row = next((row for row in FOREIGN_OPTIONS if row.name == name), None)
    if row is None:
        raise ValueError(_unknown(name, own_names))
    try:
        outcome = row.apply(value)
    except OptionRefused as refusal:
        raise ValueError(f"{_PREFIX}: {name} is {value!r} (an option of vLLM's {row.owner}): {refusal}") from None
    sets.update(outcome.sets)
    return f"{_PREFIX}: {name}={value!r} (an option of vLLM's {row.owner}): {outcome.note}" if outcome.note else None


def _unknown(name: str, own_names: set[str]) -> str:
    names = sorted(own_names) + [row.name for row in FOREIGN_OPTIONS]
    nearest = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.0)[0]
    return f'{_PREFIX}: unknown option "{name}"; the nearest known one is "{nearest}". All: {", ".join(names)}'


def _whole_number(value: Any) -> Any:
    """8e9 in JSON and vLLM's own GiB arithmetic are floats; a whole one is the number of bytes that it says."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _to_json(own: dict[str, Any]) -> str:
    for name, value in own.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise ValueError(f"{_PREFIX}: {name} is {value!r}, which JSON cannot hold") from None
    return json.dumps(own, allow_nan=False)


def _bytes_per_rank(values: dict[str, Any], own: dict[str, Any], world_size: int) -> tuple[int, list[str]]:
    """Host memory of one rank, and a warning when both ways of saying so disagree (the per-rank one wins)."""
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; allowed: 1 and more")
    shared = int(values["cpu_bytes_to_use"]) // world_size
    explicit = values.get("cpu_bytes_to_use_per_rank")
    if explicit is None:
        if shared < 1:
            total = values["cpu_bytes_to_use"]
            raise ValueError(f"{_PREFIX}: cpu_bytes_to_use is {total}, less than a byte for each of {world_size} ranks")
        return shared, []
    if "cpu_bytes_to_use" in own and int(explicit) != shared:
        said = f"cpu_bytes_to_use_per_rank={explicit} differs from cpu_bytes_to_use/ranks={shared}"
        return int(explicit), [f"{_PREFIX}: {said}; the value per rank is used"]
    return int(explicit), []


def request_limits(request: Any, offload_prompt_only: bool = False) -> int | None:
    """How many tokens of this vLLM request may be stored: kv_transfer_params.max_offload_tokens, None for all.

    With offload_prompt_only never more than its prompt. A value that is no whole number >= 0 is ignored with one
    warning.
    """
    limit = _max_offload_tokens(request)
    if not offload_prompt_only:
        return limit
    prompt = int(request.num_prompt_tokens)
    return prompt if limit is None else min(limit, prompt)


def _max_offload_tokens(request: Any) -> int | None:
    params = getattr(request, "kv_transfer_params", None)
    if not isinstance(params, Mapping):
        return None
    for key, reason in _UNSERVED_REQUEST_KEYS.items():
        if key in params:
            _warn_once(f"kv_transfer_params.{key}={_shown(params[key])} is ignored: {reason}")
    value = params.get("max_offload_tokens")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        _warn_once(
            f"kv_transfer_params.max_offload_tokens is {_shown(value)}, ignored; allowed: whole numbers, 0 and more"
        )
        return None
    return value


def _shown(value: Any) -> str:
    """A client's value as a log may hold it."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[:_MAX_SHOWN_CHARACTERS] + "..."


def _warn_once(text: str) -> None:
    """Values come from clients, so what is remembered, and thereby what is logged, is bounded."""
    if text in _warned or len(_warned) >= _MAX_REMEMBERED_WARNINGS:
        return
    _warned.add(text)
    logger.warning("HostKV: %s", text)
