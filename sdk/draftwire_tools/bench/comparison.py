"""The comparison: the methods take turns with the same requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from draftwire._async.client import AsyncClient
from draftwire._types.options import GenerateOptions
from draftwire_tools.bench.method import Method
from draftwire_tools.bench.prompt import BenchPrompt
from draftwire_tools.bench.time_spent import TimeReader, TimeSpent
from draftwire_tools.turns import Batch, Prompt, Request, run_batch, turns

_WARM_UP_TOKENS = 24


class Setting(NamedTuple):
    """A setting that has figures of its own."""

    task: str
    """The prompts' task."""
    temperature: float
    """The softmax temperature."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A planned turn of a method."""

    method: Method
    """The method."""
    setting: Setting
    """Task and temperature."""
    run: int
    """Number of the run."""
    number: int
    """Number of the group of prompts within run and setting."""
    prompts: Sequence[BenchPrompt]
    """The prompts, whose requests run concurrently."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A completed turn: concurrent requests of one method."""

    method: Method
    """The method."""
    setting: Setting
    """Task and temperature."""
    run: int
    """Number of the run."""
    number: int
    """Number within run and setting; turns of different methods with the same number had the same requests."""
    seconds: float
    """Time from the start of the first request to the end of the last."""
    requests: tuple[Request, ...]
    """The requests."""
    spent: TimeSpent
    """The services' time by phase."""

    @property
    def tokens(self) -> int:
        """Tokens generated."""
        return sum(len(request.token_ids) for request in self.requests)


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests to measure."""

    prompts: Sequence[BenchPrompt]
    """The prompts, those of a task together."""
    temperatures: Sequence[float]
    """Softmax temperatures."""
    max_tokens: int
    """Tokens of each request."""
    runs: int
    """Number of repetitions of the whole plan."""
    concurrency: int
    """Concurrent requests."""
    seed: int
    """Seed of the first request. Each further request of a run and task, and each further run, has another one."""

    @property
    def predicted(self) -> bool:
        """Whether there is a task with predictions."""
        return any(_predicted(prompts) for prompts in self._tasks())

    def slots(self, methods: Sequence[Method]) -> list[Slot]:
        """Returns the turns in order. The order of the methods changes from one group of prompts to the next."""
        return [
            Slot(each.way, Setting(prompts[0].task, temperature), run, each.number, each.work)
            for run in range(self.runs)
            for prompts in self._tasks()
            for temperature in self.temperatures
            for each in turns(_fit(methods, prompts), _groups(prompts, self.concurrency), [run])
        ]

    async def measure(self, client: AsyncClient, methods: Sequence[Method], progress: Callable[[], None]) -> list[Turn]:
        """Runs the plan, after a few uncounted warm-up tokens that calibrate the services' drafters.

        Args:
            client: client of the verifier.
            methods: plain decoding and the methods compared with it.
            progress: called after each turn.

        Raises:
            DraftwireError: a request failed.
        """
        few = replace(
            self,
            prompts=[prompts[0] for prompts in self._tasks()],
            temperatures=self.temperatures[:1],
            max_tokens=min(_WARM_UP_TOKENS, self.max_tokens),
            runs=1,
        )
        await few._turns(client, methods, lambda: None)
        return await self._turns(client, methods, progress)

    async def _turns(self, client: AsyncClient, methods: Sequence[Method], progress: Callable[[], None]) -> list[Turn]:
        reader = TimeReader(client)
        found: list[Turn] = []
        for slot in self.slots(methods):
            before = await reader.read(slot.method)
            done = await self._run(client, slot)
            spent = TimeSpent.between(before, await reader.read(slot.method))
            taken = (slot.method, slot.setting, slot.run, slot.number)
            found.append(Turn(*taken, done.whole_seconds, done.requests, spent))
            progress()
        return found

    async def _run(self, client: AsyncClient, slot: Slot) -> Batch:
        """Runs a slot's requests concurrently. They ignore end-of-sequence tokens, so that all outputs have one
        length."""
        first_seed = self.seed + slot.run * len(self.prompts) + slot.number * self.concurrency
        requests: list[tuple[Prompt, GenerateOptions]] = [
            (
                prompt.text,
                {
                    "max_tokens": self.max_tokens,
                    "temperature": slot.setting.temperature,
                    "seed": seed,
                    "ignore_eos": True,
                    "speculation": slot.method.speculation(prompt.prediction),
                },
            )
            for seed, prompt in enumerate(slot.prompts, first_seed)
        ]
        return await run_batch(client, requests)

    def _tasks(self) -> list[list[BenchPrompt]]:
        return [list(prompts) for _, prompts in groupby(self.prompts, key=lambda prompt: prompt.task)]


def _groups(prompts: Sequence[BenchPrompt], size: int) -> list[Sequence[BenchPrompt]]:
    return [prompts[first : first + size] for first in range(0, len(prompts), size)]


def _fit(methods: Sequence[Method], prompts: Sequence[BenchPrompt]) -> list[Method]:
    """Returns the methods that fit a task: those with predictions only if every prompt has one."""
    return [method for method in methods if _predicted(prompts) or not method.predicts]


def _predicted(prompts: Sequence[BenchPrompt]) -> bool:
    return all(prompt.prediction is not None for prompt in prompts)
