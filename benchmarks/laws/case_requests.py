"""The requests of one case of the invariance check, and their outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from draftwire import AsyncClient, BatchOptions, Generation, Planning, Speculation

SAMPLINGS: dict[str, BatchOptions] = {
    "greedy": {"temperature": 0.0},
    "T=0.8": {"temperature": 0.8},
    "T=1.2 top-p 0.95": {"temperature": 1.2, "top_p": 0.95},
}


@dataclass(frozen=True)
class Output:
    """The values that must not differ."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str


@dataclass
class Requests:
    """The requests of one case, all under the same sampling. Request i has prompt i and seed i."""

    client: AsyncClient
    prompts: Sequence[str]
    sampling: str
    max_tokens: int
    batch: int
    """Requests under way at a time."""
    cached: bool = True
    """Whether they may use the prefix cache."""
    planning: Planning = "auto"
    generations: dict[int, Generation] = field(default_factory=dict)
    events: int = 0
    """What the case is about, such as swaps, that happened while requests ran."""

    async def run(self, index: int, on_tokens: Callable[[int], object] = lambda count: None) -> None:
        """Runs a request; calls `on_tokens` with the number of tokens in each chunk."""
        options: BatchOptions = {**SAMPLINGS[self.sampling], "prefix_cache": self.cached}
        options["speculation"] = Speculation(planning=self.planning)
        async with self.client.stream(self.prompts[index], seed=index, max_tokens=self.max_tokens, **options) as stream:
            async for chunk in stream:
                on_tokens(len(chunk.token_ids))
        self.generations[index] = stream.result

    async def run_all(self) -> None:
        """Runs all requests, `batch` at a time; the next one starts as soon as one ends."""
        remaining = iter(range(len(self.prompts)))

        async def worker() -> None:
            for index in remaining:
                await self.run(index)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.batch):
                tasks.create_task(worker())

    async def run_groups(self, group: Callable[[range], Coroutine[Any, Any, None]]) -> None:
        """Runs the requests in groups of `batch`, one group after another."""
        for first in range(0, len(self.prompts), self.batch):
            await group(range(first, min(first + self.batch, len(self.prompts))))

    async def run_group(self, indices: range, halfway: Callable[[], object]) -> bool:
        """Runs some of the requests at once, and calls `halfway` when they have half of their tokens. Returns whether
        it was called: requests may end early, at their end-of-text tokens."""
        left = self.max_tokens * len(indices) // 2
        called = False

        def count(tokens: int) -> None:
            nonlocal left, called
            left -= tokens
            if left <= 0 and not called:
                called = True
                halfway()

        async with asyncio.TaskGroup() as tasks:
            for index in indices:
                tasks.create_task(self.run(index, count))
        return called

    def outputs(self) -> list[Output]:
        """Returns the outputs in the order of the prompts."""
        ordered = [self.generations[index] for index in range(len(self.prompts))]
        return [Output(tuple(g.token_ids), g.text, g.finish_reason) for g in ordered]


class Runner(Protocol):
    """A way of running the requests of a case."""

    events: str
    """The name of the events that it counts; empty if there are none."""

    def __call__(self, requests: Requests) -> Awaitable[None]:
        """Runs the requests of a case."""
