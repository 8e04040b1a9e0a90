"""The comparison of every case with plain decoding, request by request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from draftwire._async.client import AsyncClient
from draftwire._messages.requests import Request
from draftwire._types.speculation import NO_SPECULATION, Speculation, SpeculationStats
from draftwire.cli.failure import Failure
from draftwire.errors import DraftwireError
from draftwire_tools.check.case import Budget, Case
from draftwire_tools.check.output import Difference, Output, difference
from draftwire_tools.check.request import CheckRequest

Run = Callable[[CheckRequest], Awaitable[tuple[Output, SpeculationStats]]]
"""Runs a request in the way of a case."""


class Comparison:
    """The plain outputs, and the cases compared with them so far."""

    def __init__(self, requests: Sequence[CheckRequest], budget: Budget, progress: Callable[[str], None]) -> None:
        """budget: the time for plain decoding and all cases. progress: called with the name of a case that begins."""
        self.cases: list[Case] = []
        self.token_seconds = 0.0
        """Seconds per token of plain decoding."""
        self._requests = requests
        self._budget = budget
        self._progress = progress
        self._plain: dict[tuple[str, int], Output] = {}
        self._own: dict[str, dict[tuple[str, int], Output]] = {}
        """Plain outputs of verifiers with other numerics than the first one, by their numerics."""

    async def run_plain(self, run: Run) -> None:
        """Gets the plain outputs, one request at a time. When the time is over the rest of the requests is left out,
        but every sampling has at least one.

        Raises:
            DraftwireError, Failure: a request failed.
        """
        self._progress("plain decoding")
        over, tokens, began = self._budget.begin(), 0, time.perf_counter()
        for request in self._requests:
            if request.number and over():
                break
            output, stats = await run(request)
            self._plain[request.key] = output
            tokens += stats.tokens
        self.token_seconds = (time.perf_counter() - began) / max(1, tokens)

    def plain(self, request: CheckRequest) -> Output:
        """Returns the plain output of a request."""
        return self._plain[request.key]

    @property
    def requests(self) -> list[CheckRequest]:
        """The requests that have a plain output."""
        return [request for request in self._requests if request.key in self._plain]

    @property
    def over(self) -> bool:
        """Whether the time of the whole check is over."""
        return self._budget.remaining == 0

    async def own_plain(
        self, numerics: str, run: Run, only: Callable[[CheckRequest], bool]
    ) -> dict[tuple[str, int], Output]:
        """Returns the plain outputs of a verifier with other numerics, which the first such verifier gives."""
        if numerics not in self._own:
            self._progress("plain decoding with other numerics")
            over = self._budget.begin()
            found = self._own[numerics] = {}
            for request in filter(only, self.requests):
                if request.number and over():
                    break
                found[request.key], _ = await run(request)
        return self._own[numerics]

    async def compare(
        self,
        name: str,
        run: Run,
        *,
        batch: int = 1,
        only: Callable[[CheckRequest], bool] = lambda request: True,
        plain: Mapping[tuple[str, int], Output] | None = None,
    ) -> Case:
        """Runs the requests in the way of a case, ``batch`` at a time, and compares the outputs with the plain ones.

        A request that fails is a difference as well. When the case's time is over, the rest is left out. only: the
        requests of the case. plain: the outputs to compare with, if they are not those of the first verifier.
        """
        self._progress(name)
        plain = self._plain if plain is None else plain
        over, case = self._budget.begin(), Case(name)
        requests = [request for request in self._requests if request.key in plain and only(request)]
        self.cases.append(case)
        for first in range(0, len(requests), batch):
            if first and over():
                case.not_run = f"{len(requests) - first} of {len(requests)} requests left out: its time was over"
                break
            group = requests[first : first + batch]
            results = await asyncio.gather(
                *(self._compare(name, request, run, plain[request.key]) for request in group)
            )
            for request, (found, stats) in zip(group, results, strict=True):
                case.of(request.sampling).add(found, stats)
        return case

    def leave_out(self, name: str, why: str) -> None:
        """Notes a case that cannot be run."""
        self._budget.begin()
        self.cases.append(Case(name, not_run=why))

    async def _compare(
        self, name: str, request: CheckRequest, run: Run, plain: Output
    ) -> tuple[Difference | None, SpeculationStats]:
        try:
            output, stats = await run(request)
        except (DraftwireError, Failure) as error:
            failed = Difference(name, "error", 0, f"{len(plain.token_ids)} tokens", str(error), request.to_json())
            return failed, NO_SPECULATION
        if output.resumed_at:
            plain = plain.after(output.resumed_at, output.text)
        return difference(name, request, plain, output), stats


async def generate(
    client: AsyncClient, request: CheckRequest, *, speculation: Speculation, prefix_cache: bool = True
) -> tuple[Output, SpeculationStats]:
    """Runs a request to completion.

    Raises:
        DraftwireError: it failed.
    """
    options = request.options(speculation, prefix_cache=prefix_cache)
    result = await client.generate(request.prompt.text, **options)
    return Output.of(result), result.speculation


async def resume(
    client: AsyncClient, request: CheckRequest, speculation: Speculation, tokens: Sequence[int]
) -> tuple[Output, SpeculationStats]:
    """Runs the rest of a request whose first tokens are known, as a client does that has lost its verifier.

    Raises:
        DraftwireError: it failed.
    """
    asked = Request.of(request.prompt.text, **request.options(speculation))
    asked.message.resume_token_ids.extend(tokens)
    stream = client._stream(asked)
    async with stream:
        async for _ in stream:
            pass
    return Output.of(stream.result, resumed_at=len(tokens)), stream.result.speculation
