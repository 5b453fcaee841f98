"""Pipeline parallelism on a CPU: an eager CPU worker of a later stage never allocates the tensors that it receives
into, since it skips the warm-up that would (AssertionError). They are made with the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_on_cpu.start_patches import Replacements


def patch(replacements: Replacements) -> None:
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    gather = CPUModelRunner.sync_and_gather_intermediate_tensors

    def allocate_and_gather(self: Any, *arguments: Any, **more: Any) -> Any:
        if self.intermediate_tensors is None:
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )
        return gather(self, *arguments, **more)

    replacements.set(CPUModelRunner, gather.__name__, allocate_and_gather)
