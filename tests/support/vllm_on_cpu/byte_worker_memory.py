"""The KV cache memory of all ranks: one word a row, as many words a block as the widest group needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vllm_on_cpu.byte_worker_groups import STATE_WORDS, Group, Layout, Places
from vllm_on_cpu.byte_worker_tokens import salts

SPOILT = np.uint64(0xDEAD_BEEF_DEAD_BEEF)


class WrongByte(AssertionError):
    """Something that a request reads is not what belongs there."""


class Memory:
    """words[rank, block, word]. Block 0 is the null block: nothing is ever right in it."""

    def __init__(self, groups: Sequence[Group], layout: Layout, num_blocks: int) -> None:
        self.layout = layout
        width = max(group.num_words for group in groups)
        self.words = np.full((layout.num_ranks, num_blocks, width), SPOILT)
        ranks = range(layout.num_ranks)
        self._row_salts, self._draft_salts = (
            np.array([[salts(1, g.index, rank, *layer)[0] for rank in ranks] for g in groups]) for layer in ((), (2,))
        )
        num_salts = STATE_WORDS + 1
        self._state_salts = np.array([[salts(num_salts, g.index, rank, 1) for rank in ranks] for g in groups])
        self._ranks = np.arange(layout.num_ranks)

    def zero(self, blocks: Sequence[int]) -> None:
        self.words[:, list(blocks)] = 0

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(from, to), all at once: no copy sees what another one wrote."""
        sources, targets = ([int(pair[i]) for pair in pairs] for i in (0, 1))
        self.words[:, targets] = self.words[:, sources]

    # ------------------------------------------------------------------------------------------------ rows

    def _index(self, table: np.ndarray, at: Places, replica: int) -> tuple[np.ndarray, ...]:
        """(ranks, blocks, words) that hold the rows, of one copy of them."""
        blocks = table[at.columns]
        if at.owners is None:
            return np.full_like(blocks, replica), blocks, at.words
        return at.owners + replica * self.layout.dcp, blocks, at.words

    def _num_replicas(self, at: Places) -> int:
        return self.layout.num_ranks // (1 if at.owners is None else self.layout.dcp)

    def write_rows(
        self, group: Group, table: Sequence[int], at: Places, numbers: np.ndarray, draft: bool = False
    ) -> None:
        """numbers: of every prefix by length; the row of a token is that of the prefix which it ends, in a draft
        model's layer that of one token more."""
        blocks = np.asarray(table)
        values = numbers[at.tokens + 1 + draft]
        for replica in range(self._num_replicas(at)):
            index = self._index(blocks, at, replica)
            self.words[index] = values ^ self._salts_of(group, draft)[index[0]]

    def spoil_rows(self, table: Sequence[int], at: Places) -> None:
        """What a draft model writes for tokens that were not accepted: nobody may read it."""
        for replica in range(self._num_replicas(at)):
            self.words[self._index(np.asarray(table), at, replica)] = SPOILT

    def wrong_row(
        self, group: Group, table: Sequence[int], at: Places, numbers: np.ndarray, draft: bool = False
    ) -> tuple[int, int] | None:
        """(rank, token) of a row that is not right, None where all are."""
        blocks = np.asarray(table)
        expected = numbers[at.tokens + 1 + draft]
        for replica in range(self._num_replicas(at)):
            index = self._index(blocks, at, replica)
            differ = self.words[index] != expected ^ self._salts_of(group, draft)[index[0]]
            differ |= index[1] == 0
            if differ.any():
                first = int(np.argmax(differ))
                return int(index[0][first]), int(at.tokens[first])
        return None

    def _salts_of(self, group: Group, draft: bool) -> np.ndarray:
        return (self._draft_salts if draft else self._row_salts)[group.index]

    # ------------------------------------------------------------------------------------------------ states

    def write_state(self, group: Group, block: int, number: int) -> None:
        """The recurrent part of a state block; the window part is written by write_window."""
        self.words[:, block, :STATE_WORDS] = self._state_salts[group.index][:, :STATE_WORDS] ^ np.uint64(number)

    def write_window(self, group: Group, block: int, numbers: Sequence[int]) -> None:
        """What a convolution keeps: one word for each place that the next step may go on from."""
        salt = self._state_salts[group.index][:, STATE_WORDS:]
        end = STATE_WORDS + 1 + group.num_speculative
        self.words[:, block, STATE_WORDS:end] = SPOILT
        self.words[:, block, STATE_WORDS : STATE_WORDS + len(numbers)] = salt ^ np.array(numbers, np.uint64)

    def copy_state(self, group: Group, table: Sequence[int], source: int, target: int, bias: int) -> None:
        """Columns. The recurrent part is that of the column `bias` further on, the window moves by `bias` places."""
        end = STATE_WORDS + 1 + group.num_speculative
        window = self.words[:, table[source], STATE_WORDS + bias : end].copy()
        self.words[:, table[target], :STATE_WORDS] = self.words[:, table[source + bias], :STATE_WORDS]
        self.words[:, table[target], STATE_WORDS:end] = SPOILT
        self.words[:, table[target], STATE_WORDS : STATE_WORDS + window.shape[1]] = window

    def wrong_state(self, group: Group, table: Sequence[int], column: int, place: int, number: int) -> int | None:
        """The rank on which the state at `place` behind `column` is not that of this prefix."""
        salt, expected = self._state_salts[group.index], np.uint64(number)
        state = self.words[:, table[column + place], :STATE_WORDS] != salt[:, :STATE_WORDS] ^ expected
        window = self.words[:, table[column], STATE_WORDS + place] != salt[:, STATE_WORDS] ^ expected
        wrong = state.any(axis=1) | window | (table[column] == 0) | (table[column + place] == 0)
        return int(np.argmax(wrong)) if wrong.any() else None
