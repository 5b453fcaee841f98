"""Fixtures of the Python tests that need no engine.

The compiled core is used where it is built. Where it is not, a double with the core's option table (docs/options.md)
takes its place, so that the Python around it can be tested in a source tree without a compiler.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def _option_rows() -> list[dict[str, str]]:
    rows = []
    for line in (REPOSITORY / "docs" / "options.md").read_text().splitlines():
        if match := re.match(r"\| `(\w+)` \| (\w+) \| (\S+) \| (\S+) \| (.+?) \| (.+) \|$", line):
            keys = ("name", "type", "unit", "default", "range", "help")
            rows.append(dict(zip(keys, match.groups(), strict=True)))
    return rows


def _parse_size(text: str) -> int:
    match = re.fullmatch(r"([0-9.]+)(GiB|MiB|KiB|B)?", text)
    if match is None:
        raise ValueError(f'"{text}" is not a size')
    return int(float(match[1]) * {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}.get(match[2] or "B", 1))


def _parse_options(text: str) -> dict[str, Any]:
    rows = {row["name"]: row for row in _option_rows()}
    values: dict[str, Any] = {"cpu_bytes_to_use": 8 << 30, "store_mode": "eager", "boundaries": "fine"}
    for name, value in json.loads(text).items():
        if rows[name]["type"] == "size":
            value = _parse_size(str(value))
        if rows[name]["type"] == "name" and value not in rows[name]["range"].split(", "):
            raise ValueError(f'{name} is "{value}"; allowed: {rows[name]["range"]}')
        values[name] = value
    return values


if importlib.util.find_spec("hostkv") is None or importlib.util.find_spec("hostkv._core") is None:
    double = types.ModuleType("hostkv._core")
    double.option_table = _option_rows  # type: ignore[attr-defined]
    double.parse_options = _parse_options  # type: ignore[attr-defined]
    double.parse_size_bytes = _parse_size  # type: ignore[attr-defined]
    import hostkv

    hostkv._core = double  # type: ignore[attr-defined]
    sys.modules["hostkv._core"] = double


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.taken: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.taken.append(record)


@pytest.fixture
def log():
    """The records that HostKV logs, taken where they are made: whether vLLM's logger propagates does not matter."""
    logger, records = logging.getLogger("vllm.hostkv"), _Records()
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(records)
    yield records.taken
    logger.removeHandler(records)
    logger.setLevel(level)
