"""A tiny random LoRA adapter for a checkpoint of models.py."""

from __future__ import annotations

import json
from pathlib import Path

RANK = 8


def write_adapter(folder: Path, hidden: int, layers: int, out: int, seed: int) -> Path:
    """Query projections alone; strong enough to change the answer."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{prefix}.lora_A.weight"] = torch.randn(RANK, hidden, generator=generator) * 0.3
        tensors[f"{prefix}.lora_B.weight"] = torch.randn(out, RANK, generator=generator) * 0.3
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["q_proj"], "bias": "none",
                  "task_type": "CAUSAL_LM", "base_model_name_or_path": ""}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
