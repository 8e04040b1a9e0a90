"""An open load: requests are sent at their times whether or not earlier ones have ended, and each outcome is
recorded."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from draftwire import AsyncClient, AtCapacityError, BatchOptions, DraftwireError, Speculation
from draftwire_tools.turns import Arrival, gaps


@dataclass(frozen=True)
class Ask:
    """A request to send."""

    at: float
    """Time to send it, in seconds after the start."""
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Answer:
    """Outcome of a request. Times are seconds after the start of the load."""

    due_at: float
    """Time at which the request was due."""
    asked_at: float
    """Time at which it was sent; a client short of processor time is late."""
    arrivals: tuple[Arrival, ...] = ()
    token_ids: tuple[int, ...] = ()
    finished: bool = False
    refused_at: float | None = None
    """Time at which it was refused for lack of capacity; None if it was admitted."""
    retry_seconds: float | None = None
    """Time to retry, as given by the refusal."""
    fault: str = ""
    """Description of any other error; empty if there was none."""

    @property
    def first_token_seconds(self) -> float:
        """Seconds from the request to its first token; infinite if there was none."""
        return self.arrivals[0].at - self.asked_at if self.arrivals else float("inf")

    @property
    def gaps(self) -> list[float]:
        """Seconds from each token to the next; 0 between tokens that arrived together."""
        return gaps(self.arrivals)


def asks(
    rate: float, seconds: float, tokens: Sequence[int], prompt_tokens: int, max_tokens: int, seed: str
) -> list[Ask]:
    """Returns requests for so many seconds, at `rate` per second on average, with random intervals (a Poisson process).

    Prompts are pieces of `tokens`. Lengths of prompts and outputs range from half of the given ones to one and a half
    times. The same seed gives the same requests.
    """
    rng = random.Random(seed)
    found: list[Ask] = []
    at = rng.expovariate(rate)
    while at < seconds:
        length = rng.randint(max(1, prompt_tokens // 2), prompt_tokens * 3 // 2)
        first = rng.randrange(max(1, len(tokens) - length))
        output = rng.randint(max(1, max_tokens // 2), max_tokens * 3 // 2)
        found.append(Ask(at, tuple(tokens[first : first + length]), output, len(found)))
        at += rng.expovariate(rate)
    return found


async def run_load(
    client: AsyncClient, requests: Sequence[Ask], options: BatchOptions, speculation: Speculation
) -> list[Answer]:
    """Sends each request at its time and waits for all to end. Answers are in the order of the requests."""
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_answer(client, ask, start, options, speculation)) for ask in requests]
    return [task.result() for task in tasks]


async def _answer(
    client: AsyncClient, ask: Ask, start: float, options: BatchOptions, speculation: Speculation
) -> Answer:
    await asyncio.sleep(start + ask.at - time.perf_counter())
    asked_at = time.perf_counter() - start
    arrivals: list[Arrival] = []
    request: BatchOptions = {**options, "max_tokens": ask.max_tokens, "ignore_eos": True}
    try:
        async with client.stream(list(ask.prompt), seed=ask.seed, speculation=speculation, **request) as stream:
            async for chunk in stream:
                arrivals.append(Arrival(time.perf_counter() - start, len(chunk.token_ids)))
    except AtCapacityError as error:
        refused_at = time.perf_counter() - start
        fault = "refused after its first tokens" if arrivals else ""
        return Answer(
            ask.at,
            asked_at,
            tuple(arrivals),
            refused_at=refused_at,
            retry_seconds=error.retry_after_seconds,
            fault=fault,
        )
    except DraftwireError as error:
        return Answer(ask.at, asked_at, tuple(arrivals), fault=f"{type(error).__name__}: {error}")
    return Answer(ask.at, asked_at, tuple(arrivals), tuple(stream.result.token_ids), finished=True)
