"""Fixtures of the Python tests that need no engine. The compiled core must be built (hostkv._core)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.taken: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.taken.append(record)


@pytest.fixture
def log() -> Iterator[list[logging.LogRecord]]:
    """The records that HostKV logs, taken where they are made: whether vLLM's logger propagates does not matter."""
    logger, records = logging.getLogger("vllm.hostkv"), _Records()
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(records)
    yield records.taken
    logger.removeHandler(records)
    logger.setLevel(level)
