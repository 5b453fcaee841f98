"""Who may see whose KV: adapters, salts that look like adapters, prompts of embeddings, limits of one request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Engines
from support import cases
from support.engine import Engine, EngineConfig, sampling
from support.lora import RANK, write_adapter
from support.rest import assert_at_rest
from support.theory import Geometry
from vllm_on_cpu import models

ADAPTERS = ("x", "y")


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from vllm.lora.request import LoRARequest

    root = tmp_path_factory.mktemp("adapters")
    return {
        name: LoRARequest(name, number, str(write_adapter(root / name, hidden=64, layers=3, out=128, seed=number)))
        for number, name in enumerate(ADAPTERS, start=1)
    }


@pytest.fixture
def engine(engines: Engines, checkpoints: Path, version: str) -> Engine:
    folder = cases.checkpoint(models.LLAMA, checkpoints, version)
    return engines.get(EngineConfig.of(folder, {}, enable_lora=True, max_loras=2, max_lora_rank=RANK))


def test_adapters_share_nothing_with_each_other_or_the_base(engine: Engine, adapters: dict[str, Any]) -> None:
    boundary = Geometry.of(engine).replay_boundary(len(cases.PROMPT))
    base, _ = engine.ask_one(cases.PROMPT)
    answers = {}
    for name in ADAPTERS:
        engine.evict_device()
        answers[name], loads = engine.ask_one(cases.PROMPT, lora_request=adapters[name])
        assert loads == [], f"adapter {name} was served foreign KV"
    assert len({base.logprobs, *(answer.logprobs for answer in answers.values())}) == 3, "the adapters change nothing"
    for name, expected in ((None, base), *answers.items()):
        engine.evict_device()
        answer, loads = engine.ask_one(cases.PROMPT, lora_request=adapters[name] if name else None)
        assert loads == [(0, boundary)]
        assert (answer.tokens, answer.logprobs) == (expected.tokens, expected.logprobs)
    assert_at_rest(engine)


def test_a_salt_named_like_an_adapter_is_not_the_adapter(
    engine: Engine, adapters: dict[str, Any], version: str
) -> None:
    engine.ask(cases.PROMPT, lora_request=adapters["x"])
    engine.evict_device()
    _, loads = engine.ask_one(cases.PROMPT, salt="x")
    assert loads == []
    assert_at_rest(engine)


def test_a_request_stores_no_more_than_it_was_allowed(engine: Engine) -> None:
    """kv_transfer_params.max_offload_tokens, as vLLM's own offloading connector knows it."""
    unit = Geometry.of(engine).unit
    limited = sampling(extra_args={"kv_transfer_params": {"max_offload_tokens": 4 * unit}})
    engine.ask(cases.PROMPT, params=limited)
    engine.evict_device()
    _, loads = engine.ask_one(cases.PROMPT)
    assert loads == [(0, 4 * unit)]
    assert_at_rest(engine)


def test_prompts_of_embeddings_are_told_apart(engines: Engines, checkpoints: Path, version: str) -> None:
    """No token ids to hash: another prompt of the same length finds nothing, the same one at most itself."""
    import torch

    folder = cases.checkpoint(models.LLAMA, checkpoints, version)
    engine = engines.get(EngineConfig.of(folder, {}, enable_prompt_embeds=True))
    source = torch.Generator().manual_seed(5)
    one, other = (torch.randn(100, 64, generator=source) * 0.3 for _ in range(2))
    answers = []
    for embeds in (one, other, one):
        engine.evict_device()
        before = len(engine.loads)
        (output,) = engine.llm.generate([{"prompt_embeds": embeds}], sampling(), use_tqdm=False)
        loads = [(load.device_tokens, load.host_tokens) for load in engine.loads[before:]]
        answers.append((output.outputs[0].token_ids, loads))
    assert answers[0][0] == answers[2][0] != answers[1][0]
    assert answers[1][1] == [], "served foreign KV"
    assert answers[2][1] in ([], [(0, Geometry.of(engine).replay_boundary(100))])
    assert_at_rest(engine)
