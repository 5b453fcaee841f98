"""The process environment that a tiny engine on a CPU needs. Import before vllm; importing it sets the variables."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULTS = {
    "VLLM_TARGET_DEVICE": "cpu",
    # Engine core, scheduler and worker share the process: both halves of the connector are reachable.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # More threads are many times slower on tiny shapes, and batches are then no longer equal to the last bit.
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # A few helpers of the sampler would be compiled in every process, which takes longer than all their work here.
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
TESTS_DIR = Path(__file__).resolve().parent.parent


def prepare() -> None:
    """Sets what is not set, and lets spawned processes import the support package."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(TESTS_DIR) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS_DIR), *filter(None, paths)])


prepare()
