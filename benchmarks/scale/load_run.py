"""A run of load.py: the verifier's capacity, one load after another, and the resources held between loads."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from dataclasses import asdict, fields
from typing import NamedTuple

import grpc

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.process_usage import Usage, grew
from benchmarks.harness.services import Services, started
from benchmarks.scale.load_figures import LoadFigures, Objective
from benchmarks.scale.open_load import Answer, Ask, asks, run_load
from draftwire import AsyncClient, BatchOptions, Speculation
from draftwire.v1.verifier_service_pb2 import GetModelInfoRequest
from draftwire.v1.verifier_service_pb2_grpc import VerifierServiceStub
from draftwire_tools.spread import Spread
from draftwire_tools.turns import turned
from tests.harness.checkout import MODELS
from tests.harness.services.service_process import ServiceProcess

OFF, AUTO = "off", "auto"
KINDS = {OFF: Speculation(enabled=False), AUTO: Speculation()}
_CAPACITY_ROUNDS = 3
"""Requests per place while the capacity is measured."""
_FEW = 16
"""Tasks and open files that may come and go with connections."""
_SETTLE_SECONDS = 10.0


class Idle(NamedTuple):
    """Resources of the idle verifier."""

    used_slots: int
    requests: int
    tasks: int
    preemptions: int
    rss_bytes: int
    open_files: int
    threads: int


class Load:
    """All loads of a run, with their answers."""

    def __init__(self, options: argparse.Namespace, services: Services):
        self.capacity = 0.0
        """Requests per second that the verifier serves plainly."""
        self.capacity_tokens = 0.0
        self.answers: dict[tuple[float, str], list[list[Answer]]] = {
            (load, kind): [] for load in options.loads for kind in KINDS
        }
        """By load and kind: the answers of each run."""
        self.idle: list[Idle] = []
        """Resources held between loads."""
        self._options = options
        self._services = services
        self._request: BatchOptions = {"temperature": options.temperature, "prefix_cache": False}

    async def run(self) -> None:
        """Measures the capacity, then every load."""
        options = self._options
        verifier, drafter = await self._start()
        async with AsyncClient(verifier.address, timeout=600.0) as client:
            texts = [await client.tokenize(text) for text in held_out_prompts(32)]
            tokens = [token for text in texts for token in text]
            await self._measure_capacity(client, tokens)
            await client.drafters.attach(drafter)
            # Drafters are measured too, before anything counts.
            await self._closed(client, tokens, options.places, KINDS[AUTO])
            await self._note(verifier)
            for run in range(options.runs):
                for load in options.loads:
                    requests = asks(
                        load * self.capacity,
                        options.seconds,
                        tokens,
                        options.prompt_tokens,
                        options.max_tokens,
                        f"{options.seed} {run} {load}",
                    )
                    for kind, speculation in turned(list(KINDS.items()), run):
                        answers = await run_load(client, requests, self._request, speculation)
                        self.answers[load, kind].append(answers)
                        await self._note(verifier)
                        self._tell(run, load, kind)

    def figures(self, load: float, kind: str) -> list[LoadFigures]:
        """Returns the figures of a load, run by run."""
        options = self._options
        objective = Objective(options.first_token, options.per_token)
        return [
            LoadFigures.of(answers, options.lead, options.seconds, objective) for answers in self.answers[load, kind]
        ]

    def spreads(self, load: float, kind: str) -> dict[str, Spread]:
        """Returns the figures by name, over the runs that had them."""
        runs = [asdict(each) for each in self.figures(load, kind)]
        found = {}
        for field in fields(LoadFigures):
            values = [run[field.name] for run in runs if not math.isnan(run[field.name])]
            if values:
                found[field.name] = Spread.of(values)
        return found

    def ratios(self, load: float) -> Spread | None:
        """Returns goodput with drafters over goodput without in the same run; None where there was none."""
        pairs = zip(self.figures(load, AUTO), self.figures(load, OFF), strict=True)
        values = [auto.goodput / off.goodput for auto, off in pairs if off.goodput]
        return Spread.of(values) if values else None

    def faults(self) -> list[str]:
        """Returns violations of what must hold."""
        every = [answer for runs in self.answers.values() for answers in runs for answer in answers]
        found = sorted({answer.fault for answer in every if answer.fault})
        unsaid = sum(answer.refused_at is not None and not answer.retry_seconds for answer in every)
        if unsaid:
            found.append(f"{unsaid} refusals did not say when to come back")
        differing = sum(
            auto.finished and off.finished and auto.token_ids != off.token_ids
            for load in self._options.loads
            for with_drafters, without in zip(self.answers[load, AUTO], self.answers[load, OFF], strict=True)
            for auto, off in zip(with_drafters, without, strict=True)
        )
        if differing:
            found.append(f"{differing} outputs with drafters differ from those without")
        return found + self._left()

    def _left(self) -> list[str]:
        found = [f"{name} were left" for name in ("used_slots", "requests") if getattr(self.idle[-1], name)]
        for name in ("tasks", "open_files"):
            values = [getattr(idle, name) for idle in self.idle]
            if grew(values) and values[-1] - values[0] > _FEW:
                found.append(f"{name} grew from {values[0]} to {values[-1]}")
        return found

    async def _start(self) -> tuple[ServiceProcess, str]:
        options = self._options
        slots = str(options.kv_slots or 2 * options.places * (options.prompt_tokens + options.max_tokens) + 4096)
        target = inflated(MODELS / "target", options.target_millions)
        draft = inflated(MODELS / "draft", options.draft_millions)
        flags = ["--kv-slots", slots, "--max-sequences", str(options.places)]
        flags += ["--max-wait-seconds", str(options.max_wait)]
        verifier = self._services.verifier(target, *flags, cores=options.verifier_cores)
        (drafter,), _ = await asyncio.gather(
            started([lambda: self._services.drafter(draft, "--kv-slots", "16384", cores=options.drafter_cores)]),
            asyncio.to_thread(lambda: verifier.address),
        )
        return verifier, drafter

    async def _measure_capacity(self, client: AsyncClient, tokens: list[int]) -> None:
        """Measures the capacity with all places taken, request after request; a few requests before that do not
        count."""
        await self._closed(client, tokens, 1, KINDS[OFF])
        requests, seconds, generated = await self._closed(client, tokens, _CAPACITY_ROUNDS, KINDS[OFF])
        self.capacity, self.capacity_tokens = requests / seconds, generated / seconds
        print(
            f"plainly it serves {self.capacity:.2f} requests, {self.capacity_tokens:.0f} tokens a second",
            file=sys.stderr,
            flush=True,
        )

    async def _closed(
        self, client: AsyncClient, tokens: list[int], rounds: int, speculation: Speculation
    ) -> tuple[int, float, int]:
        """Returns requests, seconds and tokens of a time in which each place is taken again as soon as it is free. The
        time ends when no request is left to take a place; what runs then counts by its share."""
        options = self._options
        count = options.places * rounds
        waiting = iter(
            asks(1.0, 20.0 * count, tokens, options.prompt_tokens, options.max_tokens, f"{options.seed}")[:count]
        )
        done: list[tuple[float, int]] = []
        began = time.perf_counter()

        async def place() -> None:
            for ask in waiting:
                now = Ask(0.0, ask.prompt, ask.max_tokens, ask.seed)
                (answer,) = await run_load(client, [now], self._request, speculation)
                if answer.fault or not answer.finished:
                    raise RuntimeError(f"a request failed while capacity was measured: {answer.fault or 'refused'}")
                done.append((time.perf_counter(), len(answer.token_ids)))

        async with asyncio.TaskGroup() as group:
            for _ in range(options.places):
                group.create_task(place())
        full = done[: max(1, count - options.places)]  # from here on places run empty
        end = full[-1][0]
        return len(full), end - began, sum(tokens for _, tokens in full)

    async def _note(self, verifier: ServiceProcess) -> None:
        """Records what the verifier holds, once it is idle."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        async with grpc.aio.insecure_channel(verifier.address) as channel:
            while True:
                engine = (await VerifierServiceStub(channel).GetModelInfo(GetModelInfoRequest(), timeout=10.0)).engine
                requests = engine.running_sequences + engine.waiting_requests
                if not (requests or engine.used_slots) or time.monotonic() > deadline:
                    break
                await asyncio.sleep(0.05)
        usage = Usage.of(verifier.pid)
        if usage is None:
            raise RuntimeError("the verifier has ended")
        self.idle.append(Idle(engine.used_slots, requests, engine.tasks, engine.preemptions, *usage))

    def _tell(self, run: int, load: float, kind: str) -> None:
        each = self.figures(load, kind)[-1]
        print(
            f"run {run}, load {load:g}, {kind}: {each.requests} requests, {each.goodput:.0f} of {each.completed:.0f} "
            f"tokens/s in time, {each.refused:.0%} refused within {1e3 * each.refusal_seconds:.0f} ms, first token "
            f"{each.first_token_median:.2f} s, 99th percentile {each.first_token_p99:.2f} s, between tokens "
            f"{1e3 * each.gap_p95:.0f} ms",
            file=sys.stderr,
            flush=True,
        )
