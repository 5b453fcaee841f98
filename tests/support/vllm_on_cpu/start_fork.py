"""Workers are forked in place of spawned: an engine of two ranks is up in 3 to 13 s in place of 30 to 90, because
nothing is imported again. vLLM's CPU platform insists on spawn.

Only for processes that hold no engine of their own threads: a fork takes the calling thread alone.
"""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_on_cpu.start_patches import Replacements


def patch(replacements: Replacements) -> None:
    from vllm.v1.executor import multiproc_executor

    replacements.set(multiproc_executor, "get_mp_context", lambda: multiprocessing.get_context("fork"))
