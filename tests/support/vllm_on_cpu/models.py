"""Tiny random checkpoints for vLLM's CPU platform whose weights have real scale, so that the KV cache carries the
output. vLLM's own load_format="dummy" draws every tensor from +-1e-3 and hides a corrupted cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

VOCABULARY = 512
SEED = 7
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
NARROW = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
# Big attention pages keep the blocks of hybrid models short.
WIDE = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 128}


@dataclass(frozen=True)
class Model:
    """One architecture. `unit_offset`: block norms are stored as w and applied as 1 + w."""

    name: str
    label: str  # the name that reports use
    config_class: str
    architecture: str
    dtype: str
    fields: dict[str, Any] = field(hash=False)
    unit_offset: bool = False
    tied: bool = False  # embeddings serve as output matrix: vLLM has no parameter of its own for it


LLAMA = Model(
    "llama", "llama", "LlamaConfig", "LlamaForCausalLM", "float32",
    dict(NARROW, num_hidden_layers=3, intermediate_size=128),
)  # fmt: skip
# Three sliding layers to a full one: several sliding groups beside the full group.
GEMMA = Model(
    "gemma3", "gemma", "Gemma3TextConfig", "Gemma3ForCausalLM", "float32",
    dict(NARROW, num_hidden_layers=4, intermediate_size=128, sliding_window=48, query_pre_attn_scalar=32,
         layer_types=["sliding_attention"] * 3 + ["full_attention"]),
    unit_offset=True, tied=True,
)  # fmt: skip
# Mamba2 and attention: exact for any chunking in float32.
GRANITE = Model(
    "granite", "granite-hybrid", "GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", "float32",
    {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 4, "intermediate_size": 64,
         "shared_intermediate_size": 128, "num_local_experts": 0, "num_experts_per_tok": 0,
         "layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16,
         "mamba_n_groups": 1, "mamba_expand": 2, "mamba_chunk_size": 16, "position_embedding_type": "rope",
         "attention_multiplier": 0.17},
)  # fmt: skip
# Gated delta net and attention: exact where chunks end on multiples of 64.
GDN = Model(
    "qwen3next", "gdn-hybrid", "Qwen3NextConfig", "Qwen3NextForCausalLM", "bfloat16",
    dict(WIDE, num_hidden_layers=4, intermediate_size=128, linear_num_key_heads=2, linear_num_value_heads=2,
         linear_key_head_dim=64, linear_value_head_dim=64, layer_types=["linear_attention", "full_attention"] * 2,
         moe_intermediate_size=64, shared_expert_intermediate_size=64, num_experts=4, num_experts_per_tok=2),
    unit_offset=True,
)  # fmt: skip
MODELS = {model.name: model for model in (LLAMA, GEMMA, GRANITE, GDN)}


def _with_one_kv_head(model: Model) -> Model:
    return replace(model, name=f"{model.name}1", fields=dict(model.fields, num_key_value_heads=1))


# Ranks of a decode context share a KV head: as many as the query heads of one. Two ranks want one KV head.
LLAMA1 = _with_one_kv_head(LLAMA)
GRANITE1 = _with_one_kv_head(GRANITE)
GDN1 = _with_one_kv_head(GDN)
# Multi-head latent attention, one latent row a token. vLLM's own CPU kernel wants the sizes of the large models.
MLA = Model(
    "mla", "mla", "DeepseekV3Config", "DeepseekV3ForCausalLM", "float32",
    {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 3, "intermediate_size": 128,
         "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
         "n_shared_experts": 1, "first_k_dense_replace": 3, "kv_lora_rank": 48, "q_lora_rank": 64,
         "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32},
)  # fmt: skip
ONE_KV_HEAD = {model.name: model for model in (LLAMA1, GRANITE1, GDN1, MLA)}


def _fill(model: Model, name: str, parameter: Any, generator: Any) -> None:
    """Gives one parameter a scale at which attention and state paths carry the output."""
    import torch

    def normal(std: float) -> None:
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)

    leaf = name.rsplit(".", 2)[-2:]
    if name.endswith("A_log"):
        parameter.uniform_(0.0, 1.5, generator=generator)
    elif name.endswith("dt_bias"):
        parameter.uniform_(-3.0, -1.0, generator=generator)  # slow decay: the state remembers far back
    elif name.endswith(".D"):
        parameter.fill_(0.3)
    elif "norm" in leaf[0] and parameter.ndim == 1:
        # The gated norms inside state mixers are plain also where the block norms are 1 + w.
        plain = not model.unit_offset or "linear_attn.norm" in name
        parameter.fill_(1.0 if plain else 0.0)
    elif parameter.ndim < 2:
        normal(0.02)
    elif "embed_tokens" in name or "lm_head" in name:
        # Gemma multiplies tied embeddings by sqrt(hidden): a smaller scale keeps the input from echoing to the output.
        normal(0.1 if model.tied else 0.3)
    else:
        normal(0.3 if "conv" in name else 0.15)


def _build(model: Model, folder: Path, dtype: str) -> None:
    import torch
    import transformers

    config = getattr(transformers, model.config_class)(**{**COMMON, **model.fields, "tie_word_embeddings": model.tied})
    config.architectures = [model.architecture]
    network = getattr(transformers, model.architecture)._from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            _fill(model, name, parameter, generator)
    network.to(getattr(torch, dtype)).save_pretrained(folder)
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    raw.update(architectures=[model.architecture], dtype=dtype, torch_dtype=dtype)
    path.write_text(json.dumps(raw, indent=1))


def checkpoint(model: Model, root: Path, dtype: str | None = None) -> Path:
    """The folder of the checkpoint, written once per content of this file. Safe for processes that race."""
    dtype = dtype or model.dtype
    stamp = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = root / stamp / f"{model.name}-{dtype}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{model.name}-"))
    try:
        _build(model, fresh, dtype)
        os.rename(fresh, folder)
    except OSError:
        if not folder.is_dir():  # not the other process's copy: a real error
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder
