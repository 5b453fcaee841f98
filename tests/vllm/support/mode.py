"""How this process runs its engines: on which of vLLM's model runners, and with how many steps in flight.

The runner is one for a process and its subprocesses, the reference among them. Running ahead is a matter of an engine:
`run_ahead` is what engines with a connector do unless a test says otherwise; the reference never does.
"""

from __future__ import annotations

from vllm_on_cpu import v2_runner

run_ahead = False


def runner() -> str:
    return "v2" if v2_runner.prepared() else "v1"
