"""What a request answered, and how two answers differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BATCH_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Answer:
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached_tokens: int
    finish_reason: str | None
    prompt_logprobs: tuple[float, ...] = ()

    @staticmethod
    def of(output: Any) -> Answer:
        """Of a vLLM RequestOutput."""
        first = output.outputs[0]
        chosen = [step[token].logprob for step, token in zip(first.logprobs or [], first.token_ids, strict=False)]
        prompt = [
            step[token].logprob
            for step, token in zip(output.prompt_logprobs or [], output.prompt_token_ids, strict=False)
            if step is not None
        ]
        return Answer(
            tuple(first.token_ids), tuple(chosen), output.num_cached_tokens or 0, first.finish_reason, tuple(prompt)
        )


@dataclass(frozen=True)
class Difference:
    """Logprobs behind the first token that differs belong to different texts and are not compared."""

    tokens_equal: bool
    logprob: float

    @property
    def exact(self) -> bool:
        return self.tokens_equal and self.logprob == 0.0

    def within(self, tolerance: float) -> bool:
        return self.tokens_equal and self.logprob <= tolerance


def difference(expected: Answer, got: Answer) -> Difference:
    pairs = list(zip(expected.tokens, got.tokens, strict=False))
    unequal = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs) - 1)
    far = [abs(a - b) for a, b in list(zip(expected.logprobs, got.logprobs, strict=False))[: unequal + 1]]
    far += [abs(a - b) for a, b in zip(expected.prompt_logprobs, got.prompt_logprobs, strict=False)]
    return Difference(expected.tokens == got.tokens, max(far, default=0.0))


def assert_same(expected: Answer, got: Answer, tolerance: float = 0.0) -> None:
    found = difference(expected, got)
    assert found.within(tolerance), f"{found}: expected {expected}, got {got}"


def assert_right(engine: Any, expected: Answer, got: Answer, tolerance: float = 0.0) -> None:
    """A recurrence in bfloat16 depends on where chunks end, which a hit moves, and on the batch: then the engine
    without a connector differs from itself as well, and only the length is checked."""
    specs = [group.kv_cache_spec for group in engine.scheduler.kv_cache_config.kv_cache_groups]
    recurrent = any(hasattr(spec, "mamba_type") for spec in specs)
    if recurrent and "float32" not in str(engine.core.vllm_config.model_config.dtype):
        assert len(got.tokens) == len(expected.tokens)
    else:
        assert_same(expected, got, tolerance)
