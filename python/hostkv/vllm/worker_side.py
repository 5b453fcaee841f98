"""The worker half of one rank: binds each step's message to the core and reports what has ended.

One thread, the rank's step thread; the copies run on the core's threads. Whatever order the engine's hooks come in, a
step's loads are started once, its stores once and behind the forward, and each load is reported exactly once.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from vllm.logger import init_logger

from hostkv import _core
from hostkv.vllm import compat, geometry, layout, options, start_report
from hostkv.vllm.guard import Guard
from hostkv.vllm.messages import CapacityMessage, JobResult, RankReport, StepMessage
from hostkv.vllm.stats import HostKVStats, StatsSource

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name

_OK = 0
_UNAVAILABLE = 6
_INTERNAL = 11
_SHUTDOWN_SECONDS = 10.0


class WorkerSide:
    """See the module. `core` is None until the caches are registered."""

    def __init__(
        self, vllm_config: Any, kv_cache_config: Any, resolved: options.ResolvedOptions, pool_key: str
    ) -> None:
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._options = resolved
        self._pool_key = pool_key
        self._guard = Guard("worker")
        self._rank = int(vllm_config.parallel_config.rank)
        self.core: Any = None
        self.kv_caches: dict[str, Any] = {}
        self._registered = False
        self._stats = StatsSource(rank=self._rank)
        self._changed = True  # something that statistics show may have changed
        self._capacity: CapacityMessage | None = None
        self._capacity_told = False
        self._message: StepMessage | None = None  # of this step, not started
        self._bound = False  # the core has a step that was not polled
        self._stores_started = True
        self._jobs_in_flight = 0
        self._load_of_job: dict[int, str] = {}
        self._epoch_of_job: dict[int, int] = {}  # of those loads
        self._untold_loads: set[int] = set()  # jobs of loads among the results that no report has carried
        self._lost: set[int] = set()  # jobs of loads whose targets were given up
        self._broken_told = False
        self._jobs_of_load: dict[str, int] = {}
        self._failed_loads: set[str] = set()
        self._cut_in_place = False
        self._bad_blocks: dict[str, set[int]] = {}  # of failed loads, as far as all of them are known
        self._invalid_blocks: set[int] = set()
        self._told_invalid: set[int] = set()  # for the report of the same step
        self._load_began: dict[str, float] = {}
        self._load_seconds: list[float] = []  # of loads that ended since the last statistics
        self._finished: set[str] = set()
        self._failed: set[str] = set()
        self._results: list[JobResult] = []

    # ------------------------------------------------------------------------------------------------ memory

    def register(self, kv_caches: dict[str, Any]) -> None:
        """register_kv_caches. Raises what the operator must mend: sizes, devices, layouts."""
        self.kv_caches = kv_caches
        if not self._vllm_config.cache_config.enable_prefix_caching:
            return
        interleave = compat.settled_interleave_tokens(self._vllm_config.parallel_config)
        resolved = geometry.resolve(self._kv_cache_config, self._vllm_config, interleave)
        self._cut_in_place = geometry.can_be_cut_in_place(self._kv_cache_config)
        described = layout.describe(self._kv_cache_config, resolved, kv_caches)
        start_report.check_device(described.device, torch.version.hip)
        if self.core is None:
            self.core = _core.Worker(
                geometry=resolved,
                options=self._options.core_json,
                rank=self._rank,
                num_ranks=self._vllm_config.parallel_config.world_size,
                device=described.device,
            )
        capacity = self.core.register_layout(described.num_blocks, described.regions, described.groups)
        self._registered = True
        self._capacity = CapacityMessage(self._pool_key, capacity, interleave)

    def unregister(self) -> None:
        """The engine is about to give up its cache memory. Copies end first; the host's bytes stay. What a load brought
        is gone: every load that the engine has not heard of has failed."""
        if self.core is not None and self._registered:
            self._lose_loads()
            self._poll()
            self.core.unregister_layout(_SHUTDOWN_SECONDS)
            self._registered = False

    def _lose_loads(self) -> None:
        self._lost |= self._load_of_job.keys()
        self._failed |= self._finished
        self._invalid_blocks.clear()
        self._bad_blocks.clear()
        self._results = [_lost(result) if result[1] in self._untold_loads else result for result in self._results]

    def restore(self) -> None:
        """The memory is back, empty; the same tensors stand for it."""
        if self.kv_caches and not self._registered:
            self.register(self.kv_caches)

    def handshake(self) -> CapacityMessage | None:
        return self._capacity

    # ------------------------------------------------------------------------------------------------ one step

    def bind(self, message: Any) -> None:
        """bind_connector_metadata. A step whose last hooks never came ends here: its loads are waited for."""
        if self._message is not None or self._bound:
            self.end_step()
        self._message = message if isinstance(message, StepMessage) else None

    def start_loads(self) -> None:
        """start_load_kv, or the first hook of the step that comes instead of it."""
        message, self._message = self._message, None
        if message is None:
            return
        for request_id, good in message.ended.items():
            self._end_without_copy(request_id, good)
        now = time.monotonic()
        for job, request_id in message.loads.items():
            self._load_of_job[job] = request_id
            self._epoch_of_job[job] = message.epoch
            self._load_began[request_id] = now
            self._jobs_of_load[request_id] = self._jobs_of_load.get(request_id, 0) + 1
        if message.step is None:
            return
        self._stores_started = not message.has_forward
        started = False
        if self.core is not None and not self._guard.broken:
            with self._guard("start_load_kv"):
                self.core.bind_step(message.step)
                self._bound = started = True
                self.core.start_loads()
        if not started:
            self._refuse(message.step)

    def start_stores(self) -> None:
        """wait_for_save: behind the forward, and behind the drafter's where there is one."""
        self.start_loads()
        self._stores_started = True
        if self._bound and not self._guard.broken:
            with self._guard("wait_for_save"):
                self.core.start_stores()

    def take_finished(self) -> tuple[set[str], set[str]]:
        """get_transfer_results: (ended loads, those of them that failed).

        With a drafter it comes before wait_for_save; then nothing is polled yet, since that would start the stores.
        """
        self.start_loads()
        if self._stores_started:
            self._poll()
        finished, self._finished = self._finished, set()
        failed, self._failed = self._failed, set()
        return finished, failed

    def take_invalid_blocks(self) -> set[int]:
        """get_block_ids_with_load_errors: in the step in which their load is told to have ended."""
        if self._invalid_blocks:
            self._told_invalid, self._invalid_blocks = self._invalid_blocks, set()
            return set(self._told_invalid)
        return set()

    def end_step(self) -> None:
        """clear_connector_metadata: the last hook of every step."""
        self.start_loads()
        if self._bound:
            self._poll()
        self._stores_started = True

    def take_report(self) -> RankReport | None:
        """build_connector_worker_meta: None where there is no news."""
        capacities = []
        if self._capacity is not None and not self._capacity_told:
            capacities.append(self._capacity)
            self._capacity_told = True
        results, self._results = self._results, []
        self._untold_loads.clear()
        broken = ""
        if self._guard.broken and not self._broken_told:
            self._broken_told = True
            broken = f"rank {self._rank} failed in {self._guard.cause}"
        invalid, self._told_invalid = self._told_invalid, set()
        return RankReport(results, capacities, broken, invalid) if results or capacities or broken or invalid else None

    def take_stats(self) -> HostKVStats | None:
        """None where nothing happened since the last call: an idle connector ships nothing."""
        if self.core is None or not self._changed:
            return None
        self._changed = False
        seconds, self._load_seconds = self._load_seconds, []
        with self._guard("get_kv_connector_stats"):
            return self._stats.take({**self.core.metrics(), "load_seconds": seconds})
        return None

    # ------------------------------------------------------------------------------------------------ results

    def _poll(self) -> None:
        if self.core is None or (self._jobs_in_flight == 0 and not self._bound):
            return
        with self._guard("get_transfer_results"):
            results = self.core.poll()
            self._bound = False
            self._jobs_in_flight = self.core.metrics()["jobs_in_flight"]
            if results:
                self._take(results)
            return
        self._fail_loads()

    def _fail_loads(self) -> None:
        """Results cannot be had. Once nothing is copied any more, every load in flight has failed."""
        with self._guard("wait_idle"):
            self.core.wait_idle(_SHUTDOWN_SECONDS)
            self._bound, self._jobs_in_flight = False, 0
            self._take([(self._epoch_of_job[job], job, self._rank, _INTERNAL, []) for job in list(self._load_of_job)])

    def _take(self, results: list[JobResult]) -> None:
        self._changed = True
        results = [_lost(result) if result[1] in self._lost else result for result in results]
        self._results += results
        for _, job, _, status, rows in results:
            request_id = self._load_of_job.pop(job, None)
            self._epoch_of_job.pop(job, None)
            self._lost.discard(job)
            if request_id is None:
                continue
            self._untold_loads.add(job)
            if status != _OK:
                self._note_bad_blocks(request_id, rows)
                self._failed_loads.add(request_id)
            self._jobs_of_load[request_id] -= 1
            if self._jobs_of_load[request_id] == 0:
                del self._jobs_of_load[request_id]
                self._load_seconds.append(time.monotonic() - self._load_began.pop(request_id))
                self._report(request_id, request_id not in self._failed_loads)
                self._failed_loads.discard(request_id)

    def _note_bad_blocks(self, request_id: str, rows: list[tuple[int, int]]) -> None:
        """Nothing is known of a load that failed as a whole, or has failed in another way before."""
        known = request_id not in self._failed_loads or request_id in self._bad_blocks
        if self._cut_in_place and rows and known:
            self._bad_blocks.setdefault(request_id, set()).update(block for _, block in rows)
        else:
            self._bad_blocks.pop(request_id, None)

    def _report(self, request_id: str, good: bool) -> None:
        """A load whose bad blocks are all known is told by them: the engine keeps what lies before."""
        self._finished.add(request_id)
        bad = self._bad_blocks.pop(request_id, None)
        if bad:
            self._invalid_blocks |= bad
        elif not good:
            self._failed.add(request_id)

    def _end_without_copy(self, request_id: str, good: bool) -> None:
        """While copies of the same load run on this rank, they end first."""
        if request_id in self._jobs_of_load:
            self._failed_loads.add(request_id)
            self._bad_blocks.pop(request_id, None)
        else:
            self._report(request_id, good)

    def _refuse(self, step: bytes) -> None:
        """The step could not be begun: each of its jobs has failed on this rank."""
        with self._guard("describe_step"):
            described = _core.describe_step(step)
            self._take([(described["epoch"], job["id"], self._rank, _INTERNAL, []) for job in described["jobs"]])

    # ------------------------------------------------------------------------------------------------ end

    def shutdown(self) -> None:
        """Idempotent. Copies end, memory is given back; nothing of the device is touched afterwards."""
        core, self.core = self.core, None
        self.kv_caches = {}
        if core is not None:
            with self._guard("shutdown"):
                core.shutdown(_SHUTDOWN_SECONDS)


def _lost(result: JobResult) -> JobResult:
    """The copy ended; nothing of what it wrote is there any more."""
    epoch, job, rank, status, _ = result
    return epoch, job, rank, status if status != _OK else _UNAVAILABLE, []
