"""Concurrent streams of held-out prompts, each output compared with its expected one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from draftwire import AsyncClient, BatchOptions, Speculation
from draftwire_tools.check.output import Output, first_difference

SAMPLINGS: tuple[BatchOptions, ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 40, "stop": ["\n\n"]},
    {"temperature": 1.2, "top_p": 0.95},
)


class Job(NamedTuple):
    """A request to send."""

    prompt: str
    seed: int
    options: BatchOptions


class Gap(NamedTuple):
    """A time in which a stream delivered nothing: from the request, or its last tokens, to the next ones."""

    start: float
    """Start in seconds, by time.monotonic."""
    end: float
    tokens: int
    """Number of tokens that ended the gap."""
    first: bool
    """Whether the gap is the wait for a request's first tokens, which depends on its prompt and its place in the
    queue."""
    plain: bool
    """Whether the request was decoded without drafters."""


class Finding(NamedTuple):
    """A request that failed a check."""

    number: int
    start: float
    end: float
    what: str


async def side_by_side(streams: int, numbers: Iterator[int], request: Callable[[int], Awaitable[None]]) -> None:
    """Makes the requests of all numbers, at most `streams` at a time."""

    async def stream() -> None:
        for number in numbers:
            await request(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(streams):
            tasks.create_task(stream())


@dataclass
class StreamLoad:
    """Runs jobs, at most `streams` at a time, and counts the outcomes."""

    jobs: Sequence[Job]
    streams: int
    connect: Callable[[int], AsyncClient]
    """Returns a client for the request of that number; it is closed with the request."""
    expected: Sequence[Output] | None = None
    """Expected outputs of the jobs; None compares nothing."""
    on_gap: Callable[[Gap], object] = lambda gap: None
    on_lost: Callable[[Finding], object] = lambda finding: None
    plain_every: int = 0
    """Decodes every n-th request without drafters; 0 for none. Its gaps show the time of a plain step under the same
    load."""
    always_every: int = 0
    """Has drafters draft for every n-th request whether or not the planner finds it worth it; 0 for none."""
    planted: int | None = None
    """Number of a request that is compared with a wrong output, to check that this is noticed."""
    requests: int = 0
    tokens: int = 0
    resumes: int = 0
    longest: float = 0.0
    """Seconds of the longest request that was not lost."""
    differing: list[Finding] = field(default_factory=list)
    lost: list[Finding] = field(default_factory=list)
    outputs: dict[int, Output] = field(default_factory=dict)
    """Latest output of each job."""

    async def run_once(self) -> list[Output]:
        """Runs every job once; returns the outputs. Raises RuntimeError if one failed."""
        await self._run(iter(range(len(self.jobs))))
        if self.lost:
            raise RuntimeError(f"{len(self.lost)} requests failed, the first: {self.lost[0].what}")
        return [self.outputs[number] for number in range(len(self.jobs))]

    @property
    def faults(self) -> list[str]:
        """Faults that a caller must not have met."""
        lost = [f"a good request failed: {each.what}" for each in self.lost]
        return lost + [
            f"a good request gave another output than plain decoding: {each.what}" for each in self.differing
        ]

    async def run_until(self, stop: asyncio.Event) -> None:
        """Repeats the jobs until `stop` is set and the last request has ended."""
        await self._run(itertools.takewhile(lambda _: not stop.is_set(), itertools.count()))

    async def _run(self, numbers: Iterator[int]) -> None:
        await side_by_side(self.streams, numbers, self._request)

    async def _request(self, number: int) -> None:
        clock = asyncio.get_running_loop().time
        job = self.jobs[number % len(self.jobs)]
        plain = self.plain_every > 0 and number % self.plain_every == 0
        always = self.always_every > 0 and number % self.always_every == 0
        speculation = Speculation(enabled=not plain, planning="always" if always and not plain else "auto")
        first = True
        started = last = clock()
        self.requests += 1
        try:
            async with (
                self.connect(number) as client,
                client.stream(job.prompt, seed=job.seed, speculation=speculation, **job.options) as stream,
            ):
                async for chunk in stream:
                    now = clock()
                    self.on_gap(Gap(last, now, len(chunk.token_ids), first, plain))
                    self.tokens += len(chunk.token_ids)
                    last, first = now, False
            generation = stream.result
        except Exception as error:  # noqa: BLE001 (whatever a caller would have got is a request lost)
            what = f"{type(error).__name__} after {clock() - last:.1f} s without a token: {error}"
            self.lost.append(Finding(number, started, clock(), what))
            self.on_lost(self.lost[-1])
            return
        self.resumes += generation.resumes
        self.longest = max(self.longest, clock() - started)
        output = Output.of(generation)
        self.outputs[number % len(self.jobs)] = output
        if self.expected is not None:
            self._compare(number, output, Finding(number, started, clock(), ""))

    def _compare(self, number: int, output: Output, finding: Finding) -> None:
        assert self.expected is not None
        expected = self.expected[number % len(self.jobs)]
        if number == self.planted:
            expected = replace(expected, token_ids=(*expected.token_ids[:-1], expected.token_ids[-1] ^ 1))
        found = first_difference(expected, output)
        if found is not None:
            what, position, theirs, ours = found
            told = f"job {number % len(self.jobs)}: {what} at {position}: {ours} instead of {theirs}"
            self.differing.append(finding._replace(what=told))


def jobs_of(prompts: Sequence[str], max_tokens: int, timeout: float) -> list[Job]:
    """Returns a job for each prompt, with rotating samplings and a seed each. Every other one continues past the end of
    text, so that it is long.

    timeout: seconds after which a request counts as lost.
    """
    jobs = []
    for number, prompt in enumerate(prompts):
        options: BatchOptions = {
            "max_tokens": max_tokens,
            "timeout": timeout,
            "ignore_eos": number % 2 == 0,
            **SAMPLINGS[(number // 2) % len(SAMPLINGS)],
        }
        jobs.append(Job(prompt, number, options))
    return jobs
