"""Patches by name: applied in this process and, through the environment, in every worker that it starts.

    start_patches.apply(("reference_attention", "fork"))
    LLM(..., worker_extension_cls="vllm_on_cpu.start_worker.Extension")

Forked workers inherit the patched modules, spawned ones import the extension, which applies the same names there. The
installed files stay as they are, and restore() gives back what was there before.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from vllm_on_cpu import cpu_patches

VARIABLE = "VLLM_ON_CPU_PATCHES"
# Name: the module whose patch(replacements) does it. Beside them: the names of cpu_patches.
MODULES = {
    "reference_attention": "attention_backend",
    "mla": "mla_platform",
    "longest_copy": "dcp_copy",
    "pipeline": "start_pipeline",
    "fork": "start_fork",
}
CPU_PATCHES = ("no_export", "export")


class Replacements:
    """What was replaced, so that it can be given back in the opposite order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute of a module or a class; one that a class only inherits is added to it."""
        if name in vars(owner):
            stored = vars(owner)[name]  # not getattr: a class method stays one
            self._undo.append(lambda: setattr(owner, name, stored))
        else:
            self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, value)

    def on_restore(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def restore(self) -> None:
        while self._undo:
            self._undo.pop()()


_applied: tuple[str, ...] = ()
_replacements = Replacements()


def apply(names: Sequence[str]) -> None:
    """Replaces whatever was applied before. KeyError for a name that nobody knows."""
    global _applied
    if tuple(names) == _applied:
        return
    restore()
    os.environ[VARIABLE] = ",".join(names)
    for name in names:
        if name in CPU_PATCHES:
            cpu_patches.apply(name)
            _replacements.on_restore(cpu_patches.restore)
        else:
            importlib.import_module(f"{__package__}.{MODULES[name]}").patch(_replacements)
    _applied = tuple(names)


def restore() -> None:
    global _applied
    _replacements.restore()
    _applied = ()
    os.environ.pop(VARIABLE, None)


def apply_inherited() -> None:
    """In a worker: what its parent process applied."""
    apply(tuple(filter(None, os.environ.get(VARIABLE, "").split(","))))
