"""Concurrent streams over HTTP through any of several gateways, each output compared with its expected one."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import httpx

from benchmarks.harness.stream_load import Finding, Gap, Job, side_by_side

_RETRY_SECONDS = 0.05
_DONE = "data: [DONE]"


@dataclass
class GatewayLoad:
    """Runs jobs repeatedly, at most `streams` at a time.

    A request that a gateway does not accept, because it refuses or drops the connection before a response has begun,
    goes to the next gateway, as a load balancer would route it. A request that breaks off later is lost.
    """

    jobs: Sequence[Job]
    streams: int
    urls: Sequence[str]
    expected: Sequence[str]
    """Expected texts of the jobs."""
    seconds: float
    """Time limit of a request in seconds."""
    on_gap: Callable[[Gap], object] = lambda gap: None
    requests: int = 0
    moved: int = 0
    """Number of times a request went to another gateway."""
    differing: list[Finding] = field(default_factory=list)
    lost: list[Finding] = field(default_factory=list)

    async def run_until(self, stop: asyncio.Event) -> None:
        """Repeats the jobs until `stop` is set and the last request has ended."""
        numbers = itertools.takewhile(lambda _: not stop.is_set(), itertools.count())
        await side_by_side(self.streams, numbers, self._request)

    async def _request(self, number: int) -> None:
        clock = asyncio.get_running_loop().time
        started = clock()
        self.requests += 1
        try:
            async with asyncio.timeout(self.seconds), httpx.AsyncClient(timeout=self.seconds) as client:
                text = await self._text(client, number, await self._taken(client, number))
        except Exception as error:  # noqa: BLE001 (whatever a caller would have got is a request lost)
            self.lost.append(Finding(number, started, clock(), f"{type(error).__name__}: {error}"))
            return
        if text != self.expected[number % len(self.jobs)]:
            self.differing.append(Finding(number, started, clock(), f"job {number % len(self.jobs)}: another text"))

    async def _taken(self, client: httpx.AsyncClient, number: int) -> httpx.Response:
        """Returns a response that has begun."""
        job = self.jobs[number % len(self.jobs)]
        options = {name: value for name, value in job.options.items() if name != "timeout"}
        body = {"prompt": job.prompt, "model": "target", "stream": True, "seed": job.seed, **options}
        for url in itertools.cycle([self.urls[number % len(self.urls)], *self.urls]):
            request = client.build_request("POST", f"{url}/v1/completions", json=body)
            try:
                return await client.send(request, stream=True)
            except httpx.TransportError:
                self.moved += 1
                await asyncio.sleep(_RETRY_SECONDS)
        raise AssertionError

    async def _text(self, client: httpx.AsyncClient, number: int, response: httpx.Response) -> str:
        clock = asyncio.get_running_loop().time
        last, first, done = clock(), True, False
        parts = []
        async with aclosing(response):
            if response.status_code != httpx.codes.OK:
                raise RuntimeError(f"status {response.status_code}: {(await response.aread()).decode()}")
            async for line in response.aiter_lines():
                if line == _DONE:
                    done = True
                elif line:
                    now = clock()
                    self.on_gap(Gap(last, now, 1, first, plain=False))
                    last, first = now, False
                    parts.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
        if not done:
            raise RuntimeError("the stream ended before the request was finished")
        return "".join(parts)
