"""In which order the engine calls its connector and does what the connector's bytes depend on, noted step by step.

A step begins with the scheduler's `schedule`. With two steps in flight its results are taken behind the next one's
`schedule`; what the worker does of a step still stands inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

SCHEDULER_HOOKS = ("get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta",
                   "update_connector_output", "request_finished_all_groups")  # fmt: skip
RESULT_HOOKS = ("get_transfer_results", "get_block_ids_with_load_errors", "get_kv_connector_stats",
                "get_kv_connector_kv_cache_events", "build_connector_worker_meta",
                "clear_connector_metadata")  # fmt: skip
LAYER_HOOKS = ("wait_for_layer_load", "save_kv_layer")
WORKER_HOOKS = ("handle_preemptions", "bind_connector_metadata", "start_load_kv", *LAYER_HOOKS, "finish_forward",
                "wait_for_save", *RESULT_HOOKS)  # fmt: skip
# What the runners do beside: zero fresh blocks, copy recurrent states, call the model, sample, draft.
RUNNER_EVENTS = ("zero", "pre-copy", "model", "sample", "propose")


@dataclass
class Call:
    name: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    result: Any = None


@dataclass
class Step:
    """`calls` from this schedule to the next."""

    output: Any = None
    calls: list[Call] = field(default_factory=list)

    @property
    def has_forward(self) -> bool:
        return bool(self.output.num_scheduled_tokens)

    def of(self, name: str) -> list[Call]:
        return [call for call in self.calls if call.name == name]

    def order(self, *names: str) -> list[str]:
        """The names of these calls; calls of the layers' hooks in a row count once."""
        found: list[str] = []
        for call in self.calls:
            name = "layers" if call.name in LAYER_HOOKS else call.name
            if call.name in names and not (name == "layers" and found[-1:] == ["layers"]):
                found.append(name)
        return found

    def worker_order(self) -> list[str]:
        return self.order(*WORKER_HOOKS, *RUNNER_EVENTS)


class Recorder:
    """`steps` of an engine with both halves of its connector in this process; see recorded()."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.steps: list[Step] = []
        self.runner = engine.core.model_executor.driver_worker.worker.model_runner

    def _wrap(self, owner: Any, name: str, event: str, stack: ExitStack) -> None:
        """Of an object's own attribute or a module's; put back when the stack ends."""
        own = vars(owner).get(name)
        plain: Callable[..., Any] = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            call = Call(event, arguments, named)
            if event == "schedule":
                self.steps.append(Step())
            if self.steps:
                self.steps[-1].calls.append(call)
            call.result = plain(*arguments, **named)
            if event == "schedule":
                self.steps[-1].output = call.result
            return call.result

        setattr(owner, name, noted)
        stack.callback(*((delattr, owner, name) if own is None else (setattr, owner, name, own)))

    def install(self, stack: ExitStack) -> None:
        scheduler = self.engine.scheduler
        for name in ("schedule", "update_from_output"):
            self._wrap(scheduler, name, name, stack)
        for name in SCHEDULER_HOOKS:
            self._wrap(self.engine.connector, name, name, stack)
        for name in WORKER_HOOKS:
            self._wrap(self.engine.worker_connector, name, name, stack)
        hook = self.runner.model.register_forward_pre_hook(lambda *_: self._note("model"))
        stack.callback(hook.remove)
        (self._install_v2 if hasattr(self.runner, "req_states") else self._install_v1)(stack)

    def _note(self, event: str) -> None:
        if self.steps:
            self.steps[-1].calls.append(Call(event, (), {}))

    def _install_v1(self, stack: ExitStack) -> None:
        from vllm.v1.worker import mamba_utils

        self._wrap(self.runner, "_zero_block_ids", "zero", stack)
        self._wrap(self.runner, "_sample", "sample", stack)
        self._wrap(mamba_utils, "preprocess_mamba", "pre-copy", stack)

    def _install_v2(self, stack: ExitStack) -> None:
        from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState

        self._wrap(self.runner, "sample", "sample", stack)
        if self.runner.kv_block_zeroer is not None:
            self._wrap(self.runner.kv_block_zeroer, "zero_block_ids", "zero", stack)
        if isinstance(self.runner.model_state, MambaHybridModelState):
            self._wrap(self.runner.model_state, "preprocess_state", "pre-copy", stack)
        if self.runner.speculator is not None:
            self._wrap(self.runner.speculator, "propose", "propose", stack)


@contextmanager
def recorded(engine: Any) -> Iterator[list[Step]]:
    with ExitStack() as stack:
        recorder = Recorder(engine)
        recorder.install(stack)
        yield recorder.steps
