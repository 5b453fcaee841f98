"""A request of vLLM and what the core knows of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hostkv import _core


@dataclass(slots=True, eq=False)
class HandedHashes:
    """The prefix hashes that the core has been given, the first `count` of the engine's list. Hashes are chained, so
    the last one tells whether the others are still the same. One thread, the scheduler's. Cost: what is new."""

    count: int = 0
    last: Any = None

    def lack(self, hashes: Any, num_wanted: int) -> bool:
        """Whether hand_over() has anything to do."""
        count = self.count
        return count < num_wanted or len(hashes) < count or (count > 0 and hashes[count - 1] is not self.last)

    def hand_over(self, core: _core.Scheduler, handle: int, hashes: Any, num_wanted: int) -> bool:
        """Until the core has `num_wanted`, or all. True: there are more. A session may have gone back: then from the
        start."""
        if self.count > 0 and (len(hashes) < self.count or hashes[self.count - 1] is not self.last):
            self._check(core, handle, hashes)
        wanted = min(num_wanted, len(hashes))
        if self.count < wanted:
            core.append_block_hashes(handle, hashes, self.count, wanted)
            self.count, self.last = wanted, hashes[wanted - 1]
        return self.count < len(hashes)

    def _check(self, core: _core.Scheduler, handle: int, hashes: Any) -> None:
        if len(hashes) >= self.count and hashes[self.count - 1] == self.last:
            self.last = hashes[self.count - 1]
            return
        core.truncate_block_hashes(handle, 0)
        self.count, self.last = 0, None


@dataclass(slots=True, eq=False)
class Tracked:
    """A request of vLLM and what the core knows of it."""

    handle: int
    request: Any
    hashes: HandedHashes = field(default_factory=HandedHashes)
    local_tokens: int = 0  # of the last lookup
    owns_blocks: bool = False
    has_run: bool = False  # on them: before, they may be the targets of a load that is not ours
    admission: int = 0  # the step in which the engine gave it its blocks
    tails: list[tuple[int, int, int, int]] | None = None  # hand-offs that no step will carry
