"""vLLM's engine as the verifier sees it: requests go in, and each of its steps comes out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from draftwire.v1.planner_status_pb2 import PlannerStatus
from draftwire.v1.step_cost_pb2 import StepCost as StepCostMessage
from draftwire.v1.verifier_service_pb2 import EngineStatus, PrefixCacheStatus
from draftwire_core.engine.engine.step_result import Finish, SequenceOutcome, StepResult
from draftwire_core.engine.logits.output_form import OutputForm
from draftwire_core.engine.model.ranks.rank_group import RankLostError
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.log_probs import LogProbs
from draftwire_core.runtime.duration import duration, step_times
from draftwire_core.runtime.process.logs import get_logger
from verifier_service.reading.generate_order import GenerateOrder
from verifier_service.step_loop import StepListener
from verifier_service.vllm.request import VllmOrder

log = get_logger(__name__)

DRAFTED = "drafters"
"""Source of accepted tokens: vLLM does not say which drafter of the pool drafted one."""
_STOP, _LENGTH = "stop", "length"
_SCHEDULED, _PREEMPTED = "SCHEDULED", "PREEMPTED"


class EngineCore(Protocol):
    """vLLM's client of its engine core (`AsyncLLM.engine_core`)."""

    async def add_request_async(self, request: Any) -> None:
        """Sends an EngineCoreRequest."""

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Ends requests by their ids."""

    async def get_output_async(self) -> Any:
        """Returns the EngineCoreOutputs of the next step. Raises EngineDeadError once the engine has ended."""


@dataclass(slots=True)
class _Running:
    sequence_id: int
    length: int
    """Number of prompt and output tokens."""
    top: int | None
    prompt_top: int | None
    form: OutputForm | None
    speculates: bool
    """Whether drafters draft for it; if not, vLLM's runner V2 verifies repetitions of its last token all the same."""
    began: float = 0.0
    cached_tokens: int = 0
    accepted: int = 0
    ended: bool = False
    """Whether vLLM has ended it."""


class VllmSteps:
    """Runs requests on vLLM's engine core. Used in the event loop only."""

    def __init__(self, core: EngineCore, places: int, slots: int, cost: StepCost):
        """places: how many requests vLLM runs at once. slots: tokens that fit into its KV cache. cost: a first guess of
        the time of its steps, which these correct."""
        self.places = places
        self.cost = cost
        self.waited = 0.0
        """Always 0: the pool inside vLLM waits for proposals within a step."""
        self._core = core
        self._slots = slots
        self._listener: StepListener | None = None
        self._running: dict[str, _Running] = {}
        self._names: dict[int, str] = {}
        self._orders: asyncio.Queue[VllmOrder | str] = asyncio.Queue()
        """Requests to send, and ids of requests to end, in order."""
        self._tasks: list[asyncio.Task[None]] = []
        self._stepped: float | None = None
        """Time of the last step, if requests ran then."""
        self._status = EngineStatus(total_slots=slots, prefix_cache=PrefixCacheStatus(), planner=PlannerStatus())
        self._steps = 0
        self._seconds = 0.0

    def start(self, listener: StepListener) -> None:
        """Starts to take vLLM's steps, which go to a listener."""
        self._listener = listener
        self._tasks = [
            asyncio.create_task(self._guarded(work), name=f"vllm-{name}")
            for name, work in (("requests", self._send), ("steps", self._take))
        ]

    async def stop(self) -> None:
        """Stops taking steps; vLLM itself is ended by its owner."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def add(self, order: GenerateOrder) -> None:
        """Runs a request."""
        assert isinstance(order, VllmOrder), "read by VllmRequestReader"
        spec, name = order.spec, order.request.request_id
        self._names[spec.sequence_id] = name
        self._running[name] = _Running(
            spec.sequence_id, len(spec.tokens), spec.logprobs, spec.prompt_logprobs, spec.form, order.speculate
        )
        self._orders.put_nowait(order)

    def remove(self, sequence_id: int) -> None:
        """Ends a request; does nothing if it has ended."""
        name = self._names.pop(sequence_id, None)
        if name is not None and not self._running.pop(name).ended:
            self._orders.put_nowait(name)
        if not self._running:
            self._stepped = None

    def status(self) -> EngineStatus:
        """Returns what vLLM holds and does."""
        status = EngineStatus()
        status.CopyFrom(self._status)
        # vLLM reports with its steps alone, and takes none when the last request was cancelled.
        status.running_sequences = min(status.running_sequences, len(self._running))
        status.tasks = len(asyncio.all_tasks())
        status.times.CopyFrom(step_times(self._steps, {"forward": self._seconds}, 0.0))
        costs = [StepCostMessage(rows=rows, time=duration(seconds)) for rows, seconds in self.cost.points()]
        status.planner.step_costs.extend(costs)
        return status

    async def _guarded(self, work: Any) -> None:
        try:
            await work()
        except Exception as error:
            log.exception("vLLM lost")
            assert self._listener is not None
            self._listener.on_failure(RankLostError(f"vLLM's engine has ended: {error}"))

    async def _send(self) -> None:
        while True:
            order = await self._orders.get()
            if isinstance(order, str):
                await self._core.abort_requests_async([order])
            else:
                await self._core.add_request_async(order.request)

    async def _take(self) -> None:
        while True:
            outputs = await self._core.get_output_async()
            self._step(outputs)

    def _step(self, outputs: Any) -> None:
        """Passes on a step. outputs: vLLM's EngineCoreOutputs."""
        now = time.perf_counter()
        stats = outputs.scheduler_stats
        drafted = self._count(stats) if stats is not None else 0
        outcomes: list[SequenceOutcome] = []
        prompts: dict[int, LogProbs] = {}
        prompt_rows = 0
        for output in outputs.outputs:
            running = self._running.get(output.request_id)
            if running is None or running.ended:
                continue
            prompt_rows += self._note(running, output)
            told = output.new_prompt_logprobs_tensors
            if told is not None and running.prompt_top is not None:
                prompts[running.sequence_id] = log_probs_of(told, running.prompt_top)
            if output.new_token_ids or output.finish_reason is not None:
                outcomes.append(_outcome(running, output))
        sequences = sum(bool(each.tokens) for each in outcomes)
        rows = max(1, sequences + drafted + prompt_rows)
        seconds = 0.0 if self._stepped is None else now - self._stepped
        if outcomes or self._running:
            self._stepped = now
        if not outcomes and not prompts:
            return
        if seconds:
            self.cost.observe(rows, seconds, sequences=max(1, len(outcomes)))
        self._steps += 1
        self._seconds += seconds
        if sequences:
            planner = self._status.planner
            planner.steps += 1
            planner.sequences += sequences
            planner.draft_tokens += drafted
            planner.last_draft_tokens = drafted
        assert self._listener is not None
        self._listener.on_step(StepResult(outcomes, rows, seconds, prompts=prompts), {})

    def _count(self, stats: Any) -> int:
        """Takes over vLLM's SchedulerStats; returns the number of draft tokens that the step verified."""
        status, cache = self._status, stats.prefix_cache_stats
        status.running_sequences = stats.num_running_reqs
        status.waiting_requests = stats.num_waiting_reqs + stats.num_skipped_waiting_reqs
        status.used_slots = round(stats.kv_cache_usage * self._slots)
        status.prefix_cache.queried_tokens += cache.queries
        status.prefix_cache.hit_tokens += cache.hits
        drafts = stats.spec_decoding_stats
        return 0 if drafts is None else int(drafts.num_draft_tokens)

    def _note(self, running: _Running, output: Any) -> int:
        """Notes when a request began and what it found in the prefix cache; returns how many tokens of its prompt were
        computed until its first token."""
        for event in output.events or ():
            if event.type.name == _SCHEDULED and not running.began:
                running.began = event.timestamp  # of the clock of time.perf_counter, too
            self._status.preemptions += event.type.name == _PREEMPTED
        if output.prefill_stats is None:
            return 0
        running.cached_tokens = output.prefill_stats.num_cached_tokens
        return int(output.prefill_stats.num_computed_tokens)


def _outcome(running: _Running, output: Any) -> SequenceOutcome:
    """Returns a request's part of a step, and notes what the request has got with it. output: vLLM's
    EngineCoreOutput."""
    tokens = list(output.new_token_ids)
    finish = _finish(output)
    if running.form is not None and tokens:
        last = running.form.ends_after(tokens)
        if last is not None:  # vLLM goes on to the end-of-sequence token
            tokens, finish = tokens[:last], Finish.FORM
        running.form.commit(tokens)
    accepted = max(0, len(tokens) - 1) if running.speculates else 0  # all but a step's last token were drafted
    running.accepted += accepted
    drafted = accepted
    if running.speculates and output.finish_reason is not None and output.spec_decode_metrics is not None:
        drafted += max(0, output.spec_decode_metrics.num_draft_tokens - running.accepted)
    running.length += len(tokens)
    running.ended = output.finish_reason is not None
    log_probs = None
    if output.new_logprobs is not None and running.top is not None:
        log_probs = log_probs_of(output.new_logprobs, running.top).part(slice(0, len(tokens)))
    return SequenceOutcome(
        running.sequence_id,
        tokens,
        [DRAFTED] * accepted + [None] * (len(tokens) - accepted),
        running.length,
        drafted={DRAFTED: drafted} if drafted else {},
        finish=finish,
        log_probs=log_probs,
        cached_tokens=running.cached_tokens,
        began=running.began,
    )


def _finish(output: Any) -> Finish | None:
    if output.finish_reason is None:
        return None
    reason = str(output.finish_reason)
    if reason == _STOP:
        return Finish.EOS
    if reason == _LENGTH:
        return Finish.LENGTH
    log.error("request ended by vLLM", request=output.request_id, finish_reason=reason)
    return Finish.FAULT


def log_probs_of(told: Sequence[Any], top: int) -> LogProbs:
    """Returns vLLM's LogprobsLists or LogprobsTensors as the verifier's.

    top: number of likeliest tokens that the request asks for; another one of the batch may have asked for more.
    """
    ids, log_probs, ranks = (np.asarray(each) for each in told[:3])
    likeliest = slice(1, 1 + top)
    top_log_probs = log_probs[:, likeliest].astype(np.float32)
    return LogProbs(
        ids[:, 0].astype(np.int64),
        log_probs[:, 0].astype(np.float32),
        ranks.astype(np.int64),
        # vLLM applies an output form before, and fills up with tokens that the form does not allow.
        np.where(np.isneginf(top_log_probs), -1, ids[:, likeliest].astype(np.int64)),
        top_log_probs,
    )
