"""What a run of the tests reports: replay runs and checks, as one JSON document for scripts/test_vllm."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class ReplayRun:
    """Keys as in the report of scripts/test_vllm."""

    model: str
    vllm_version: str
    tokens_equal: bool
    logprobs_equal: bool
    replay_host_hit_tokens: int
    expected_host_hit_tokens: int
    leaked_pins: int
    flipped_byte_changes_output: bool | None = None
    variant: str = "default"
    runner: str = "v1"
    run_ahead: bool = False
    tp: int = 1
    dcp: int = 1
    interleave_tokens: int = 1
    checksums: bool = False


@dataclass
class Report:
    results: list[ReplayRun] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: {"passed": 0, "failed": 0, "skipped": 0})

    def write(self, path: Path) -> None:
        document = {"results": [asdict(run) for run in self.results], "checks": self.checks, "counts": self.counts}
        path.write_text(json.dumps(document, indent=1))
