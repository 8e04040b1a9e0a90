"""The comparison: the same requests by every method, which take turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, TypeVar

from draftwire._async.client import AsyncClient
from draftwire._types.options import GenerateOptions
from draftwire.cli.bench.method import Method
from draftwire.cli.bench.prompt import BenchPrompt
from draftwire.cli.bench.request import Request, run_request
from draftwire.cli.bench.time_spent import TimeReader, TimeSpent

ItemT = TypeVar("ItemT")
_WARM_UP_TOKENS = 24


class Setting(NamedTuple):
    """What figures are made for."""

    task: str
    """The prompts' task."""
    temperature: float
    """The softmax temperature."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What is to be done when it is a method's turn."""

    method: Method
    """The method."""
    setting: Setting
    """What the figures are made for."""
    run: int
    """Number of the run."""
    number: int
    """Number of the group of prompts within run and setting."""
    prompts: Sequence[BenchPrompt]
    """The prompts, whose requests run side by side."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Requests that ran side by side, all by one method: what came of a slot."""

    method: Method
    """The method."""
    setting: Setting
    """What the figures are made for."""
    run: int
    """Number of the run."""
    number: int
    """Number within run and setting: turns of different methods with the same number had the same requests."""
    seconds: float
    """From the first request to the last one's end."""
    requests: tuple[Request, ...]
    """The requests."""
    spent: TimeSpent
    """Where the services' time went."""

    @property
    def tokens(self) -> int:
        """Tokens generated."""
        return sum(len(request.token_ids) for request in self.requests)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    prompts: Sequence[BenchPrompt]
    """The prompts, those of a task together."""
    temperatures: Sequence[float]
    """Softmax temperatures."""
    max_tokens: int
    """Tokens of each request."""
    runs: int
    """How often everything is done."""
    concurrency: int
    """Requests side by side."""
    seed: int
    """Seed of the first request; each further one of a run and task, and each further run, has another."""

    @property
    def predicted(self) -> bool:
        """Whether there is a task for predictions."""
        return any(_predicted(prompts) for prompts in self._tasks())

    def slots(self, methods: Sequence[Method]) -> list[Slot]:
        """Returns what is to be done, in order. From one group of prompts to the next another method is the first."""
        return [
            Slot(method, Setting(prompts[0].task, temperature), run, number, group)
            for run in range(self.runs)
            for prompts in self._tasks()
            for temperature in self.temperatures
            for number, group in enumerate(_groups(prompts, self.concurrency))
            for method in _turned(_fit(methods, prompts), run + number)
        ]

    async def measure(self, client: AsyncClient, methods: Sequence[Method], progress: Callable[[], None]) -> list[Turn]:
        """Does it, after a few tokens that are not counted, by which services learn what drafters take and are worth.

        Args:
            client: of the verifier.
            methods: plain decoding and what is compared with it.
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
        turns: list[Turn] = []
        for slot in self.slots(methods):
            before = await reader.read(slot.method)
            began = time.perf_counter()
            requests = await self._requests(client, slot)
            seconds = time.perf_counter() - began
            spent = TimeSpent.between(before, await reader.read(slot.method))
            turns.append(Turn(slot.method, slot.setting, slot.run, slot.number, seconds, requests, spent))
            progress()
        return turns

    async def _requests(self, client: AsyncClient, slot: Slot) -> tuple[Request, ...]:
        """Requests side by side. They go on past end-of-sequence tokens, so that all methods' are of one length."""
        first_seed = self.seed + slot.run * len(self.prompts) + slot.number * self.concurrency
        options: list[GenerateOptions] = [
            {
                "max_tokens": self.max_tokens,
                "temperature": slot.setting.temperature,
                "seed": seed,
                "ignore_eos": True,
                "speculation": slot.method.speculation(prompt.prediction),
            }
            for seed, prompt in enumerate(slot.prompts, first_seed)
        ]
        requests = (run_request(client, prompt.text, each) for prompt, each in zip(slot.prompts, options, strict=True))
        return tuple(await asyncio.gather(*requests))

    def _tasks(self) -> list[list[BenchPrompt]]:
        return [list(prompts) for _, prompts in groupby(self.prompts, key=lambda prompt: prompt.task)]


def _groups(prompts: Sequence[BenchPrompt], size: int) -> list[Sequence[BenchPrompt]]:
    return [prompts[first : first + size] for first in range(0, len(prompts), size)]


def _fit(methods: Sequence[Method], prompts: Sequence[BenchPrompt]) -> list[Method]:
    """The methods that a task is for: predictions only where every prompt brings one."""
    return [method for method in methods if _predicted(prompts) or not method.predicts]


def _predicted(prompts: Sequence[BenchPrompt]) -> bool:
    return all(prompt.prediction is not None for prompt in prompts)


def _turned(items: Sequence[ItemT], by: int) -> list[ItemT]:
    """The items, another one first each time, so that none always follows the same one's end."""
    first = by % len(items)
    return [*items[first:], *items[:first]]
