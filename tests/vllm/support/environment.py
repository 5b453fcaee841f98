"""The process environment of these tests. Import before vllm; importing it sets it."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS_DIR = Path(__file__).resolve().parent.parent
SHARED_SUPPORT = TESTS_DIR.parent / "support"
if str(SHARED_SUPPORT) not in sys.path:
    sys.path.insert(0, str(SHARED_SUPPORT))

from vllm_on_cpu import environment  # noqa: E402

environment.prepare(TESTS_DIR)
