"""Stands in for a compiler. Its hash goes into the cache keys of torch's inductor; anything else is an error."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from triton.backends.compiler import BaseBackend, GPUTarget


class InterpreterBackend(BaseBackend):
    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == "cpu"

    def hash(self) -> str:
        return "interpreter"

    def parse_options(self, options: dict[str, Any]) -> object:
        raise NotImplementedError("nothing is compiled")

    def add_stages(self, stages: dict[str, Any], options: object) -> None:
        raise NotImplementedError("nothing is compiled")

    def load_dialects(self, context: Any) -> None:
        raise NotImplementedError("nothing is compiled")

    def get_module_map(self) -> dict[str, ModuleType]:
        return {}
