"""vLLM's own scheduler parts without a model: real configuration, pool, manager and connector halves, a made-up worker.

Used by scripts/bench_vllm and by tests/vllm/scheduler. Importing it sets what a machine without a GPU needs; import it
before vllm.
"""

from __future__ import annotations

import os

for _name, _value in {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}.items():
    os.environ.setdefault(_name, _value)
