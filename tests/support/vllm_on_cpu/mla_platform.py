"""Prefix caching and chunked prefill stay on for MLA: the CPU platform switches both off where there is no AMX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_on_cpu.start_patches import Replacements

_KEPT = (
    ("cache_config", "enable_prefix_caching"),
    ("scheduler_config", "enable_chunked_prefill"),
    ("scheduler_config", "max_num_batched_tokens"),
)


def patch(replacements: Replacements) -> None:
    from vllm.platforms.cpu import CpuPlatform

    force = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        asked = [getattr(getattr(vllm_config, part), name) for part, name in _KEPT]
        force(cls, vllm_config)
        if vllm_config.model_config is not None and vllm_config.model_config.use_mla:
            for (part, name), value in zip(_KEPT, asked, strict=True):
                setattr(getattr(vllm_config, part), name, value)

    replacements.set(CpuPlatform, "check_and_update_config", classmethod(check_and_update_config))
