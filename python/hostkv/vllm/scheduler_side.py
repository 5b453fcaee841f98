"""The scheduler half: vLLM's scheduler hooks become calls of the core, and back.

Decides nothing. One thread, the engine core's. Any exception inside a hook turns the connector into one that finds and
stores nothing (Guard): the engine lives, loads that were promised end as failed, copies in flight are waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import vllm
from vllm.logger import init_logger

import hostkv
from hostkv import _core
from hostkv.vllm import compat, events, foreign_failures, geometry, options, start_report
from hostkv.vllm.block_pool import BlockPoolShim
from hostkv.vllm.failed_loads import FailedLoads
from hostkv.vllm.guard import Guard
from hostkv.vllm.messages import CapacityMessage, JobResult, RankReport, StepMessage
from hostkv.vllm.stats import HostKVStats, StatsSource
from hostkv.vllm.tracked import Tracked

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name

_HIT, _RETRY, _MORE_HASHES = 1, 2, 3
_OK = 0
_WIND_DOWN_SECONDS = 10.0
_FIRST_HASHES = 64  # a lookup begins with so many: most prompts of which nothing is stored show it by the first ones


class SchedulerSide:
    """See the module. `core` is None until the cache manager is bound."""

    def __init__(
        self, vllm_config: Any, kv_cache_config: Any, resolved: options.ResolvedOptions, pool_key: str
    ) -> None:
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._options = resolved
        self._pool_key = pool_key
        self._caching = bool(vllm_config.cache_config.enable_prefix_caching)
        self._guard = Guard("scheduler")
        self.core: _core.Scheduler | None = None
        self.geometry: _core.Geometry | None = None
        self._hash_tokens = 1  # of a prefix hash
        self._pool: BlockPoolShim | None = None
        self._damaged = False
        self._interleave_tokens = compat.configured_interleave_tokens(vllm_config.parallel_config)
        self._failed_loads: FailedLoads | None = None
        self._translator: events.EventTranslator | None = None
        self._events: list[Any] = []
        self._stats = StatsSource()
        self._changed = True  # something that statistics show may have changed
        self._watch = start_report.HookWatch(
            {
                "bind_kv_cache_manager": "nothing is found or stored",
                "update_connector_output": "no store is ever completed and no load is ever seen to end",
            }
        )
        self._requests: dict[str, Tracked] = {}
        self._by_handle: dict[int, Tracked] = {}
        self._last_handle = 0
        self._step = 0
        self._loading: dict[int, str] = {}  # handle -> request id: the engine waits for this load
        self._sent: set[int] = set()  # handles of loads that the ranks know of
        self._ended: dict[str, bool] = {}  # goes into the next message
        self._give_up_at: float | None = None  # set when the connector broke
        self._shut_down = False
        self._ranks: set[int] = set()

    # ------------------------------------------------------------------------------------------------ binding

    def bind(self, kv_cache_manager: Any) -> None:
        """Once, when the engine's cache manager is there."""
        self._watch.called("bind_kv_cache_manager")
        if not self._caching:
            start_report.log_lines(logger, start_report.config_warnings(self._vllm_config))
            return
        self._pool = BlockPoolShim(kv_cache_manager, self._options.values.get("store_mode") != "eager")
        resolved = self._make_core()
        alignment = compat.alignment_of_manager(kv_cache_manager)
        if alignment is not None and alignment != resolved.hit_alignment_tokens:
            logger.warning(
                "HostKV ends hits on multiples of %d tokens, the engine's own end on %d",
                resolved.hit_alignment_tokens,
                alignment,
            )
        self._report_start(resolved, self._damaged)

    def _make_core(self) -> _core.Geometry:
        self.geometry = geometry.resolve(self._kv_cache_config, self._vllm_config, self._interleave_tokens)
        self._hash_tokens = self.geometry.hash_block_tokens
        self._failed_loads = FailedLoads(self._kv_cache_config, self.geometry)
        self._damaged = geometry.damages_fine_hits(self._kv_cache_config, self.geometry)
        self.core = _core.Scheduler(
            geometry=self.geometry,
            options=self._options.core_json,
            num_ranks=self._vllm_config.parallel_config.world_size,
            pool=self._pool,
            damages_fine_hits=self._damaged,
            record_events=events.events_enabled(self._vllm_config),
        )
        if events.events_enabled(self._vllm_config):
            self._translator = self._new_translator(self.geometry)
        return self.geometry

    def _new_translator(self, resolved: _core.Geometry) -> events.EventTranslator:
        spans = [resolved.span_tokens(group) for group in range(resolved.num_groups)]
        groups = events.event_groups(self._kv_cache_config.kv_cache_groups, spans)
        return events.EventTranslator(groups, resolved.hash_block_tokens, self._request_of)

    def _report_start(self, resolved: _core.Geometry, damaged: bool) -> None:
        facts = start_report.facts_of(
            self._options, resolved, self._kv_cache_config, self._vllm_config.parallel_config.world_size,
            (hostkv.__version__, vllm.__version__), damaged,
        )  # fmt: skip
        start_report.log_lines(logger, start_report.report_lines(facts, self._vllm_config))
        self._stats = StatsSource(info=start_report.stats_info(facts, resolved.hash_block_tokens))

    def take_capacities(self, messages: Iterable[Any]) -> None:
        """Of every rank once; those of other connectors and repeats are left out."""
        for message in messages:
            if not isinstance(message, CapacityMessage) or message.pool_key != self._pool_key or self.core is None:
                continue
            if message.capacity["rank"] not in self._ranks:
                self._take_over_interleave(message.interleave_tokens)
                self.core.on_worker_capacity(**message.capacity)
                self._ranks.add(message.capacity["rank"])

    def _take_over_interleave(self, interleave_tokens: int) -> None:
        """With the first rank's capacity: keys depend on it. Nothing was found or stored before, so the core is made
        anew; requests that it has seen meanwhile are not stored. A rank that differs from the first is refused.
        """
        if interleave_tokens in (0, self._interleave_tokens) or self._ranks:
            return
        assert self.core is not None
        logger.info("HostKV: the workers run with an interleave of %d tokens", interleave_tokens)
        self._interleave_tokens = interleave_tokens
        self.core.shutdown()
        self._requests.clear()
        self._by_handle.clear()
        self._make_core()

    # ------------------------------------------------------------------------------------------------ requests

    def _track(self, request: Any) -> Tracked:
        tracked = self._requests.get(request.request_id)
        if tracked is not None and tracked.request is request:
            return tracked
        if tracked is not None:
            self._forget(tracked, 0)
        assert self.core is not None
        self._last_handle += 1
        tracked = Tracked(self._last_handle, request)
        self.core.add_request(
            tracked.handle,
            request.request_id,
            max(1, request.num_prompt_tokens),
            bool(getattr(request, "skip_reading_prefix_cache", False)),
            options.request_limits(request, self._options.offload_prompt_only),
        )
        self._requests[request.request_id] = tracked
        self._by_handle[tracked.handle] = tracked
        return tracked

    def _forget(self, tracked: Tracked, num_computed_tokens: int) -> None:
        assert self.core is not None and self._failed_loads is not None
        request_id = tracked.request.request_id
        if self._requests.get(request_id) is tracked:
            del self._requests[request_id]
            self._failed_loads.forget(request_id)
        try:
            if not self._shut_down:
                self.core.request_finished(tracked.handle, num_computed_tokens, tracked.tails or [])
                self._translate_events()
        finally:
            self._by_handle.pop(tracked.handle, None)

    def _request_of(self, handle: int) -> Any | None:
        tracked = self._by_handle.get(handle)
        return None if tracked is None else tracked.request

    def _translate_events(self) -> None:
        """While the requests that the events name are alive: right behind the call that made them."""
        if self._translator is not None and self.core is not None:
            self._events += self._translator.translate(self.core.take_cache_events())

    def take_events(self) -> list[Any]:
        told, self._events = self._events, []
        return told

    def _sync_hashes(self, tracked: Tracked, num_wanted: int) -> bool:
        """True: the request has more than the core was given."""
        assert self.core is not None
        return tracked.hashes.hand_over(self.core, tracked.handle, tracked.request.block_hashes, num_wanted)

    def _sync_tokens(self, tracked: Tracked, num_tokens: int) -> None:
        """Hands over the hashes of what is computed: no more is asked for by a store."""
        self._sync_hashes(tracked, num_tokens // self._hash_tokens)

    def on_new_request(self, request: Any) -> None:
        if self.core is not None and not self._guard.broken:
            with self._guard("on_new_request"):
                self._track(request)

    # ------------------------------------------------------------------------------------------------ lookups

    def match(self, request: Any, num_local_tokens: int) -> tuple[int | None, bool]:
        """get_num_new_matched_tokens."""
        if self.core is None or self._failed_loads is None or self._guard.broken:
            return 0, False
        with self._guard("get_num_new_matched_tokens"):
            self._changed = True
            tracked = self._track(request)
            if self._failed_loads.asks_first(request.request_id):
                return None, False
            tracked.local_tokens = num_local_tokens
            tracked.owns_blocks = tracked.has_run = False
            kind, tokens, shared_prefix = self._look_up(tracked, num_local_tokens)
            if shared_prefix > (getattr(request, "shared_prefix_boundary", None) or 0):
                request.shared_prefix_boundary = shared_prefix
            if kind == _RETRY:
                return None, False
            if kind == _HIT and self._failed_loads.may_load(request):
                return tokens, True
            if kind == _HIT:
                self.core.cancel_match(tracked.handle)
        return 0, False

    def _look_up(self, tracked: Tracked, num_local_tokens: int) -> tuple[int, int, int]:
        assert self.core is not None and self.geometry is not None
        behind_local = num_local_tokens + 2 * self.geometry.scheduler_block_tokens
        has_more = self._sync_hashes(tracked, behind_local // self._hash_tokens + _FIRST_HASHES)
        num_tokens = tracked.request.num_tokens
        answer = self.core.match_prefix(tracked.handle, num_tokens, num_local_tokens, has_more)
        if answer[0] == _MORE_HASHES:
            self._sync_hashes(tracked, len(tracked.request.block_hashes))
            answer = self.core.match_prefix(tracked.handle, num_tokens, num_local_tokens)
        return answer

    def loaded_groups(self) -> tuple[int, ...]:
        """get_loaded_kv_cache_group_ids: the groups whose new blocks a load fills."""
        if self.geometry is None:
            return ()
        return tuple(group for group in range(self.geometry.num_groups) if self.geometry.offloadable(group))

    def allocated(self, request: Any, tables: Any, num_external_tokens: int) -> None:
        """update_state_after_alloc. A load that cannot be planned is reported as failed, never forgotten."""
        if self.core is None or self._failed_loads is None:
            return
        self._failed_loads.forget(request.request_id)
        planned = False
        if not self._guard.broken:
            with self._guard("update_state_after_alloc"):
                tracked = self._track(request)
                self._sync_tokens(tracked, tracked.local_tokens + num_external_tokens)
                try:
                    self.core.on_blocks_allocated(tracked.handle, tables, tracked.local_tokens, num_external_tokens)
                except ValueError:
                    self.core.cancel_match(tracked.handle)
                    raise
                tracked.owns_blocks = True
                tracked.admission = self._step
                planned = True
                if num_external_tokens > 0:
                    self._loading[tracked.handle] = request.request_id
        if num_external_tokens > 0 and not planned:
            self._ended[request.request_id] = False

    # ------------------------------------------------------------------------------------------------ steps

    def build(self, output: Any) -> StepMessage:
        """build_connector_meta."""
        message = StepMessage(has_forward=output.total_num_scheduled_tokens > 0)
        start_report.log_lines(logger, self._watch.step(len(output.num_scheduled_tokens)))
        if self.core is not None and not self._guard.broken:
            with self._guard("build_connector_meta"):
                self._build_step(output, message)
                self._translate_events()
                self._take_at_once()
        if self._guard.broken:
            self._wind_down()
        if self._ended:
            message.ended, self._ended = self._ended, {}
        return message

    def _build_step(self, output: Any, message: StepMessage) -> None:
        assert self.core is not None
        requests = self._requests
        preempted = []
        for request_id in output.preempted_req_ids or ():
            tracked = requests.get(request_id)
            if tracked is not None:
                preempted.append(tracked.handle)
                # One that was admitted again in this same pass owns the blocks of its new admission.
                tracked.owns_blocks = tracked.owns_blocks and tracked.admission == self._step
        self._step += 1
        scheduled: list[int] = []
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            tracked = requests.get(request_id)
            if tracked is None or not tracked.owns_blocks or tracked.handle in self._loading:
                continue
            request = tracked.request
            computed = request.num_computed_tokens
            taken = max(0, min(num_tokens, request.num_tokens - computed))
            if tracked.hashes.lack(request.block_hashes, (computed + taken) // self._hash_tokens):
                self._sync_tokens(tracked, computed + taken)
            tracked.has_run = True
            scheduled += (tracked.handle, computed, taken)
        step = self.core.build_step(scheduled, self._hand_offs(output), preempted)
        if step:
            message.step = step
            self._changed = True
        for handle, job in self.core.take_started_loads():
            message.loads[job] = self._loading[handle]
            message.epoch = self.core.epoch()
            self._sent.add(handle)

    def _hand_offs(self, output: Any) -> list[tuple[int, int, int, int]]:
        state = getattr(output, "kv_connector_block_state", None)
        offered = getattr(state, "boundary_state_offloads", None)
        if not offered:
            return []
        finished = output.finished_req_ids or ()
        hand_offs = []
        for request_id, entries in offered.items():
            tracked = self._requests.get(request_id)
            if tracked is not None and request_id not in finished:
                self._sync_tokens(tracked, max((boundary for _, _, boundary in entries), default=0))
                hand_offs += [(tracked.handle, group, block, boundary) for group, block, boundary in entries]
        return hand_offs

    def _take_at_once(self) -> None:
        """Loads that ended without a job: no rank knows of them, so each is told to report them."""
        assert self.core is not None
        for handle, status in self.core.take_load_outcomes():
            if handle not in self._sent:
                self._end_at_once(handle, status == _OK)

    def _end_at_once(self, handle: int, good: bool) -> None:
        request_id = self._loading.pop(handle, None)
        if request_id is not None:
            self._ended[request_id] = good

    def _wind_down(self) -> None:
        """The connector broke. What was not sent is failed, so that nobody waits; copies in flight end by themselves,
        then the last pins go."""
        assert self.core is not None
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + _WIND_DOWN_SECONDS
            with self._guard("reset after a failure"):
                self.core.reset()
        with self._guard("loads that ended after a failure"):
            self._take_at_once()
        for handle in self._loading.keys() - self._sent:
            self._ended[self._loading.pop(handle)] = False
        if not self._loading and not self._shut_down:
            jobs_in_flight = 1
            with self._guard("metrics after a failure"):
                jobs_in_flight = self.core.metrics()["jobs_in_flight"]
            # Stores whose results never come only read: their blocks may go back all the same.
            if jobs_in_flight == 0 or time.monotonic() > self._give_up_at:
                self.shutdown()

    def results(self, output: Any) -> None:
        """update_connector_output. The core has the last word on a load: it knows of resets and of other ranks."""
        report = output.kv_connector_worker_meta
        self._watch.called("update_connector_output")
        self._note_failed(getattr(output, "failed_recving", None) or ())
        if foreign_failures.were_computed_on(output, report, self._requests, self._pool):
            self.reset()
        if not isinstance(report, RankReport) or self.core is None:
            return
        self._changed = True
        untaken = list(report.results)
        with self._guard("update_connector_output"):
            if report.capacities:
                self.take_capacities(report.capacities)
            if untaken:
                self._take_results(untaken, output)
            self._translate_events()
        if report.broken:
            self._guard.trip(report.broken)
        if self._guard.broken:
            for result in untaken:  # one by one: without them, pins would never go
                with self._guard("update_connector_output"):
                    self.core.on_worker_results([result])
            ended = set(output.finished_recving or ())
            for handle in [handle for handle, request_id in self._loading.items() if request_id in ended]:
                del self._loading[handle]
                self._sent.discard(handle)

    def _note_failed(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            tracked = self._requests.get(request_id)
            if tracked is not None and self._failed_loads is not None:
                self._failed_loads.add(tracked.request)

    def _take_results(self, results: list[JobResult], output: Any) -> None:
        """Leaves `results` empty when the core has them."""
        assert self.core is not None
        self.core.on_worker_results(results)
        results.clear()
        failed = getattr(output, "failed_recving", None) or ()
        for handle, status in self.core.take_load_outcomes():
            if handle not in self._sent:
                self._end_at_once(handle, status == _OK)
                continue
            self._sent.discard(handle)
            request_id = self._loading.pop(handle, None)
            if request_id is None:
                continue
            if status != _OK:
                if (tracked := self._by_handle.get(handle)) is None or self._was_cut(tracked, output):
                    continue
                tracked.owns_blocks = False
                if request_id not in failed and request_id in (output.finished_recving or ()):
                    output.finished_recving.discard(request_id)
                    self._ended[request_id] = False

    def _was_cut(self, tracked: Tracked, output: Any) -> bool:
        """Cut down to what of its load is whole. Where that is nothing, the engine takes its blocks and asks again."""
        assert self.core is not None and self._failed_loads is not None
        if not self._failed_loads.was_cut(tracked.request, output):
            return False
        if tracked.request.num_computed_tokens > 0:
            return self.core.resume_after_failed_load(tracked.handle, tracked.request.num_computed_tokens)
        tracked.owns_blocks = False
        self._failed_loads.add(tracked.request)
        return True

    # ------------------------------------------------------------------------------------------------ ends

    def offer_tail(self, request: Any, entries: Iterable[tuple[int, int, int]]) -> None:
        """register_finished_partial_tail: kept for the request's end, which follows at once."""
        if self.core is None or self._guard.broken:
            return
        with self._guard("register_finished_partial_tail"):
            tracked = self._track(request)
            tracked.tails = [(tracked.handle, group, block, boundary) for group, block, boundary in entries]

    def finished(self, request: Any) -> None:
        """request_finished_all_groups: finished or aborted, in any state. The last sampled token was never computed."""
        tracked = self._requests.get(request.request_id)
        if tracked is None or self.core is None:
            return
        self._changed = True
        computed = 0
        if not self._guard.broken:
            with self._guard("request_finished_all_groups"):
                computed = max(0, min(request.num_computed_tokens, request.num_tokens - 1))
                self._sync_tokens(tracked, computed)
        with self._guard("request_finished_all_groups"):
            self._forget(tracked, computed if tracked.owns_blocks and tracked.has_run else 0)

    def has_pending_work(self) -> bool:
        if self._ended:
            return True
        if self.core is None or self._shut_down:
            return False
        if not self._guard.broken:
            with self._guard("has_pending_push_work"):
                return bool(self.core.has_pending_work())
        return True  # until _wind_down is through

    def has_pending_block_frees(self) -> bool:
        if self.core is None or self._shut_down:
            return False
        with self._guard("has_pending_block_frees"):
            return bool(self.core.holds_alone())
        return False

    def reset(self) -> bool:
        if self.core is None:
            return True
        self._changed = True
        with self._guard("reset_cache"):
            ended = self.core.reset()
            self._translate_events()
            return ended
        return False

    def take_stats(self) -> HostKVStats | None:
        """None where nothing happened since the last call: an idle connector ships nothing."""
        if self.core is None or not self._changed or self._shut_down:
            return None
        self._changed = False
        with self._guard("get_kv_connector_stats"):
            return self._stats.take(self.core.metrics(), self.core.lost_tokens_by_group())
        return None

    def shutdown(self) -> None:
        if self.core is not None and not self._shut_down:
            self._shut_down = True
            with self._guard("shutdown"):
                self.core.shutdown()
