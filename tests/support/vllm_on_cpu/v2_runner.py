"""vLLM's V2 model runner without a GPU: its Triton kernels are run by Triton's own interpreter, as they are written.

vLLM's CPU build has a V2 runner and asks for a Triton backend called "cpu". An empty one is put on the path; with
TRITON_INTERPRET=1 every kernel is a Python function on CPU memory. Environment variables and a folder on the path are
all, so spawned workers and other subprocesses have the same. Both are read when vllm is imported: call prepare()
before. A process is V2 or V1, never both: where vLLM sees a Triton it leaves out kernels that the V1 runner needs.

What it cannot show: a kernel has always ended before the call returns, so no copy races one; program instances run one
after the other; a pointer out of range damages memory without a fault.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vllm_on_cpu import environment

VARIABLES = {"TRITON_INTERPRET": "1", "TRITON_DEFAULT_BACKEND": "cpu", "VLLM_USE_V2_MODEL_RUNNER": "1"}
BACKEND_FOLDER = Path(__file__).resolve().parent / "triton_path"


def prepare() -> None:
    """For this process and those it starts. RuntimeError when it comes too late."""
    late = [name for name in ("vllm", "triton") if name in sys.modules]
    if late and not prepared():
        raise RuntimeError(f"{', '.join(late)} is imported already: what makes it run the V2 runner is read then")
    os.environ.update(VARIABLES)
    environment.prepare(BACKEND_FOLDER)


def prepared() -> bool:
    return all(os.environ.get(name) == value for name, value in VARIABLES.items()) and str(BACKEND_FOLDER) in sys.path


def kernels_are_interpreted() -> bool:
    """Whether the runner's kernels are the real ones, run by the interpreter, and no placeholders. Imports vllm."""
    from vllm.v1.worker.gpu import block_table

    return type(block_table._gather_block_tables_kernel).__name__ == "InterpretedFunction"
