"""The process environment that a tiny engine on a CPU needs. Call prepare() before vllm is imported."""

from __future__ import annotations

import os
import sys
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
PACKAGE_PARENT = Path(__file__).resolve().parent.parent


def prepare(*folders: Path) -> None:
    """Sets what is not set, and lets this process and those it spawns import this package and what is in `folders`."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    missing = [str(folder) for folder in (*folders, PACKAGE_PARENT) if str(folder) not in paths]
    os.environ["PYTHONPATH"] = os.pathsep.join(missing + paths)
    sys.path[:0] = [path for path in missing if path not in sys.path]
