"""The comparison of every case with plain decoding, request by request, within the time of a check."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from draftwire._async.client import AsyncClient
from draftwire._messages.requests import Request
from draftwire._types.speculation import NO_SPECULATION, Speculation, SpeculationStats
from draftwire.cli.failure import Failure
from draftwire.errors import AtCapacityError, DraftwireError
from draftwire_tools.check.case import Budget, Case, Ran
from draftwire_tools.check.output import Difference, Output, difference, log_prob_gap
from draftwire_tools.check.request import CheckRequest
from draftwire_tools.progress import Stage

Run = Callable[[CheckRequest], Awaitable[tuple[Output, SpeculationStats]]]
"""Runs a request in the way of a case."""
Around = Callable[[Sequence[CheckRequest]], AbstractAsyncContextManager[Run]]
"""Prepares what a group of requests needs, and cleans up after it; its `Run` runs each of them."""
Outputs = Mapping[tuple[str, int], Output]
"""Outputs by the requests' keys."""


class Comparison:
    """The plain outputs, and the cases compared with them so far."""

    def __init__(
        self,
        requests: Sequence[CheckRequest],
        budget: Budget | None = None,
        progress: Stage = lambda name, done: None,
        wanted: Sequence[str] = ("",),
        refused: Collection[str] = (),
        *,
        bits: bool = True,
    ) -> None:
        """budget: the time for plain decoding and all cases; None for any. progress: called with the name of a case
        that begins, and the share of the budget's parts that are done. wanted:
        beginnings of the names of the cases to run. refused: the capabilities that the verifier refuses; a request that
        it refuses for one of them is left out. bits: whether log-probabilities must have equal bits."""
        self.cases: list[Case] = []
        self.gaps: list[float] = []
        """Without `bits`, the largest distance of log-probabilities in each output that has other ones."""
        self.plainly = Case("plain decoding")
        """Time of plain decoding, by sampling."""
        self._requests = requests
        self._budget = budget or Budget(float("inf"), 1)
        self._progress = progress
        self._wanted = tuple(wanted)
        self._refused = {each.partition("+")[0] for each in refused}
        self._bits = bits
        self._plain: dict[tuple[str, int], Output] = {}
        self._own: dict[str, dict[tuple[str, int], Output]] = {}
        """Plain outputs of verifiers with other numerics than the first one, by their numerics."""

    async def run_plain(self, run: Run, only: Callable[[CheckRequest], bool] = lambda request: True) -> None:
        """Gets the plain outputs that are not known yet, one request at a time. When the time is over the rest of the
        requests is left out, but every sampling has at least one. only: the requests to run.

        Raises:
            DraftwireError, Failure: a request failed.
        """
        self._progress(self.plainly.name, self._budget.done)
        over = self._budget.begin()
        for request in filter(only, self._requests):
            if request.key in self._plain:
                continue
            if request.number and over():
                break
            began = time.perf_counter()
            try:
                output, stats = await run(request)
            except DraftwireError as error:
                if not (refusal := self._refusal(error)):
                    raise
                if not request.number:
                    self.cases.append(Case(request.sampling, not_run=f"not tried: {refusal}"))
                continue
            self._plain[request.key] = output
            self.plainly.of(request.sampling).count(Ran(output, stats, time.perf_counter() - began))

    @property
    def token_seconds(self) -> float:
        """Seconds per token of plain decoding."""
        results = self.plainly.results.values()
        return sum(each.seconds for each in results) / max(1, sum(each.tokens for each in results))

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

    def wants(self, name: str) -> bool:
        """Whether a case of this name is to be run."""
        return name.startswith(self._wanted)

    async def own_plain(self, numerics: str, run: Run, only: Callable[[CheckRequest], bool]) -> Outputs:
        """Returns the plain outputs of a verifier with other numerics, which the first such verifier gives."""
        if numerics not in self._own:
            self._progress("plain decoding with other numerics", self._budget.done)
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
        run: Run | None = None,
        *,
        around: Around | None = None,
        batch: int = 1,
        only: Callable[[CheckRequest], bool] = lambda request: True,
        plain: Outputs | None = None,
    ) -> Case:
        """Runs the requests in the way of a case, ``batch`` at a time, and compares the outputs with the plain ones.

        A request that fails is a difference as well, unless there is no room for it. When the case's time is over, the
        rest is left out.

        Args:
            name: the name of the case.
            run: runs a request; the next one starts as soon as one ends.
            around: instead of run: requests run in groups of ``batch``, each within a block of its own.
            batch: requests at once.
            only: the requests of the case.
            plain: the outputs to compare with, if they are not those of the first verifier.
        """
        case = Case(name, batch=batch)
        if not self.wants(name):
            return case
        self._progress(name, self._budget.done)
        self.cases.append(case)
        plain = self._plain if plain is None else plain
        over = self._budget.begin()
        requests = [request for request in self._requests if request.key in plain and only(request)]
        found: dict[int, tuple[Ran, Difference | None]] = {}
        refusals: Counter[str] = Counter()
        left = iter(range(len(requests)))

        async def compare_one(place: int, run: Run) -> None:
            request = requests[place]
            compared = await self._compare(name, request, run, plain[request.key])
            if isinstance(compared, str):
                refusals[compared] += 1
            else:
                found[place] = compared

        async def compare_next(run: Run) -> None:
            for place in left:
                if place >= batch and over():
                    return
                await compare_one(place, run)

        if run is not None:
            await asyncio.gather(*(compare_next(run) for _ in range(batch)))
        if around is not None:
            for first in range(0, len(requests), batch):
                if first and over():
                    break
                group = range(first, min(first + batch, len(requests)))
                async with around([requests[place] for place in group]) as prepared:
                    await asyncio.gather(*(compare_one(place, prepared) for place in group))
        for place in sorted(found):
            case.of(requests[place].sampling).add(*found[place])
        left_out = [f"{count} of {len(requests)} requests not tried: {why}" for why, count in refusals.items()]
        if late := len(requests) - len(found) - refusals.total():
            left_out.append(f"{late} of {len(requests)} requests left out: its time was over")
        case.not_run = "; ".join(left_out)
        return case

    def leave_out(self, name: str, why: str) -> None:
        """Notes a case that cannot be run."""
        if self.wants(name):
            self._budget.begin()
            self.cases.append(Case(name, not_run=why))

    def _refusal(self, error: DraftwireError | Failure) -> str:
        """Returns the error if the verifier says of the fields at fault that it refuses them, else an empty text."""
        fields = {each.partition("[")[0] for each in getattr(error, "fields", ())}
        return str(error) if fields and fields <= self._refused else ""

    async def _compare(
        self, name: str, request: CheckRequest, run: Run, plain: Output
    ) -> tuple[Ran, Difference | None] | str:
        """Returns what a request has shown, or the reason for which the verifier refuses it."""
        began = time.perf_counter()
        try:
            output, stats = await run(request)
        except AtCapacityError as error:  # other requests or a quota leave no room, which says nothing about outputs
            return " ".join(str(error).split())
        except (DraftwireError, Failure) as error:
            if refusal := self._refusal(error):
                return refusal
            failed = Difference(name, "error", 0, f"{len(plain.token_ids)} tokens", str(error), request.to_json())
            return Ran(None, NO_SPECULATION, time.perf_counter() - began), failed
        ran = Ran(output, stats, time.perf_counter() - began)
        if output.resumed_at:
            plain = plain.after(output.resumed_at, output.text)
        if not self._bits and (gap := log_prob_gap(plain, output)):
            self.gaps.append(gap)
            output = replace(output, logprobs=plain.logprobs)
        return ran, difference(name, request, plain, output)


async def generate(
    client: AsyncClient,
    request: CheckRequest,
    *,
    speculation: Speculation,
    prefix_cache: bool = True,
    each: Callable[[int], Awaitable[None]] | None = None,
) -> tuple[Output, SpeculationStats]:
    """Runs a request to completion. each: called with the number of tokens of each chunk.

    Raises:
        DraftwireError: it failed.
    """
    options = request.options(speculation, prefix_cache=prefix_cache)
    if each is None:
        result = await client.generate(request.prompt.text, **options)
    else:
        async with client.stream(request.prompt.text, **options) as stream:
            async for chunk in stream:
                await each(len(chunk.token_ids))
        result = stream.result
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
    stream = client._generations.stream(asked)
    async with stream:
        async for _ in stream:
            pass
    return Output.of(stream.result, resumed_at=len(tokens)), stream.result.speculation
