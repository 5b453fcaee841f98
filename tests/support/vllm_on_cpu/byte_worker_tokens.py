"""What the "model" of the byte worker computes: each token follows from its prefix, and every prefix has a number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_MULTIPLIER = 0x9FB21C651E98DF25
_MASK = (1 << 64) - 1
FIRST_OUTPUT, NUM_OUTPUTS = 100, 400
NO_TOKEN = 7  # stands in where a draft was scheduled that nobody proposed


def mix(value: int) -> int:
    """A number that looks drawn, the same for the same value."""
    value = (value ^ (value >> 32)) * _MULTIPLIER & _MASK
    value = (value ^ (value >> 29)) * 0xD6E8FEB86659FD93 & _MASK
    return value ^ (value >> 32)


def extend(number: int, token: int) -> int:
    """The number of a prefix with one token more."""
    value = (number ^ token) * _MULTIPLIER & _MASK
    return value ^ (value >> 32)


def next_token(number: int) -> int:
    return FIRST_OUTPUT + mix(number) % NUM_OUTPUTS


def salts(count: int, *names: int) -> np.ndarray:
    """`count` numbers for a place (group, rank, ...): its bytes differ from those of every other place."""
    value = 0x51ED270B
    for name in names:
        value = mix(value ^ name + 1)
    found = []
    for _ in range(count):
        value = mix(value + 1)
        found.append(value)
    return np.array(found, np.uint64)


class Truth:
    """A prompt and its continuation, as far as it was asked for. numbers[i] is that of the first i tokens."""

    START = mix(_MULTIPLIER)

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self._numbers: list[int] = [self.START]
        self._array = np.array(self._numbers, np.uint64)
        for token in prompt:
            self._append(token)

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        self._numbers.append(extend(self._numbers[-1], token))

    def until(self, count: int) -> None:
        """The first `count` tokens are there afterwards."""
        while len(self.tokens) < count:
            self._append(next_token(self._numbers[-1]))

    def token(self, index: int) -> int:
        self.until(index + 1)
        return self.tokens[index]

    def numbers(self, end: int) -> np.ndarray:
        """Of 0 to `end` tokens, by length."""
        self.until(end)
        if len(self._array) <= end:
            self._array = np.array(self._numbers, np.uint64)
        return self._array[: end + 1]

    def numbers_with(self, end: int, drafts: Sequence[int]) -> np.ndarray:
        """As numbers(end), and on with drafts in place of what follows."""
        known = self.numbers(end)
        if not drafts:
            return known
        value = self._numbers[end]
        guessed = []
        for token in drafts:
            value = extend(value, token)
            guessed.append(value)
        return np.concatenate([known, np.array(guessed, np.uint64)])
